"""Parquet files: read as a whole, or one row group after another."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import DataError, MissingExtraError
from chimera.data.readers import table
from chimera.data.readers.arrays import Task, as_inputs, as_targets

CACHE_BYTES = 128 << 20
"""Bytes of decoded rows that a process keeps."""


class RowGroups:
    """A Parquet file that is read one row group at a time. Each process opens it for itself.

    Parameters
    ----------
    path : the file.
    columns : names of the columns to read; default all.

    Attributes
    ----------
    names : names of the columns.
    bounds : first row of each row group, and the number of all rows; shape (groups + 1,).
    categorical : names of the columns that are stored as categories.
    bytes : size of the decoded columns of each row group.

    Raises
    ------
    DataError : the file is damaged, or has no such column.
    MissingExtraError : pyarrow is not installed.
    """

    def __init__(self, path: Path, columns: Sequence[str] | None = None) -> None:
        self.path, self._columns = path, None if columns is None else list(columns)
        self._absolute = path.absolute()  # a worker may have another working directory
        self._opened: tuple[int, Any] | None = None
        self._rows: int | None = None
        file = self._file()
        names = file.schema_arrow.names
        for column in columns or ():
            if column not in names:
                raise DataError(f"{path} has no column {column!r}; its columns: {', '.join(names)}")
        self.names: list[str] = list(names if columns is None else columns)
        found = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        self.bounds = np.cumsum([0, *(group.num_rows for group in found)])
        self.categorical = {field.name for field in file.schema_arrow if hasattr(field.type, "index_type")}
        self.bytes = [sum(chunk.total_uncompressed_size for chunk in self._chunks(group)) for group in found]

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def frame(self, group: int, columns: Sequence[str] | None = None) -> Any:
        """Return a row group as a pandas frame: these columns, or by default all chosen ones."""
        chosen = self._columns if columns is None else list(columns)
        return self._read(lambda file: file.read_row_group(group, chosen, use_threads=False).to_pandas())

    def whole(self) -> Any:
        """Return all rows as a pandas frame."""
        return self._read(lambda file: file.read(self._columns).to_pandas())

    def _chunks(self, group: Any) -> Iterator[Any]:
        for place in range(group.num_columns):
            chunk = group.column(place)
            if self._columns is None or chunk.path_in_schema in self._columns:
                yield chunk

    def _file(self) -> Any:
        """Return the file, opened by this process: a forked process would share its position."""
        if self._opened is None or self._opened[0] != os.getpid():
            try:
                from pyarrow import parquet
            except ImportError as error:
                raise MissingExtraError("a Parquet file", "pyarrow", "tables") from error
            file = self._checked(lambda: parquet.ParquetFile(self._absolute))
            if self._rows not in (None, file.metadata.num_rows):
                raise DataError(
                    f"{self.path} has {file.metadata.num_rows:,} rows, and had {self._rows:,}: it was changed"
                )
            self._opened, self._rows = (os.getpid(), file), file.metadata.num_rows
        return self._opened[1]

    def _read(self, function: Any) -> Any:
        file = self._file()
        return self._checked(lambda: function(file))

    def _checked(self, function: Any) -> Any:
        import pyarrow

        try:
            return function()
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(f"{self.path} cannot be read as a Parquet file: {' '.join(str(error).split())}") from error

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_opened": None}


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> Any:
    """Read a Parquet file into a pandas frame.

    Parameters
    ----------
    columns : names of the columns to read; default all.

    Raises
    ------
    DataError : the file is damaged, has no such column, or is larger than half of this machine's memory.
    MissingExtraError : pyarrow is not installed.
    """
    groups = RowGroups(path, columns)
    if exceeds_memory(groups):
        raise DataError(
            f"{path} has {sum(groups.bytes) / 2**30:.1f} GiB, more than half of this machine's memory: select columns, "
            "or give the path to the run or to Split.of, which read rows lazily"
        )
    return groups.whole()


def exceeds_memory(groups: RowGroups) -> bool:
    """Return whether the columns need more than half of the memory of this machine."""
    return bool(sum(groups.bytes) > _memory() // 2)


class ParquetRows:
    """The rows of a Parquet file, decoded when they are read; one pass at the start collects the targets and all texts.

    A process keeps decoded row groups up to `CACHE_BYTES`, those that were read last.

    Parameters
    ----------
    groups : the file, and the chosen columns.
    drop, one_hot, target : see `chimera.data.files.csv`.
    task, classes, like : see `chimera.data.dataset.Dataset.of`.

    Attributes
    ----------
    target : the target column.
    columns : names of the columns of the file that are inputs.
    features : names of the inputs: columns, and the categories of text columns.
    targets : class index, in the smallest type of integers, or value of each row.
    classes : the labels of the class indices; None for a regression.
    bounds : first row of each row group, and the number of all rows.
    together : number of row groups that a process can keep.

    Raises
    ------
    DataError : the values cannot be used, or a row group needs more than a quarter of this machine's memory.
    """

    def __init__(
        self,
        groups: RowGroups,
        *,
        target: table.Target = None,
        drop: Sequence[str] = (),
        one_hot: Sequence[str] = (),
        task: Task | None = None,
        classes: int | Sequence[str] | None = None,
        like: Any = None,
    ) -> None:
        self._groups, self.bounds, self._cache_bytes = groups, groups.bounds, CACHE_BYTES
        largest = max(groups.bytes, default=0)
        if largest > _memory() // 4:
            raise DataError(
                f"{groups.path} has a row group of {largest / 2**30:.1f} GiB, more than a quarter of this machine's memory: "
                "write the file with smaller row groups"
            )
        if like is not None:
            task, classes = like.task, like.classes
        texts, labels = _Texts(), _Labels()
        self.target = target
        for group in np.flatnonzero(np.diff(self.bounds)).tolist():
            try:
                frame = table.with_columns(groups.frame(group), drop, one_hot)
                self.target = frame.columns[-1] if self.target is None else self.target
                inputs, given = table.split_target(frame, self.target)
                texts.add(inputs, like)
                labels.add(given)
            except DataError as error:
                raise DataError(f"{groups.path}, row group {group} from row {self.bounds[group]}: {error}") from error
        if not texts.columns:
            raise DataError(f"{groups.path} is empty")
        self.columns = texts.columns
        self._one_hot = [name for name in one_hot if name in texts.columns]
        self.features = tuple(like.features) if like is not None else texts.features(groups.categorical)
        self.targets, self.classes = labels.indices(task, classes)
        widest = int(np.diff(self.bounds).max()) * len(self.features) * 4
        self.together = max(self._cache_bytes // max(widest, 1), 1)
        self._decoded: OrderedDict[int, NDArray[np.float32]] = OrderedDict()

    def __len__(self) -> int:
        return int(self.bounds[-1])

    def inputs(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the inputs of these rows, shape (n, features)."""
        found = np.empty((len(rows), len(self.features)), np.float32)
        held = np.searchsorted(self.bounds, rows, "right") - 1
        for group in sorted(
            np.unique(held).tolist(), key=lambda group: group not in self._decoded
        ):  # before they are dropped
            places = np.flatnonzero(held == group)
            found[places] = self._group(group)[rows[places] - self.bounds[group]]
        return found

    def _group(self, group: int) -> NDArray[np.float32]:
        decoded = self._decoded.pop(group, None)
        if decoded is None:
            frame = table.with_columns(self._groups.frame(group, self.columns)[self.columns], (), self._one_hot)
            decoded, _ = table.features(frame, self.features)
            kept = sum(other.nbytes for other in self._decoded.values())
            while self._decoded and kept + decoded.nbytes > self._cache_bytes:
                kept -= self._decoded.popitem(last=False)[1].nbytes
        self._decoded[group] = decoded  # the last one
        return decoded

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_decoded": OrderedDict()}


