"""Kinds of sources of data, and extraction of raw inputs and targets from them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from chimera.core.errors import DataError
from chimera.core.named_places import located
from chimera.data.readers import csv_file, table
from chimera.data.readers.arrays import from_torch_dataset, is_array, is_tensor
from chimera.data.readers.npy import open_archive
from chimera.data.readers.parquet import RowGroups, exceeds_memory, read_parquet
from chimera.data.row_labels import RowLabels, found_labels

Pair = tuple[Any, Any]


class Raw(NamedTuple):
    """Raw inputs and targets, and the labels and groups of the rows, if some were given."""

    inputs: Any
    targets: Any
    labels: RowLabels | None = None
    groups: RowLabels | None = None


_KINDS = "a pair (inputs, targets) of arrays, tensors or lists, a torch data set, a pandas frame, or a CSV or .npz file"
_TABLES = ("polars", "pyarrow")
_INPUTS, _TARGETS = ("inputs", "x"), ("targets", "y")


def is_frame(value: Any) -> bool:
    """Return whether ``value`` is a pandas frame, without importing pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.DataFrame)


def with_frames(source: Any) -> Any:
    """Return a table of polars or pyarrow as a pandas frame, also in a pair; other sources are unchanged.

    Raises
    ------
    DataError : a sparse matrix of SciPy.
    """
    if isinstance(source, tuple | list) and len(source) == 2:
        parts = map(with_frames, source)
        return tuple(parts) if isinstance(source, tuple) else list(parts)
    if hasattr(source, "toarray") and hasattr(source, "nnz"):
        raise DataError("a sparse matrix of SciPy has no rows that can be read: convert it by toarray()")
    library = type(source).__module__.partition(".")[0]
    return source.to_pandas() if library in _TABLES and hasattr(source, "to_pandas") else source


def has_own_targets(value: Any) -> bool:
    """Return whether ``value`` alone has inputs and targets, so that two such values are a train and a test part."""
    if isinstance(value, str | os.PathLike) or _is_map_style(value):
        return True
    return isinstance(value, tuple) and len(value) == 2 and all(is_array(part) for part in value)


def _is_map_style(value: Any) -> bool:
    plain = is_array(value) or isinstance(value, str | bytes | list | tuple | Mapping | range)
    return not plain and hasattr(value, "__len__") and hasattr(value, "__getitem__")


def is_sampled(value: Any) -> bool:
    """Return whether ``value`` is a map-style data set whose samples are read one by one.

    A ``TensorDataset`` of real inputs and one label or row of values per sample holds arrays already: the result is
    False.
    """
    if not _is_map_style(value) or isinstance(value, os.PathLike):
        return False
    tensors = getattr(value, "tensors", None)
    if not isinstance(tensors, tuple) or len(tensors) != 2:
        return True
    inputs, targets = tensors
    return not inputs.is_floating_point() or targets.ndim > 1 + targets.is_floating_point()


def is_large_parquet(value: Any) -> bool:
    """Return whether ``value`` is the path of a Parquet file that does not fit in memory."""
    if not isinstance(value, str | os.PathLike) or not str(value).lower().endswith(".parquet"):
        return False
    return exceeds_memory(RowGroups(existing_file(value)))


def pairs(source: Any, options: table.TableOptions, *, header: bool | None = None) -> list[Raw]:
    """Return the raw inputs and targets of a source; two pairs if it has a train and a test part.

    Raises
    ------
    DataError : the source is of no known kind.
    """
    if isinstance(source, str | os.PathLike):
        path, source = source, _read_file(existing_file(source), header)
        if isinstance(source, list):
            return [_of_pair(source[0], options), *(Raw(*pair) for pair in source[1:])]
        if is_frame(source):
            csv_file.check_first_column(source, options.drop, path)
    if is_frame(source):
        return [_of_frame(source, options)]
    if isinstance(source, tuple | list) and len(source) == 2:
        return [_of_pair((source[0], source[1]), options)]
    if _is_map_style(source):
        return [_of_pair(from_torch_dataset(source), options)]
    if is_tensor(source) or isinstance(source, np.ndarray):
        raise DataError(f"an array of shape {tuple(source.shape)} has no targets: give (inputs, targets)")
    length = f" of length {len(source)}" if isinstance(source, tuple | list) else ""
    divided = isinstance(source, tuple | list) and len(source) == 4 and all(map(is_array, source))
    wanted = "((X_train, y_train), (X_test, y_test)) of the four arrays of train_test_split" if divided else _KINDS
    raise DataError(f"a {type(source).__name__}{length} is not a data set: give {wanted}")


