"""The data set ``huggingface``: data sets of the library datasets, from a folder or by the name of the hub."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from chimera.core.errors import ConfigurationError, DataError
from chimera.core.registry import load_object
from chimera.data.collation import classes_of
from chimera.data.row_labels import RowLabels, found_labels
from chimera.data.samples import SampleDataset
from chimera.data.split import DATASETS, Split

Transform = Callable[[Mapping[str, Any]], Any]
"""A function of a sample, a mapping of its columns, that returns a sample."""


@DATASETS.register("huggingface", requires="datasets", extra="text")
def huggingface(
    *,
    path: str,
    subset: str | None = None,
    train: str = "train",
    test: str | None = None,
    columns: list[str] | None = None,
    rename: dict[str, str] | None = None,
    transform: str | Transform | None = None,
    labels: str | Transform | None = None,
    groups: str | Transform | None = None,
    test_fraction: float = 0.2,
    limit: int | None = None,
    seed: int = 0,
) -> Split:
    """A data set of the library datasets: a folder of ``save_to_disk`` or of files, or a name of the hub.

    Workers read its rows from files that are mapped into memory. The library's own variables select its cache and its offline
    mode. It runs no code of the hub.

    Parameters
    ----------
    path : the folder, or the name of the hub, such as ``imdb``.
    subset : name of the configuration, such as ``sst2`` of ``glue``.
    train, test : names of the parts. By default the part ``test`` or ``validation`` is the test part; if there
        is none, a fraction of the train part is.
    columns : the columns to read; default all.
    rename : new names of columns by their present names, such as those of a model's arguments.
    transform : function of a sample, a mapping, that returns a sample; or its name ``package.module:function``.
    labels : the labels for partitions by labels and stratified splits, if not those of the rows: a column, or a
        function of a row, a mapping of all columns (``file.py:function``).
    groups : the group of each row, for the partition ``by-group``, given in the same ways. The column is not in the samples.
    test_fraction : share of the train part that becomes the test part, if there is none.
    limit : number of train samples to keep, chosen at random; default all.
    seed : seed of the limit and of the split.
    """
    function = load_object(transform) if isinstance(transform, str) else transform
    parts = _parts(path, subset, train, test)
    name = Path(path).name
    seen, together = (_marks(parts[0], given, what) for what, given in (("labels", labels), ("groups", groups)))
    made = [
        SampleDataset(
            _Columns(_selected(part, _kept(part, columns, groups), rename or {}), function),
            labels=None if part is not parts[0] else seen,
            groups=None if part is not parts[0] else together,
            name=name,
        )
        for part in parts
    ]
    split = Split.of(made[0] if len(made) == 1 else (made[0], made[1]), test_fraction=test_fraction, seed=seed)
    return split if limit is None else split.limited(limit, seed)


class _Columns:
    """A data set with a transform of its samples; its labels and classes remain known."""

    def __init__(self, rows: Any, transform: Transform | None) -> None:
        self._rows, self._transform = rows, transform

    @property
    def column_names(self) -> list[str]:
        return list(self._rows.column_names)

    @property
    def classes(self) -> tuple[str, ...] | None:
        return classes_of(self._rows)

    @property
    def targets(self) -> Any:
        """The column of labels, if there is one of numbers."""
        label = next((name for name in ("label", "labels") if name in self.column_names), None)
        return None if label is None else self._rows.with_format("numpy")[label][:]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitems__(self, numbers: list[int]) -> list[Any]:
        rows = self._rows.__getitems__(numbers)
        return rows if self._transform is None else [self._transform(row) for row in rows]

    def __getitem__(self, number: int) -> Any:
        return self.__getitems__([number])[0]


def _parts(path: str, subset: str | None, train: str, test: str | None) -> list[Any]:
    """Return the train part and, if there is one, the test part."""
    import datasets

    folder = Path(path).expanduser()
    saved = any((folder / name).is_file() for name in ("state.json", "dataset_dict.json"))
    read = partial(datasets.load_from_disk, str(folder)) if saved else partial(_load, path, subset)
    try:
        held = read()
    except Exception as error:  # the library raises many types of errors, also those of the network
        raise DataError(f"the data set {path!r} cannot be read: {' '.join(str(error).split())[:300]}") from error
    if not isinstance(held, Mapping):
        return [held]
    found = test or next((name for name in ("test", "validation") if name in held), None)
    for name in (train, *([found] if found else [])):
        if name not in held:
            raise ConfigurationError(f"the data set {path!r} has no part {name!r}; its parts: {', '.join(held)}")
    return [held[train], *([held[found]] if found else [])]


def _load(path: str, subset: str | None) -> Any:
    import datasets

    return datasets.load_dataset(path, subset)


def _marks(rows: Any, given: str | Transform | None, what: str) -> RowLabels | None:
    """Return the labels or groups of all rows, from a column or function; None if none are given."""
    if given is None:
        return None
    columns = {name: partial(_values, rows, name) for name in rows.column_names}
    found = found_labels(given, what, columns, lambda: rows, len(rows))
    return replace(found, dropped=what == "groups" and found.source in columns)


def _values(rows: Any, column: str) -> Any:
    return rows.with_format("numpy")[column][:]


def _kept(rows: Any, columns: list[str] | None, groups: str | Transform | None) -> list[str] | None:
    """Return the columns to read: those that were named, without the column of the groups; None for all."""
    if groups not in rows.column_names:
        return columns
    return [name for name in (rows.column_names if columns is None else columns) if name != groups]


def _selected(rows: Any, columns: list[str] | None, rename: Mapping[str, str]) -> Any:
    for column in (*(columns or ()), *rename):
        if column not in rows.column_names:
            raise DataError(f"the data set has no column {column!r}; its columns: {', '.join(rows.column_names)}")
    chosen = rows if columns is None else rows.select_columns(columns)
    return (chosen.rename_columns(dict(rename)) if rename else chosen).with_format("torch")
