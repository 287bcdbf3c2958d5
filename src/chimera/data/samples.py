"""Data sets that are read lazily: samples are read and collated when a worker needs them, and never stacked as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from chimera.core.batch import Batch, targets_of
from chimera.core.errors import DataError
from chimera.data.collation import (
    COLUMNS,
    Collate,
    FirstBatch,
    as_host_array,
    check_finite,
    classes_of,
    collated,
    read_only_arrays,
)
from chimera.data.grouping import Grouping
from chimera.data.length_groups import LengthGroups
from chimera.data.randomness import seeded
from chimera.data.row_labels import RowLabels, found_labels

_LABELS = ("targets", "labels")
_COMPARED = 16  # samples whose targets are compared with given labels


@dataclass(frozen=True, eq=False)
class SampleDataset(FirstBatch):
    """A map-style data set: ``source[i]`` returns one sample, or ``source.__getitems__(rows)`` a list of samples.

    A sample is an item of the data set, often ``(input, target)`` or a mapping. ``collate`` turns a list of samples
    into a batch. Random numbers that reading draws from `random`, NumPy or torch depend on the ``key`` of `take` alone.

    Attributes
    ----------
    source : the data set, such as a ``torch.utils.data.Dataset``.
    collate : default: torch's ``default_collate``.
    rows : numbers of the samples of ``source`` that belong to this data set; default: all.
    labels : label of each sample of ``source``, for partitions and stratified splits: an array, the name of a column, or a
        function of a sample, for which all samples are read once. Default: its attribute ``targets`` or ``labels``, or its
        label column; otherwise read from the samples when they are needed.
    groups : group of each sample of ``source``, for the partition ``by-group``, given in the same ways; default: none.
    lengths : length of each sample of ``source``, shape (n,), in any unit: workers then read samples of similar length
        together, so that little is padded. Default: samples are read in any order.
    length_group : with lengths, number of samples of similar length; best the samples of a step of all workers, or of one
        worker if each has its own samples.
    name : name of the data set in messages and reports.
    """

    immutable: ClassVar[bool] = True  # so that all workers of a process can share one

    source: Any
    collate: Collate | None = None
    rows: NDArray[np.int64] | None = None
    labels: Any = None
    groups: Any = None
    lengths: Any = None
    length_group: int = 64
    name: str = "data"

    def __post_init__(self) -> None:
        if not len(self):
            raise DataError(f"the data set {self.name!r} is empty")
        if self.lengths is not None:
            _check_lengths(self.lengths, self.length_group, len(self.source))
        names = getattr(self.source, "column_names", None)
        columns = {name: partial(self._column, name) for name in (names if isinstance(names, list) else ())}
        for what in ("labels", "groups"):
            if (given := getattr(self, what)) is not None:
                found = found_labels(given, what, columns, self._samples, len(self.source))
                object.__setattr__(self, what, found)

    def __len__(self) -> int:
        return len(self.source) if self.rows is None else len(self.rows)

    def take(self, indices: NDArray[np.int64], key: tuple[int, ...] = ()) -> Batch:
        """Read and collate these samples.

        Parameters
        ----------
        key : determines the random numbers that reading draws, such as (seed, rank, step).

        Raises
        ------
        DataError : the samples cannot be collated, or have NaN or infinite numbers.
        """
        numbers = np.asarray(indices if self.rows is None else self.rows[indices]).tolist()
        with seeded(key), read_only_arrays():
            samples = self._read(numbers)
            batch = collated(samples, self.collate, self.name, numbers)
        check_finite(batch, self.name, numbers)
        return batch

    def whole(self, indices: NDArray[np.int64] | None = None) -> _Rows:
        """Return these samples (default: all) for evaluation; they are read in pieces."""
        return _Rows(self, np.arange(len(self)) if indices is None else np.asarray(indices))

    def subset(self, indices: NDArray[np.int64]) -> SampleDataset:
        """Return a data set of these samples, in this order."""
        return replace(self, rows=np.asarray(indices if self.rows is None else self.rows[indices]))

    @property
    def grouping(self) -> Grouping | None:
        """The samples that should be read together; None: they are read in any order."""
        if self.lengths is None:
            return None
        groups = LengthGroups(np.asarray(self.lengths), self.length_group)
        return groups if self.rows is None else groups.of(self.rows)

    @cached_property
    def known_labels(self) -> NDArray[Any] | None:
        """The labels of these samples, shape (n,), if they are known without reading the samples; else None."""
        found = _labels_of(self.source) if self.labels is None else self.labels.indices
        if found is None:
            return None
        labels = np.asarray(found)
        return labels if self.rows is None else labels[self.rows]

    @cached_property
    def targets(self) -> NDArray[Any]:
        """The label of each sample, shape (n,) or (n, k). Unless they are known, all samples are read once."""
        if self.known_labels is not None:
            return self.known_labels
        if targets_of(self.first) is None:
            raise DataError(
                f"the samples of {self.name!r} have no targets, which a partition by labels needs: give labels, or use the "
                "partition 'iid'"
            )
        found = [np.asarray(as_host_array(targets_of(piece))) for piece in self.whole().pieces(64)]
        return np.concatenate(found)

    @property
    def partition_labels(self) -> NDArray[Any]:
        """The label of each sample for a partition by labels."""
        return self.targets

    @property
    def partition_groups(self) -> RowLabels | None:
        """The group of each of these samples; None if there are no groups."""
        return None if self.groups is None else self.groups.take(self.rows)

    @property
    def label_names(self) -> tuple[str, ...] | None:
        """The names of `known_labels`, by index; None if they are not known."""
        return self.classes if self.labels is None else self.labels.names

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes; None for a regression, or if they are not known without reading all samples."""
        names = classes_of(self.source)
        if names is None:
            labels = (self if self._labels_are_targets else replace(self, labels=None)).known_labels
            if labels is not None and labels.dtype.kind in "iu":
                return tuple(map(str, range(int(labels.max()) + 1)))
        return names if self.task == "classification" else None

    @cached_property
    def first(self) -> Batch:
        """A batch of the first sample."""
        return self.take(np.zeros(1, np.int64))

    def largest_target(self) -> int:
        """Return the largest class index; unless the labels are known, all samples are read once."""
        return int((self if self._labels_are_targets else replace(self, labels=None)).targets.max())

    @cached_property
    def _labels_are_targets(self) -> bool:
        """Whether the labels are the class indices of the samples; of given labels, a few are compared with the targets."""
        if self.labels is None:
            return True
        rows = np.unique(np.linspace(0, len(self) - 1, _COMPARED).astype(np.int64))
        targets = targets_of(self.take(rows))
        return targets is not None and np.array_equal(as_host_array(targets), self.labels.take(self.rows).indices[rows])

    def _column(self, name: str) -> Any:
        return as_host_array(self.source[name][:])

    def _samples(self) -> Iterator[Any]:
        """Yield all samples of the source, for a function of a sample; random numbers are the same each time."""
        for number in range(len(self.source)):
            with seeded((number,)):
                (sample,) = self._read([number])
            yield sample

    def _read(self, numbers: list[int]) -> list[Any]:
        many = getattr(self.source, "__getitems__", None)
        if many is not None:
            return list(many(numbers))
        samples = []
        for number in numbers:
            try:
                samples.append(self.source[number])
            except Exception as error:
                error.add_note(f"while sample {number} of the data set {self.name!r} was read")
                raise
        return samples


