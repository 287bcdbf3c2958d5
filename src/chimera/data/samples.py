"""Data sets that are read lazily: samples are read and collated when a worker needs them, and never stacked as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from chimera.core.batch import Batch, targets_of
from chimera.core.errors import DataError
from chimera.data.blocks import Blocks
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
from chimera.data.randomness import seeded

_LABELS = ("targets", "labels")


@dataclass(frozen=True, eq=False)
class SampleDataset(FirstBatch):
    """A map-style data set: ``source[i]`` returns one sample, or ``source.__getitems__(rows)`` a list of samples.

    A sample is what the data set returns, often ``(input, target)`` or a mapping. ``collate`` turns a list of samples into a
    batch. Random numbers that reading draws from `random`, NumPy or torch depend on the ``key`` of `take` alone.

    Attributes
    ----------
    source : the data set, such as a ``torch.utils.data.Dataset``.
    collate : default: torch's ``default_collate``.
    rows : numbers of the samples of ``source`` that belong to this data set; default: all.
    labels : label of each sample of ``source``, for partitions and stratified splits; default: its attribute ``targets`` or
        ``labels``, or its label column; otherwise read from the samples when they are needed.
    name : name of the data set in messages and reports.
    """

    immutable: ClassVar[bool] = True  # so that all workers of a process can share one

    source: Any
    collate: Collate | None = None
    rows: NDArray[np.int64] | None = None
    labels: Any = None
    name: str = "data"

    def __post_init__(self) -> None:
        if not len(self):
            raise DataError(f"the data set {self.name!r} is empty")

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
    def blocks(self) -> Blocks | None:
        """The blocks in which samples should be read; None: in any order."""
        return None

    @cached_property
    def known_labels(self) -> NDArray[Any] | None:
        """The labels of these samples, shape (n,), if they are known without reading the samples; else None."""
        found = self.labels if self.labels is not None else _labels_of(self.source)
        if found is None:
            return None
        labels = np.asarray(found)
        if len(labels) != len(self.source):
            raise DataError(
                f"the data set {self.name!r} has {len(self.source)} samples but {len(labels)} labels: give one per sample"
            )
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
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes; None for a regression, or if they are not known without reading all samples."""
        names = classes_of(self.source)
        if names is None and self.known_labels is not None and self.known_labels.dtype.kind in "iu":
            return tuple(map(str, range(int(self.known_labels.max()) + 1)))
        return names if self.task == "classification" else None

    @cached_property
    def first(self) -> Batch:
        """A batch of the first sample."""
        return self.take(np.zeros(1, np.int64))

    def largest_target(self) -> int:
        """Return the largest class index; unless the labels are known, all samples are read once."""
        return int(self.targets.max())

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
