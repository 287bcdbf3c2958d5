"""Data in memory: a data set, its split into a train and a test part, and the registry of data sets."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError, DataError
from chimera.core.registry import Registry
from chimera.data.iterable import IterableSamples
from chimera.data.lazy import is_lazy, lazy_dataset, whole_of
from chimera.data.readers import sources, table
from chimera.data.readers.arrays import Task, as_inputs, as_targets
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
    labels : what partitions by labels and stratified splits see of each row, if not the target; an array or `RowLabels`.
    groups : the group of each row, for the partition ``by-group``; an array or `RowLabels`.
    features : names of the columns of ``inputs``, if known.
    name : name of the data set in messages and reports.
    input_scaling, target_scaling : the scaling that turned raw rows into these, if they were standardized.
    """

    immutable: ClassVar[bool] = True  # so that all workers of a process can share one

    inputs: NDArray[Any]
    targets: NDArray[Any]
    classes: tuple[str, ...] | None = None
    features: tuple[str, ...] | None = None
    name: str = "data"
    input_scaling: Scaling | None = None
    target_scaling: Scaling | None = None
    labels: RowLabels | None = None
    groups: RowLabels | None = None

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
            number.
        keep_integers : keep integer inputs, as int64, such as indices into an embedding.
        like : the train part, to read the test part with the same classes and one-hot columns.
        name : name of the data set in messages and reports.
        drop : tables only: names of columns to leave out.
        labels : what partitions by labels see instead of the target: one value per row, or a function of a pair (input,
            target). For tables also the name of a column, which remains an input unless ``drop`` names it; a function gets a
            row, a mapping.
        groups : the group of each row, for the partition ``by-group``, given in the same ways. The column is not an input.

        Raises
        ------
        DataError : the data is empty, ragged, of unequal lengths, not finite, or of a kind that cannot be read.
        """
        if isinstance(source, Dataset):
            return source
        options = table.TableOptions(target, drop, labels, groups, is_test=like is not None)
        found = sources.pairs(source, options, header=header)
        if len(found) > 1:
            raise DataError(f"{source} holds a train and a test part: read both with Split.of")
        name = name or (sources.name_of(source) if like is None else like.name)
        conversion = _Conversion(task, classes, keep_integers, like, name)
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
        """What a partition by labels sees of each row: its label, if the data has labels, else its target."""
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

    def fingerprint(self) -> str:
        """Return a hash of the content, 64 hexadecimal digits; about 2 GB/s. Equal data has equal fingerprints."""
        content = hashlib.sha256(repr((self.classes, self.features)).encode())
        for array in (self.inputs, self.targets):
            content.update(f"{array.dtype.str}{array.shape}".encode())
            content.update(array.data)
        return content.hexdigest()


@dataclass(frozen=True)
class _Conversion:
    """The conversion of raw inputs and targets to a `Dataset`. The fields are arguments of `Dataset.of`."""

    task: Task | None = None
    classes: int | Sequence[str] | None = None
    keep_integers: bool = False
    like: Dataset | None = None
    name: str = "data"

    def dataset(self, raw: sources.Raw) -> Dataset:
        inputs, targets = raw.inputs, raw.targets
        task, classes, features = self.task, self.classes, None
        if self.like is not None:
            task, classes = self.like.task, self.like.classes
        if sources.is_frame(inputs):
            inputs, features = table.features(inputs, None if self.like is None else self.like.features)
        if hasattr(targets, "isna"):  # a series or a frame
            targets, known = table.target_values(targets)
            classes = known if classes is None and self.task != "regression" else classes
        inputs = as_inputs(inputs, keep_integers=self.keep_integers)
        targets, labels = as_targets(targets, task=task, classes=classes)
        return Dataset(inputs, targets, labels, features, self.name, labels=raw.labels, groups=raw.groups)


RowData: TypeAlias = Dataset | SampleDataset
"""A data set whose samples have numbers: in memory, or read one by one."""
TrainingData: TypeAlias = RowData | IterableSamples
"""Any data set: one whose samples have numbers, or one that is read in sequence."""


@dataclass(frozen=True, eq=False)
class Split:
    """A train part and a test part.

    Attributes
    ----------
    train, test : data sets with inputs of the same shape and the same classes.
    """

    train: TrainingData
    test: TrainingData

    def __post_init__(self) -> None:
        if not isinstance(self.train, Dataset) or not isinstance(self.test, Dataset):
            return  # comparing all of them would read all samples
        for what in ("input_shape", "classes", "outputs"):
            ours, theirs = getattr(self.train, what), getattr(self.test, what)
            if ours != theirs:
                raise DataError(f"the train and the test part differ in {what.replace('_', ' ')}: {ours} and {theirs}")

    @classmethod
    def of(
        cls,
        source: Any,
        *,
        test_fraction: float = 0.2,
        seed: int = 0,
        standardize: bool = False,
        scale_target: bool = False,
        limit: int | None = None,
        **reading: Any,
    ) -> Split:
        """Return a split of a source that `Dataset.of` reads, of a pair (train, test) of such sources, or of a `Split`.

        A map-style data set, such as those of torch and Hugging Face, becomes a `SampleDataset`, which is read lazily. (A
        ``TensorDataset`` of inputs and labels is in memory already.)

        Parameters
        ----------
        test_fraction : share of the samples that becomes the test part if there is none; the same share of each class.
        seed : seed of the choice of test samples and of the samples that ``limit`` keeps.
        standardize : give every input feature mean 0 and standard deviation 1, computed on the train part.
        scale_target : the same for the values of a regression. Losses are then in squared standard deviations.
        limit : number of train samples to keep, chosen at random; default all. The test part is not changed.
        reading : further options of `Dataset.of`.
        """
        whole = cls._read(source, reading)
        split = whole if isinstance(whole, Split) else cls._split_off_test(whole, test_fraction, seed)
        if limit is not None:
            split = split.limited(limit, seed)
        return split.standardized(inputs=standardize, targets=scale_target)

    @staticmethod
    def _read(source: Any, reading: dict[str, Any]) -> Split | RowData:
        """Read a source: a train and a test part, or one data set that must still be split."""
        if isinstance(source, Split | Dataset):
            return source
        if is_lazy(source):
            return whole_of(lazy_dataset(source, reading))
        if isinstance(source, tuple | list) and len(source) == 2:
            if any(map(is_lazy, source)):
                of_each = zip(source, (reading, reading | table.NO_LABELS), strict=True)
                return Split(
                    *(lazy_dataset(part, own) if is_lazy(part) else Dataset.of(part, **own) for part, own in of_each)
                )
            frames = all(map(sources.is_frame, source)) and (
                reading.get("target") is not None or list(source[0].columns) == list(source[1].columns)
            )
            if frames or all(isinstance(part, Dataset) or sources.has_own_targets(part) for part in source):
                train = Dataset.of(source[0], **reading)
                if isinstance(source[1], Dataset):
                    return Split(train, _with_classes(source[1], train.classes))
                return Split(train, Dataset.of(source[1], **reading | {"like": train}))
        options = table.TableOptions(**{key: reading.pop(key) for key in table.TableOptions._fields if key in reading})
        found = sources.pairs(source, options, header=reading.pop("header", None))
        reading.setdefault("name", sources.name_of(source))
        train = _Conversion(**reading).dataset(found[0])
        if len(found) == 1:
            return train
        return Split(train, _Conversion(**reading | {"like": train}).dataset(found[1]))

    @classmethod
    def _split_off_test(cls, whole: RowData, test_fraction: float, seed: int) -> Self:
        train, test = split_indices(len(whole), test_fraction, seed, labels=whole.known_labels)
        return cls(whole.subset(train), whole.subset(test))

    def limited(self, samples: int, seed: int = 0) -> Split:
        """Return a split with at most this many train samples, chosen at random; their order is kept."""
        if samples < 1:
            raise ConfigurationError(f"the limit of train samples is {samples}: at least 1 is needed")
        if isinstance(self.train, IterableSamples):
            raise ConfigurationError(f"{self.train.name!r} is read in sequence: set its samples instead of a limit")
        if samples >= len(self.train):
            return self
        kept = _generator(seed, "limit").permutation(len(self.train))[:samples]
        return Split(self.train.subset(np.sort(kept)), self.test)

    def standardized(self, *, inputs: bool = True, targets: bool = False) -> Split:
        """Return a split in which each feature has mean 0 and standard deviation 1 in the train part.

        A constant feature becomes 0. The test part is scaled with the mean and deviation of the train part.
        """
        train, test = dict[str, Any](), dict[str, Any]()
        for what in ["inputs"] * inputs + ["targets"] * targets:
            if not isinstance(self.train, Dataset) or not isinstance(self.test, Dataset):
                raise ConfigurationError(
                    f"{self.train.name!r} is read sample by sample and cannot be standardized: use a transform"
                )
            values = getattr(self.train, what)
            if values.dtype.kind != "f":
                raise ConfigurationError(f"the {what} of {self.train.name!r} are indices, which cannot be standardized")
            scaling = Scaling.of(values)
            for changed, part in ((train, self.train), (test, self.test)):
                key = f"{what.removesuffix('s')}_scaling"
                changed[what] = scaling.apply(getattr(part, what))
                changed[key] = scaling.after(getattr(part, key))
        return Split(replace(self.train, **train), replace(self.test, **test)) if train else self


def split_indices(
    samples: int, test_fraction: float, seed: int, labels: NDArray[Any] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the (train, test) row numbers of a seeded split, each in ascending order.

    With ``labels`` the split is stratified: the number of test samples of each class differs from its exact share by less
    than one. The samples are shuffled, sorted by label, and drawn at equal distances.
    """
    if not 0 < test_fraction < 1:
        raise ConfigurationError(f"test_fraction is {test_fraction}: it must be between 0 and 1")
    if samples < 2:
        raise DataError("one sample alone cannot be split into a train and a test part")
    rng = _generator(seed, "split")
    order = rng.permutation(samples)
    if labels is not None:
        order = order[np.argsort(labels[order], kind="stable")]
    tested = min(max(round(test_fraction * samples), 1), samples - 1)
    drawn = np.floor((np.arange(tested) + rng.random()) * (samples / tested)).astype(np.int64)
    chosen = np.zeros(samples, bool)
    chosen[order[np.minimum(drawn, samples - 1)]] = True
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)


def _generator(seed: int, purpose: str) -> np.random.Generator:
    if seed < 0:
        raise ConfigurationError(f"the seed is {seed}: it must be 0 or more")
    return np.random.default_rng([seed, *purpose.encode()])


def _with_classes(part: Dataset, classes: tuple[str, ...] | None) -> Dataset:
    if part.classes == classes or part.classes is None or classes is None or not set(part.classes) <= set(classes):
        return part
    places = np.array([classes.index(name) for name in part.classes], np.int64)
    return replace(part, targets=places[part.targets], classes=classes)


DATASETS: Registry[Split] = Registry("data set", "chimera.data")
