"""Data sets that are read lazily: samples are read and collated when a worker needs them, and never stacked as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from chimera.core.batch import Batch, inputs_of, leaves, targets_of
from chimera.core.errors import ConfigurationError, DataError
from chimera.data.randomness import seeded
from chimera.data.readers.arrays import Task

Collate = Callable[[list[Any]], Batch]
"""A function of a list of samples that returns a batch, as for torch's ``DataLoader``."""

_LABELS = ("targets", "labels")
_COLUMNS = ("label", "labels", "target", "targets")


@dataclass(frozen=True, eq=False)
class SampleDataset:
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
    features: ClassVar[None] = None
    input_scaling: ClassVar[None] = None
    target_scaling: ClassVar[None] = None

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
        with seeded(key):
            samples = self._read(numbers)
            batch = self._collated(samples, numbers)
        self._check_finite(batch, numbers)
        return batch

    def whole(self, indices: NDArray[np.int64] | None = None) -> _Rows:
        """Return these samples (default: all) for evaluation; they are read in pieces."""
        return _Rows(self, np.arange(len(self)) if indices is None else np.asarray(indices))

    def subset(self, indices: NDArray[np.int64]) -> SampleDataset:
        """Return a data set of these samples, in this order."""
        return replace(self, rows=np.asarray(indices if self.rows is None else self.rows[indices]))

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
        if targets_of(self._first) is None:
            raise DataError(
                f"the samples of {self.name!r} have no targets, which a partition by labels needs: give labels, or use the "
                "partition 'iid'"
            )
        found = [np.asarray(_array(targets_of(piece))) for piece in self.whole().pieces(64)]
        return np.concatenate(found)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes; None for a regression, or if they are not known without reading all samples."""
        names = _classes_of(self.source)
        if names is None and self.known_labels is not None and self.known_labels.dtype.kind in "iu":
            return tuple(map(str, range(int(self.known_labels.max()) + 1)))
        return names if self.task == "classification" else None

    @property
    def task(self) -> Task:
        """Classification if the targets of the first sample are integers, or if there are none; else regression."""
        target = targets_of(self._first)
        kind = "i" if target is None else np.asarray(_array(target)).dtype.kind
        return "regression" if kind == "f" else "classification"

    @property
    def outputs(self) -> int:
        """The number of outputs of a model for this data. Unless the classes are known, all samples are read once."""
        if self.task == "regression":
            shape = np.asarray(_array(targets_of(self._first))).shape
            return int(shape[-1]) if len(shape) > 1 else 1
        return len(self.classes or ()) or int(self.targets.max()) + 1

    @property
    def input_type(self) -> Literal["float32", "int64"]:
        """The type of the first array of the inputs: integers or real numbers."""
        first = np.asarray(_array(next(leaves(inputs_of(self._first)))))
        return "int64" if first.dtype.kind in "iu" else "float32"

    @property
    def is_plain(self) -> bool:
        """Whether inputs are one array, and the number of outputs is known without reading all samples."""
        batch = self._first
        known = self.task == "regression" or self.classes is not None
        return known and isinstance(batch, tuple) and len(batch) == 2 and hasattr(batch[0], "shape")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of the first array of one input."""
        return tuple(next(leaves(inputs_of(self._first))).shape[1:])

    @cached_property
    def _first(self) -> Batch:
        """A batch of the first sample."""
        return self.take(np.zeros(1, np.int64))

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

    def _collated(self, samples: list[Any], numbers: list[int]) -> Batch:
        collate = self.collate
        if collate is None:
            from torch.utils.data import default_collate

            collate = default_collate
        try:
            batch = collate(samples)
        except (RuntimeError, TypeError, ValueError, KeyError) as error:
            raise DataError(
                f"samples {numbers[0]} to {numbers[-1]} of {self.name!r} cannot be collated into a batch: {_line(error)}; if "
                "they differ in length, give a collate function that pads them"
            ) from error
        return tuple(batch) if type(batch) is list else batch  # default_collate returns tuples as lists

    def _check_finite(self, batch: Batch, numbers: Sequence[int]) -> None:
        for leaf in leaves(batch):
            array = np.asarray(_array(leaf))
            if array.dtype.kind != "f" or np.isfinite(array).all():
                continue
            row = int(np.argwhere(~np.isfinite(array))[0, 0])
            where = f"sample {numbers[row]}" if len(array) == len(numbers) else f"one of samples {list(numbers)}"
            raise DataError(f"{where} of {self.name!r} has NaN or infinite values")


@dataclass(frozen=True)
class _Rows:
    """Samples of a data set, read in pieces."""

    dataset: SampleDataset
    indices: NDArray[np.int64]

    def pieces(self, rows: int) -> Iterator[Batch]:
        """Yield batches of at most ``rows`` samples. Random numbers are the same each time."""
        for begin in range(0, len(self.indices), rows):
            yield self.dataset.take(self.indices[begin : begin + rows], (begin,))


def is_map_style(value: Any) -> bool:
    """Return whether a value has the protocol of map-style data sets: ``__len__`` and ``__getitem__``."""
    return hasattr(value, "__len__") and hasattr(value, "__getitem__")


def check_no_loader(source: Any) -> None:
    """Raise ConfigurationError for a data loader, whose batches and order would not be those of the run."""
    if hasattr(source, "dataset") and hasattr(source, "batch_sampler"):
        raise ConfigurationError(
            "a DataLoader has its own batches and order, which workers cannot share: give its data set (loader.dataset), and "
            "batch_size to the run"
        )


def _labels_of(source: Any) -> Any:
    """Return the labels that a data set knows: an attribute, a column, or those of the data set of a torch ``Subset``."""
    for name in _LABELS:
        found = getattr(source, name, None)
        if found is not None and hasattr(found, "__len__") and len(found) == len(source):
            return _array(found)
    columns = getattr(source, "column_names", None)
    if isinstance(columns, list):
        for name in _COLUMNS:
            if name in columns:
                return source[name][:]
    inner, indices = getattr(source, "dataset", None), getattr(source, "indices", None)
    if inner is None or indices is None:
        return None
    labels = _labels_of(inner)
    return None if labels is None else np.asarray(labels)[np.asarray(indices)]


def _classes_of(source: Any) -> tuple[str, ...] | None:
    names = getattr(source, "classes", None)
    if isinstance(names, list | tuple) and names:
        return tuple(map(str, names))
    features = getattr(source, "features", None)
    if isinstance(features, dict):
        for name in _COLUMNS:
            if (names := getattr(features.get(name), "names", None)) is not None:
                return tuple(map(str, names))
    inner = getattr(source, "dataset", None)
    return None if inner is None or not hasattr(source, "indices") else _classes_of(inner)


def _array(value: Any) -> Any:
    return value.numpy() if hasattr(value, "numpy") else value


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
