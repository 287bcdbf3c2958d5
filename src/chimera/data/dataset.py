"""Data sets in memory, and the types of data that a run trains on."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import DataError
from chimera.data.iterable import IterableSamples
from chimera.data.readers import sources, table
from chimera.data.readers.arrays import Task, as_array, as_inputs, as_targets, label_values
from chimera.data.row_labels import RowLabels
from chimera.data.samples import SampleDataset
from chimera.data.scaling import Scaling


@dataclass(frozen=True, eq=False)
class Dataset:
    """Inputs and targets, one row per sample. `Dataset.of` converts most sources of data.

    The arrays are read-only and C-contiguous. Pickle protocol 5 transfers them out of band, so that an engine can store
    them once in shared memory for all workers.

    Attributes
    ----------
    inputs : float32 features (or int64 indices), shape (n, ...).
    targets : int64 class indices, shape (n,), or float32 values, shape (n,) or (n, k).
    classes : the labels of the class indices, or None for a regression; "0", "1", ... if the indices have no labels.
    labels : the label of each row for partitions by labels and stratified splits, if not the target; an array or
        `RowLabels`.
    groups : the group of each row, for the partition ``by-group``; an array or `RowLabels`.
    label_values : the label of each class in the type of the targets as they were given, in sorted order; None if they were
        class indices. Estimators of scikit-learn learn these labels.
    features : names of the columns of ``inputs``, if known.
    name : name of the data set in messages and reports.
    input_scaling, target_scaling : the scaling that turned raw rows into these, if they were standardized.
    integers : whether the inputs were an array of integers. They may be indices, so only ``standardize=True`` changes them.
    """

    immutable: ClassVar[bool] = True  # so that all workers of a process can share one
    grouping: ClassVar[None] = None  # rows in memory can be read in any order

    inputs: NDArray[Any]
    targets: NDArray[Any]
    classes: tuple[str, ...] | None = None
    features: tuple[str, ...] | None = None
    name: str = "data"
    input_scaling: Scaling | None = None
    target_scaling: Scaling | None = None
    integers: bool = False
    labels: RowLabels | None = None
    groups: RowLabels | None = None
    label_values: tuple[str | int | bool, ...] | None = None

    def __post_init__(self) -> None:
        for what, kinds in {"inputs": ("float32", "int64"), "targets": ("int64", "float32")}.items():
            array = getattr(self, what)
            if not isinstance(array, np.ndarray) or array.dtype.name not in kinds or not array.ndim:
                raise DataError(f"the {what} must be an array of {' or '.join(kinds)}: Dataset.of converts others")
            view = np.ascontiguousarray(array).view()
            view.flags.writeable = False  # as in a worker, where the array is in shared memory
            object.__setattr__(self, what, view)
        if len(self.inputs) != len(self.targets):
            raise DataError(f"there are {len(self.inputs)} inputs but {len(self.targets)} targets")
        if not self.inputs.size or not self.targets.size:
            raise DataError(f"the data set {self.name!r} is empty")
        for what in ("labels", "groups"):
            if (given := getattr(self, what)) is not None:
                object.__setattr__(self, what, RowLabels.of(given, what, len(self.inputs)))
        if self.targets.dtype.kind == "i":
            low, high = int(self.targets.min()), int(self.targets.max())
            if self.classes is None:
                object.__setattr__(self, "classes", tuple(str(index) for index in range(high + 1)))
            if low < 0 or high >= len(self.classes or ()):
                raise DataError(
                    f"class indices range from {low} to {high}: 0 to {len(self.classes or ()) - 1} are allowed"
                )
        elif self.classes is not None:
            raise DataError("a data set with classes needs class indices (int64) as targets")

    @classmethod
    def of(
        cls,
        source: Any,
        *,
        target: table.Target = None,
        task: Task | None = None,
        classes: int | Sequence[str] | None = None,
        header: bool | None = None,
        keep_integers: bool = False,
        like: Dataset | None = None,
        name: str | None = None,
        drop: Sequence[str] = (),
        labels: Any = None,
        groups: Any = None,
    ) -> Dataset:
        """Read a data set from arrays, tensors, lists, a torch data set, a pandas frame, a CSV file or an .npz file.

        Parameters
        ----------
        source : a pair (inputs, targets), a map-style torch ``Dataset`` (read once), a frame, a path, or a `Dataset`.
        target : tables only: the name or the index of the target column, or a list of them; default the last column.
        task : ``"classification"`` or ``"regression"``. By default strings, integers and Booleans are classes and other
            numbers values. Integers from 0 with fewer gaps than classes are class indices already. Other integers are
            labels, which get indices in sorted order.
        classes : the labels in the order of their indices, or the number of classes.
        header : CSV only: whether the first line has the names of the columns; by default it does if no cell in it is a
            number. A line with numbers that may be names, such as years, is refused.
        keep_integers : keep integer inputs, as int64, such as indices into an embedding.
        like : the train part, to read the test part with the same classes and one-hot columns.
        name : name of the data set in messages and reports.
        drop : tables only: names of columns to leave out.
        labels : the labels for partitions by labels, if not the target: one value per row, or a function of a pair
            (input, target). For tables also the name of a column, which remains an input unless ``drop`` names it; a
            function gets a row, a mapping.
        groups : the group of each row, for the partition ``by-group``, given in the same ways. The column is not an input.

        Raises
        ------
        DataError : the data is empty, ragged, of unequal lengths, not finite, or of a kind that cannot be read.
        """
        if isinstance(source, Dataset):
            return source
        source = sources.with_frames(source)
        options = table.TableOptions(target, drop, labels, groups, is_test=like is not None)
        found = sources.pairs(source, options, header=header)
        if len(found) > 1:
            raise DataError(f"{source} holds a train and a test part: read both with Split.of")
        name = name or (sources.name_of(source) if like is None else like.name)
        conversion = Conversion(task, classes, keep_integers, like, name)
        return conversion.dataset(found[0])

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input; ``(784,)`` for a flat image."""
        return self.inputs.shape[1:]

    @property
    def input_type(self) -> Literal["float32", "int64"]:
        """The type of the inputs."""
        return "int64" if self.inputs.dtype.kind == "i" else "float32"

    @property
    def outputs(self) -> int:
        """The number of outputs of a model for this data: the number of classes, or of target columns."""
        if self.classes is not None:
            return len(self.classes)
        return 1 if self.targets.ndim == 1 else int(self.targets.shape[1])

    @property
    def task(self) -> Task:
        """``"classification"`` or ``"regression"``."""
        return "regression" if self.classes is None else "classification"

    def take(self, indices: NDArray[np.int64], key: tuple[int, ...] = ()) -> tuple[NDArray[Any], NDArray[Any]]:  # noqa: ARG002
        """Return copies of the inputs and targets of these rows. Called once per step; ``key`` is not used."""
        return self.inputs.take(indices, axis=0), self.targets.take(indices, axis=0)

    def whole(self, indices: NDArray[np.int64] | None = None) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return inputs and targets of these rows (default: all), for evaluation."""
        return (self.inputs, self.targets) if indices is None else self.take(indices)

    def subset(self, indices: NDArray[np.int64]) -> Dataset:
        """Return a data set of these rows, in this order."""
        inputs, targets = self.take(indices)
        marks = {
            what: given.take(indices) for what in ("labels", "groups") if (given := getattr(self, what)) is not None
        }
        return replace(self, inputs=inputs, targets=targets, **marks)

    @property
    def partition_labels(self) -> NDArray[Any]:
        """The value of each row for a partition by labels: its label, if the data has labels, else its target."""
        return self.targets if self.labels is None else self.labels.indices

    @property
    def partition_groups(self) -> RowLabels | None:
        """The group of each row; None if there are no groups."""
        return self.groups

    @property
    def known_labels(self) -> NDArray[Any] | None:
        """The label of each row for stratified choices, shape (n,); None for a regression without labels."""
        return None if self.labels is None and self.classes is None else self.partition_labels

    @property
    def label_names(self) -> tuple[str, ...] | None:
        """The names of `known_labels`, by index; None if there are none."""
        return self.classes if self.labels is None else self.labels.names

    def values_of(self, what: str) -> NDArray[Any]:
        """Return the ``"inputs"`` or ``"targets"``."""
        return self.inputs if what == "inputs" else self.targets

    def scaled(self, what: str, scaling: Scaling) -> Dataset:
        """Return a data set with scaled ``"inputs"`` or ``"targets"``."""
        key = f"{what.removesuffix('s')}_scaling"
        changed: dict[str, Any] = {what: scaling.apply(self.values_of(what)), key: scaling.after(getattr(self, key))}
        return replace(self, **changed)

    def fingerprint(self) -> str:
        """Return a hash of the content, 64 hexadecimal digits; about 2 GB/s. Equal data has equal fingerprints."""
        content = hashlib.sha256(repr((self.classes, self.features)).encode())
        for array in (self.inputs, self.targets):
            content.update(f"{array.dtype.str}{array.shape}".encode())
            content.update(array.data)
        return content.hexdigest()


@dataclass(frozen=True)
class Conversion:
    """The conversion of raw inputs and targets to a `Dataset`. The fields are arguments of `Dataset.of`."""

    task: Task | None = None
    classes: int | Sequence[str] | None = None
    keep_integers: bool = False
    like: Dataset | None = None
    name: str = "data"

    def dataset(self, raw: sources.Raw) -> Dataset:
        """Return the data set of raw inputs and targets."""
        inputs, targets = raw.inputs, raw.targets
        task, classes, features = self.task, self.classes, None
        if self.like is not None:
            task, classes = self.like.task, self.like.classes
        if sources.is_frame(inputs):
            inputs, features = table.features(inputs, None if self.like is None else self.like.features)
        if hasattr(targets, "isna"):  # a series or a frame
            targets, known = table.target_values(targets)
            classes = known if classes is None and self.task != "regression" else classes
        array, given = as_array(inputs, "inputs"), as_array(targets, "targets")
        targets, names = as_targets(given, task=task, classes=classes)
        return Dataset(
            as_inputs(array, keep_integers=self.keep_integers),
            targets,
            names,
            features,
            self.name,
            integers=array.dtype.kind in "iu",
            labels=raw.labels,
            groups=raw.groups,
            label_values=label_values(given, names),
        )


RowData: TypeAlias = Dataset | SampleDataset
"""A data set whose samples have numbers: in memory, or read one by one."""
TrainingData: TypeAlias = RowData | IterableSamples
"""Any data set: one whose samples have numbers, or one that is read in sequence."""