@dataclass(frozen=True)
class _Rows:
    """Samples of a data set, read in pieces."""

    dataset: SampleDataset
    indices: NDArray[np.int64]

    def pieces(self, rows: int) -> Iterator[Batch]:
        """Yield batches of at most ``rows`` samples. Random numbers are the same each time."""
        for begin in range(0, len(self.indices), rows):
            yield self.dataset.take(self.indices[begin : begin + rows], (begin,))


def _check_lengths(lengths: Any, group: int, samples: int) -> None:
    found = np.asarray(lengths)
    if found.shape != (samples,) or found.dtype.kind not in "iuf" or not np.isfinite(found).all():
        raise DataError(
            f"lengths must be {samples} finite numbers, one for each sample, not an array of {found.dtype}, shape {found.shape}"
        )
    if group < 1:
        raise DataError(f"length_group must be at least 1 sample, not {group}")


def _labels_of(source: Any) -> Any:
    """Return the labels that a data set knows: an attribute, a column, or those of the data set of a torch ``Subset``."""
    for name in _LABELS:
        found = getattr(source, name, None)
        if found is not None and hasattr(found, "__len__") and len(found) == len(source):
            return as_host_array(found)
    columns = getattr(source, "column_names", None)
    if isinstance(columns, list):
        for name in COLUMNS:
            if name in columns:
                return source[name][:]
    inner, indices = getattr(source, "dataset", None), getattr(source, "indices", None)
    if inner is None or indices is None:
        return None
    labels = _labels_of(inner)
    return None if labels is None else np.asarray(labels)[np.asarray(indices)]
