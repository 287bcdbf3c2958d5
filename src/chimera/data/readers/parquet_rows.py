"""The rows of a Parquet file, decoded when they are read."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import DataError
from chimera.data.readers import parquet, table
from chimera.data.readers.arrays import Task, as_inputs, as_targets, label_values
from chimera.data.readers.parquet import RowGroups

CACHE_BYTES = 128 << 20
"""Bytes of decoded rows that a process keeps."""


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
    label_values : see `chimera.data.dataset.Dataset`.
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
        if largest > parquet.memory_bytes() // 4:
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
        self.label_values = label_values(labels.sample, self.classes)
        widest = int(np.diff(self.bounds).max()) * len(self.features) * 4
        self.together = max(self._cache_bytes // max(widest, 1), 1)
        self._decoded: OrderedDict[int, NDArray[np.float32]] = OrderedDict()

    def __len__(self) -> int:
        return int(self.bounds[-1])

    def inputs(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the inputs of these rows, shape (n, features)."""
        found = np.empty((len(rows), len(self.features)), np.float32)
        groups = np.searchsorted(self.bounds, rows, "right") - 1
        for group in sorted(
            np.unique(groups).tolist(), key=lambda group: group not in self._decoded
        ):  # before they are dropped
            places = np.flatnonzero(groups == group)
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
        self._decoded[group] = decoded  # the most recent one
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

    @property
    def sample(self) -> NDArray[Any]:
        """Some of the targets, in the type of all of them."""
        return np.array(list(self._texts)) if self._texts else self._values[0]

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