class _Texts:
    """The input columns of all row groups, and the categories of those that become one-hot columns."""

    def __init__(self) -> None:
        self.columns: list[str] = []
        self._found: dict[str, dict[Any, None]] = {}

    def add(self, inputs: Any, like: Any) -> None:
        """Check the columns of a row group, and collect its categories."""
        self.columns = [str(name) for name in inputs.columns]
        if like is not None:
            _check_finite(table.features(inputs, like.features)[0])
            return
        numbers = []
        for name in inputs.columns:
            categories = table.categories(str(name), inputs[name])
            if categories is None:
                numbers.append(name)
                continue
            found = self._found.setdefault(str(name), {})
            found.update(dict.fromkeys(categories))
            table.check_categories(str(name), found, inputs[name])
        if numbers:
            _check_finite(table.features(inputs[numbers])[0])

    def features(self, categorical: set[str]) -> tuple[str, ...]:
        """Return the names of all features; categories of columns in ``categorical`` keep their order."""
        names: list[str] = []
        for column in self.columns:
            found = self._found.get(column)
            if found is None:
                names.append(column)
            else:
                ordered = found if column in categorical else sorted(found)
                names += [f"{column}={value}" for value in ordered]
        return tuple(names)


class _Labels:
    """The targets of all row groups. Texts are kept as numbers."""

    def __init__(self) -> None:
        self._values: list[NDArray[Any]] = []
        self._texts: dict[str, int] = {}
        self._known: dict[str, None] = {}

    def add(self, given: Any) -> None:
        values, known = table.target_values(given)
        self._known.update(dict.fromkeys(known or ()))
        if values.dtype.kind == "U":
            different, places = np.unique(values, return_inverse=True)
            numbers = [self._texts.setdefault(str(text), len(self._texts)) for text in different]
            values = np.array(numbers, np.int32)[places]
        self._values.append(_narrow(values))

    def indices(
        self, task: Task | None, classes: int | Sequence[str] | None
    ) -> tuple[NDArray[Any], tuple[str, ...] | None]:
        """Return what `as_targets` returns for the targets of the whole file."""
        values = np.concatenate(self._values)
        if self._known and classes is None and task != "regression":
            classes = tuple(self._known)
        if not self._texts:
            indices, names = as_targets(values, task=task, classes=classes)
            return _narrow(indices), names
        indices, names = as_targets(np.array(list(self._texts)), task=task, classes=classes)
        return _narrow(indices)[values], names


def _narrow(values: NDArray[Any]) -> NDArray[Any]:
    """Return integers in the smallest type that holds them; other values are unchanged."""
    if values.dtype.kind not in "iu" or not values.size:
        return values
    return values.astype(np.result_type(np.min_scalar_type(values.min()), np.min_scalar_type(values.max())), copy=False)


def _check_finite(inputs: NDArray[np.float32]) -> None:
    as_inputs(inputs, keep_integers=False)


def _memory() -> int:
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