def name_of(source: Any) -> str:
    """Return the default name of a data set: the name of its file, or ``data``."""
    return Path(source).name if isinstance(source, str | os.PathLike) else "data"


def existing_file(path: str | os.PathLike[str]) -> Path:
    """Return the path of a data file, see `located`; raise DataError if there is no such file."""
    file = located(path)
    if file.is_dir():
        raise DataError(f"{str(path)!r} is a folder, not a data file")
    if not file.is_file():
        raise DataError(f"there is no data file {str(path)!r}")
    return file


def _of_frame(frame: Any, options: table.TableOptions) -> Raw:
    raw = Raw(*table.split_target(options.without_columns(frame), options.target))
    return _labelled(raw, frame, options, partial(frame.to_dict, "records"))


def _of_pair(pair: Pair, options: table.TableOptions) -> Raw:
    inputs, targets = pair
    if is_frame(inputs):
        _check_index(inputs, targets)
        return _labelled(
            Raw(options.without_columns(inputs), targets), inputs, options, partial(inputs.to_dict, "records")
        )
    return _labelled(Raw(inputs, targets), inputs, options, lambda: zip(inputs, targets, strict=True))


def _check_index(frame: Any, targets: Any) -> None:
    """Raise DataError if the targets have the index of the inputs in a different order."""
    if not hasattr(targets, "isna") or len(targets) != len(frame) or frame.index.equals(targets.index):
        return
    if frame.index.is_unique and targets.index.is_unique and not len(frame.index.difference(targets.index)):
        raise DataError(
            "the inputs and targets have the same index in different orders: align them by targets.loc[inputs.index]"
        )


def _labelled(raw: Raw, source: Any, options: table.TableOptions, samples: Callable[[], Iterable[Any]]) -> Raw:
    """Return inputs and targets with the labels and groups of a source, which may have further columns."""
    needed = [(what, given) for what, given in options.needed() if given is not None]
    if not needed:
        return raw
    names = source.columns if is_frame(source) else ()
    columns = {str(name): partial(_column_values, source, name) for name in names}
    found = {what: found_labels(given, what, columns, samples, len(source)) for what, given in needed}
    inputs = set(map(str, raw.inputs.columns if is_frame(source) else ()))
    return raw._replace(
        **{
            what: replace(marks, dropped=marks.source in columns and marks.source not in inputs)
            for what, marks in found.items()
        }
    )


def _column_values(frame: Any, name: Any) -> Any:
    return table.target_values(frame[name])[0]


def _read_file(path: Path, header: bool | None) -> Any:
    """Return a frame, or a list of the pairs of an .npz file."""
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(".npz"):
        return read_npz(path)
    if name.endswith(".parquet"):
        return read_parquet(path)
    if not name.endswith(table.SUFFIXES):
        known = ", ".join((*table.SUFFIXES, ".npz", ".parquet"))
        raise DataError(f"the file {str(path)!r} has an unknown ending; known: {known}")
    return csv_file.read_csv(path, header=header)


def read_npz(path: Path) -> list[Pair]:
    """Read ``inputs`` and ``targets`` (or ``x`` and ``y``) from an .npz file, or ``x_train, y_train, x_test, y_test``.

    Raises
    ------
    DataError : the file is missing or damaged, holds objects, or has other names.
    """
    with open_archive(path) as archive:
        names = {name.lower(): name for name in archive.names}
        for endings in (("",), ("_train", "_test")):
            for inputs, targets in zip(_INPUTS, _TARGETS, strict=True):
                wanted = [(inputs + ending, targets + ending) for ending in endings]
                if all(name in names for pair in wanted for name in pair):
                    return [(archive.read(names[one]), archive.read(names[other])) for one, other in wanted]
    raise DataError(
        f"{path} holds {', '.join(sorted(names.values())) or 'no named arrays'}: "
        "needed are inputs and targets, or x and y, or x_train, y_train, x_test and y_test"
    )
