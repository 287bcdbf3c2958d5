"""The split of data into a train and a test part, and the registry of data sets."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError, DataError
from chimera.core.registry import Registry
from chimera.data.dataset import Conversion, Dataset, RowData, TrainingData
from chimera.data.iterable import IterableSamples
from chimera.data.lazy import divisible_dataset, is_lazy, lazy_dataset
from chimera.data.readers import sources, table
from chimera.data.scaling import Scaling, Standardize, needs_scaling
from chimera.data.table_samples import TableSamples


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
        standardize: Standardize = "auto",
        scale_target: bool = False,
        limit: int | None = None,
        **reading: Any,
    ) -> Split:
        """Return a split of a source that `Dataset.of` reads, of a pair (train, test) of such sources, or of a `Split`.

        A map-style data set, such as those of torch and Hugging Face, becomes a `SampleDataset`, which is read lazily. (A
        ``TensorDataset`` of inputs and labels is in memory already.) So do nested arrays, see `NestedArrays`. A folder is read
        as ``image-folder``, or as ``huggingface`` if the library ``datasets`` wrote it.

        Parameters
        ----------
        test_fraction : share of the samples that becomes the test part if there is none; the same share of each class.
        seed : seed of the choice of test samples and of the samples that ``limit`` keeps.
        standardize : give every input feature mean 0 and standard deviation 1, computed on the train part. ``"auto"``: if the
            inputs are a table, shape (n, k), that `needs_scaling`. A `Split` and arrays of integers stay as they are.
        scale_target : the same for the values of a regression. Losses are then in squared standard deviations.
        limit : number of train samples to keep, chosen at random; default all. The test part is not changed.
        reading : further options of `Dataset.of`.
        """
        if standardize not in (True, False, "auto"):
            raise ConfigurationError(f"standardize must be true, false or 'auto', not {standardize!r}")
        whole = cls._read(sources.with_frames(source), reading)
        split = whole if isinstance(whole, Split) else cls._split_off_test(whole, test_fraction, seed)
        if limit is not None:
            split = split.limited(limit, seed)
        if standardize == "auto":
            standardize = not isinstance(source, Split) and split.needs_scaling()
        return split.standardized(inputs=standardize, targets=scale_target)

    @staticmethod
    def _read(source: Any, reading: dict[str, Any]) -> Split | RowData:
        """Read a source: a train and a test part, or one data set that must still be split."""
        if isinstance(source, Split | Dataset):
            return source
        if is_lazy(source):
            return divisible_dataset(source, reading)
        if isinstance(source, str | os.PathLike) and Path(source).expanduser().is_dir():
            return DATASETS.create(_name_for(Path(source).expanduser()), {"path": os.fspath(source), **reading})
        if isinstance(source, tuple | list) and len(source) == 2:
            if any(map(is_lazy, source)):
                train = lazy_dataset(source[0], reading) if is_lazy(source[0]) else Dataset.of(source[0], **reading)
                reading = reading | table.NO_LABELS
                if sources.is_large_parquet(source[1]) or (isinstance(train, TableSamples) and not is_lazy(source[1])):
                    reading |= {"like": train}
                test = lazy_dataset(source[1], reading) if is_lazy(source[1]) else Dataset.of(source[1], **reading)
                return Split(train, test)
            frames = all(map(sources.is_frame, source)) and (
                reading.get("target") is not None or _are_parts(source[0].columns, source[1].columns)
            )
            if frames or all(isinstance(part, Dataset) or sources.has_own_targets(part) for part in source):
                train = Dataset.of(source[0], **reading)
                if isinstance(source[1], Dataset):
                    return Split(train, _with_classes(source[1], train.classes))
                return Split(train, Dataset.of(source[1], **reading | {"like": train}))
        options = table.TableOptions(**{key: reading.pop(key) for key in table.TableOptions._fields if key in reading})
        found = sources.pairs(source, options, header=reading.pop("header", None))
        reading.setdefault("name", sources.name_of(source))
        train = Conversion(**reading).dataset(found[0])
        if len(found) == 1:
            return train
        return Split(train, Conversion(**reading | {"like": train}).dataset(found[1]))

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

    def needs_scaling(self) -> bool:
        """Return whether the inputs are a table that is not standardized yet, and whose train part `needs_scaling`."""
        train = self.train
        if isinstance(train, Dataset):
            table = len(train.input_shape) == 1 and train.input_type == "float32" and not train.integers
        else:
            table = isinstance(train, TableSamples) and isinstance(self.test, Dataset | TableSamples)
        return table and train.input_scaling is None and needs_scaling(train.values_of("inputs"))  # type: ignore[union-attr]

    def standardized(self, *, inputs: bool = True, targets: bool = False) -> Split:
        """Return a split in which each feature has mean 0 and standard deviation 1 in the train part.

        A constant feature becomes 0. The test part is scaled with the mean and deviation of the train part.
        """
        train, test = self.train, self.test
        for what in ["inputs"] * inputs + ["targets"] * targets:
            if not isinstance(train, Dataset | TableSamples) or not isinstance(test, Dataset | TableSamples):
                raise ConfigurationError(
                    f"{train.name!r} is read sample by sample and cannot be standardized: use a transform"
                )
            if (what == "inputs" and train.input_type == "int64") or (
                what == "targets" and train.task == "classification"
            ):
                raise ConfigurationError(f"the {what} of {train.name!r} are indices, which cannot be standardized")
            scaling = Scaling.of(train.values_of(what))
            train, test = train.scaled(what, scaling), test.scaled(what, scaling)
        return Split(train, test)


def _are_parts(ours: Any, theirs: Any) -> bool:
    """Return whether two frames with these columns are a train and a test part: inputs and targets have no name in common.

    A test part has at least two columns, one of inputs and one of targets.
    """
    has_shared = list(ours) == list(theirs) or any(isinstance(name, str) for name in set(ours) & set(theirs))
    return has_shared and len(theirs) > 1


def _name_for(folder: Path) -> str:
    """Return the name of the data set that reads a folder."""
    written = any((folder / name).is_file() for name in ("dataset_info.json", "dataset_dict.json"))
    return "huggingface" if written else "image-folder"


def split_indices(
    samples: int, test_fraction: float, seed: int, labels: NDArray[Any] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the (train, test) row numbers of a seeded split, each in ascending order.

    With ``labels``, shape (n,), the split is stratified: the number of test samples of each class differs from its exact share
    by less than one. The samples are shuffled, sorted by label, and drawn at equal distances. Labels of shape (n, k) have no
    effect.
    """
    if not 0 < test_fraction < 1:
        raise ConfigurationError(f"test_fraction is {test_fraction}: it must be between 0 and 1")
    if samples < 2:
        raise DataError("one sample alone cannot be split into a train and a test part")
    rng = _generator(seed, "split")
    order = rng.permutation(samples)
    if labels is not None and labels.ndim == 1:
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


DATASETS: Registry[Split] = Registry("data set", "chimera.data", family="datasets")
