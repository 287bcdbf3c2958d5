"""The common parts of data sets whose samples are read one by one: collation, checks, facts of the first sample."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np

from chimera.core.batch import Batch, inputs_of, leaves, targets_of
from chimera.core.errors import DataError
from chimera.data.readers.arrays import Task
from chimera.data.sample_lists import has_lists, lists_as_arrays, mismatch_in
from chimera.data.scaling import Scaling

Collate = Callable[[list[Any]], Batch]
"""A function of a list of samples that returns a batch, as for torch's ``DataLoader``."""

COLUMNS = ("label", "labels", "target", "targets")
"""Columns that hold labels, in this order."""


class FirstBatch(ABC):
    """Facts about a data set that its first sample shows.

    Attributes
    ----------
    name : name of the data set in messages and reports.
    features, input_scaling, target_scaling : see `chimera.data.dataset.Dataset`; None unless the samples are rows of a table.
    """

    features: tuple[str, ...] | None = None
    input_scaling: Scaling | None = None
    target_scaling: Scaling | None = None

    name: str

    @property
    @abstractmethod
    def first(self) -> Batch:
        """A batch of the first sample."""

    @property
    @abstractmethod
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes; None for a regression, or if they are not known without reading all samples."""

    @abstractmethod
    def largest_target(self) -> int:
        """Return the largest class index."""

    @property
    def task(self) -> Task:
        """Classification if the targets of the first sample are integers, or if there are none; else regression."""
        target = targets_of(self.first)
        kind = "i" if target is None else np.asarray(as_host_array(target)).dtype.kind
        return "regression" if kind == "f" else "classification"

    @property
    def outputs(self) -> int:
        """The number of outputs of a model for this data. Unless the classes are known, all samples are read once."""
        if self.task == "regression":
            shape = np.asarray(as_host_array(targets_of(self.first))).shape
            return int(shape[-1]) if len(shape) > 1 else 1
        return len(self.classes or ()) or self.largest_target() + 1

    @property
    def input_type(self) -> Literal["float32", "int64"]:
        """The type of the first array of the inputs: integers or real numbers."""
        first = np.asarray(as_host_array(self._first_leaf()))
        return "int64" if first.dtype.kind in "iu" else "float32"

    @property
    def nested(self) -> bool:
        """Whether a batch is another nesting than ``(inputs, targets)`` with one array of inputs."""
        batch = self.first
        return not (isinstance(batch, tuple) and len(batch) == 2 and hasattr(batch[0], "shape"))

    @property
    def outputs_are_known(self) -> bool:
        """Whether `outputs` are known without reading all samples."""
        return self.task == "regression" or self.classes is not None

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of the first array of one input."""
        return tuple(self._first_leaf().shape[1:])

    def _first_leaf(self) -> Any:
        found = next(leaves(inputs_of(self.first)), None)
        if found is None:
            raise DataError(
                f"a batch of {self.name!r}, of type {type(self.first).__name__}, has no array or tensor: give a collate "
                "function that returns a tuple, a mapping or a dataclass"
            )
        return found


def collated(samples: list[Any], collate: Collate | None, name: str, numbers: Sequence[int]) -> Batch:
    """Return samples as a batch; ``collate`` is torch's ``default_collate`` if it is None.

    Without ``collate``, lists of numbers in samples become arrays, such as the columns of a Hugging Face data set.

    Raises
    ------
    DataError : the samples do not fit together; the error names the data set ``name`` and the ``numbers`` of the samples.
    """
    if collate is None:
        from torch.utils.data import default_collate

        collate = default_collate
        if has_lists(samples[0]):
            samples = list(map(lists_as_arrays, samples))
    try:
        batch = collate(samples)
    except (RuntimeError, TypeError, ValueError, KeyError, AttributeError) as error:
        cause = mismatch_in(samples, numbers) or _line(error)
        raise DataError(
            f"samples {numbers[0]} to {numbers[-1]} of {name!r} cannot be collated into a batch: {cause}; give "
            "a collate function, such as one that pads: chimera.SampleDataset(data, collate=function)"
        ) from error
    if type(batch) is not list:
        return batch
    *inputs, last = batch  # default_collate returns tuples as lists
    return (*inputs, last[0] if inputs and type(last) is list and len(last) == 1 else last)


@contextmanager
def read_only_arrays() -> Iterator[None]:
    """Suppress torch's warning about read-only arrays of a data set, such as those in shared memory."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        yield


def check_finite(batch: Batch, name: str, numbers: Sequence[int]) -> None:
    """Raise DataError if a batch has NaN or infinite values; the error names the sample by its number."""
    for leaf in leaves(batch):
        array = np.asarray(as_host_array(leaf))
        if array.dtype.kind != "f" or np.isfinite(array).all():
            continue
        row = int(np.argwhere(~np.isfinite(array))[0, 0])
        where = f"sample {numbers[row]}" if len(array) == len(numbers) else f"one of samples {list(numbers)}"
        raise DataError(f"{where} of {name!r} has NaN or infinite values")


def classes_of(source: Any) -> tuple[str, ...] | None:
    """Return the names of the classes that a data set knows: its attribute ``classes``, or those of its label column."""
    names = getattr(source, "classes", None)
    if isinstance(names, list | tuple) and names:
        return tuple(map(str, names))
    features = getattr(source, "features", None)
    if isinstance(features, dict):
        for name in COLUMNS:
            if (names := getattr(features.get(name), "names", None)) is not None:
                return tuple(map(str, names))
    inner = getattr(source, "dataset", None)
    return None if inner is None or not hasattr(source, "indices") else classes_of(inner)


def as_host_array(value: Any) -> Any:
    """Return a tensor as an array; other values are unchanged."""
    return value.numpy() if hasattr(value, "numpy") else value


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
