"""Partitions of the samples among workers."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError, DataError
from chimera.core.registry import Registry

Indices: TypeAlias = NDArray[np.int64]
Uses: TypeAlias = Literal["labels", "groups"]


class Partitioner(Protocol):
    """A function that assigns samples to workers.

    All partitioners but `Replicate` assign each sample to one worker, and at least one sample to each worker.

    Attributes
    ----------
    global_order : whether all workers read from one global stream instead (see `chimera.data.order.GlobalOrder`). Runs with any
        number of workers then read the same samples in the same step. Optional; default False.
    uses : the property of each sample that it gets: ``"labels"`` (the default), ``"groups"``, or None if only their
        number matters.
    """

    def __call__(self, labels: NDArray[Any], world_size: int, rng: np.random.Generator) -> list[Indices]:
        """Return the sample indices of each worker, in rank order.

        Parameters
        ----------
        labels : the labels of the data set, if it has some, else its targets, shape (n,) or (n, k); class indices (integers) if
            the partition depends on classes. For a partition by groups: the index of each sample's group, shape (n,).
        world_size : number of workers.
        rng : source of all randomness.

        Raises
        ------
        DataError : there are fewer samples than workers, or values where the partition needs classes.
        """


PARTITIONERS: Registry[Partitioner] = Registry("partition", "chimera.data", family="partitions")


@PARTITIONERS.register("iid")
@dataclass(frozen=True, kw_only=True)
class Iid:
    """All workers read from one shuffled stream: the parts have equal distributions, and sizes that differ by at most 1."""

    global_order: ClassVar[bool] = True
    uses: ClassVar[Uses | None] = None

    def __call__(self, labels: NDArray[Any], world_size: int, rng: np.random.Generator) -> list[Indices]:
        """Return equal pieces of a random permutation."""
        _check("iid", labels, world_size)
        return np.array_split(rng.permutation(len(labels)), world_size)


@PARTITIONERS.register("contiguous")
@dataclass(frozen=True, kw_only=True)
class Contiguous:
    """Every worker holds one contiguous range of samples; sizes differ by at most 1."""

    uses: ClassVar[Uses | None] = None

    def __call__(self, labels: NDArray[Any], world_size: int, rng: np.random.Generator) -> list[Indices]:  # noqa: ARG002
        """Return equal pieces of 0 to n-1; ``rng`` is not used."""
        _check("contiguous", labels, world_size)
        return np.array_split(np.arange(len(labels)), world_size)


@PARTITIONERS.register("replicate")
@dataclass(frozen=True, kw_only=True)
class Replicate:
    """Every worker holds all samples, and reads them in its own order."""

    uses: ClassVar[Uses | None] = None

    def __call__(self, labels: NDArray[Any], world_size: int, rng: np.random.Generator) -> list[Indices]:  # noqa: ARG002
        """Return 0 to n-1 for all workers, as one shared array; ``rng`` is not used."""
        _check("replicate", labels, world_size, least=0)
        return [np.arange(len(labels))] * world_size


@PARTITIONERS.register("quantity")
@dataclass(frozen=True, kw_only=True)
class Quantity:
    """Quantity skew: equal distributions, but rank r holds a number of samples proportional to (r + 1) ** -exponent.

    Attributes
    ----------
    exponent : exponent of the power law. With 0 all parts are equal; a larger one gives more to the first workers.
    """

    uses: ClassVar[Uses | None] = None

    exponent: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.exponent < math.inf:
            raise ConfigurationError(f"the partition 'quantity' has exponent {self.exponent}: it must be 0 or more")

    def __call__(self, labels: NDArray[Any], world_size: int, rng: np.random.Generator) -> list[Indices]:
        """Return pieces of a random permutation, the largest first."""
        _check("quantity", labels, world_size)
        weights = np.arange(1, world_size + 1, dtype=np.float64) ** -self.exponent
        spare = len(labels) - world_size  # besides the one sample that each worker gets
        bounds = np.rint(np.cumsum(weights) / weights.sum() * spare).astype(np.int64) + np.arange(1, world_size + 1)
        return np.split(rng.permutation(len(labels)), bounds[:-1])


@PARTITIONERS.register("by-group")
@dataclass(frozen=True, kw_only=True)
class ByGroup:
    """Whole groups for each worker, such as the rows of one hospital or writer: no group is divided.

    The groups are those of the data set, such as ``groups = "hospital"`` of its table. They are assigned one by one, the
    largest first, to the worker with the fewest samples. Of equal groups and of equal workers, the seed selects one.

    Attributes
    ----------
    one_per_worker : worker r holds the r-th group, in the order of their names, and no other. A run can then not divide the
        data among another number of workers.
    """

    uses: ClassVar[Uses | None] = "groups"

    one_per_worker: bool = False

    def __call__(self, labels: NDArray[Any], world_size: int, rng: np.random.Generator) -> list[Indices]:
        """Return the samples of each worker's groups, in ascending order."""
        _check("by-group", labels, world_size)
        _, places = np.unique(labels, return_inverse=True)
        sizes = np.bincount(places)
        if len(sizes) < world_size:
            raise DataError(
                f"the partition 'by-group' has {len(sizes)} groups for {world_size} workers: use at most {len(sizes)} workers"
            )
        if self.one_per_worker and len(sizes) != world_size:
            raise DataError(
                f"the partition 'by-group' with one_per_worker has {len(sizes)} groups for {world_size} workers: set "
                f"workers to {len(sizes)}"
            )
        owners = np.arange(len(sizes)) if self.one_per_worker else _balanced_owners(sizes, world_size, rng)
        owner = owners[places]
        return np.split(np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner))[:-1])


def _balanced_owners(sizes: Indices, world_size: int, rng: np.random.Generator) -> Indices:
    """Return the worker of each group: the largest group goes first, to the worker with the fewest samples."""
    shuffled = rng.permutation(len(sizes))
    owners = np.zeros(len(sizes), np.int64)
    heap = [(0, place, worker) for place, worker in enumerate(rng.permutation(world_size).tolist())]  # sorted: a heap
    for group in shuffled[np.argsort(-sizes[shuffled], kind="stable")].tolist():
        samples, place, owners[group] = heap[0]
        heapq.heapreplace(heap, (samples + int(sizes[group]), place, int(owners[group])))
    return owners


@PARTITIONERS.register("by-label")
@dataclass(frozen=True, kw_only=True)
class ByLabel:
    """Shards of the samples sorted by label, some for each worker (McMahan et al. 2017).

    Attributes
    ----------
    shards_per_worker : shards of each worker; with 2, as in the paper, most workers have only two classes.
    """

    shards_per_worker: int = 2

    def __post_init__(self) -> None:
        if self.shards_per_worker < 1:
            raise ConfigurationError(
                f"the partition 'by-label' has shards_per_worker {self.shards_per_worker}: it must be 1 or more"
            )

    def __call__(self, labels: NDArray[Any], world_size: int, rng: np.random.Generator) -> list[Indices]:
        """Cut the samples, sorted by label, into equal shards, and assign these at random."""
        _check_classes("by-label", labels)
        _check("by-label", labels, world_size, least=self.shards_per_worker)
        shuffled = rng.permutation(len(labels))
        ordered = shuffled[np.argsort(labels[shuffled], kind="stable")]
        shards = np.array_split(ordered, world_size * self.shards_per_worker)
        assigned = rng.permutation(len(shards)).reshape(world_size, self.shards_per_worker)
        return [np.concatenate([shards[shard] for shard in numbers]) for numbers in assigned]


@PARTITIONERS.register("dirichlet")
@dataclass(frozen=True, kw_only=True)
class Dirichlet:
    """Label skew: each worker's mixture of classes is drawn from a Dirichlet distribution (Hsu et al. 2019).

    Attributes
    ----------
    alpha : concentration, above 0. A worker's mixture is drawn from Dirichlet(alpha times the shares of the classes in the
        whole data): 100 is close to IID, with 0.1 most workers have one class.
    balanced : whether all workers hold equally many samples, as in the paper. Otherwise each class is divided by
        proportions drawn from Dirichlet(alpha, ..., alpha) (Yurochkin et al. 2019), and sizes are skewed too.
    min_samples : the smallest number of samples of a worker; if a draw gives fewer, samples of the largest part are moved.
    """

    alpha: float = 0.5
    balanced: bool = True
    min_samples: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.alpha < math.inf:
            raise ConfigurationError(f"the partition 'dirichlet' has alpha {self.alpha}: it must be above 0")
        if self.min_samples < 1:
            raise ConfigurationError(
                f"the partition 'dirichlet' has min_samples {self.min_samples}: it must be 1 or more"
            )

    def __call__(self, labels: NDArray[Any], world_size: int, rng: np.random.Generator) -> list[Indices]:
        """Draw the number of samples of each class and worker, and assign the samples of each class at random."""
        _check_classes("dirichlet", labels)
        _check("dirichlet", labels, world_size, least=self.min_samples)
        classes, places = np.unique(labels, return_inverse=True)
        class_sizes = np.bincount(places, minlength=len(classes))
        counts = (self._balanced if self.balanced else self._skewed)(class_sizes, world_size, rng)
        shuffled = rng.permutation(len(labels))
        parts: list[list[Indices]] = [[] for _ in range(world_size)]
        for index in range(len(classes)):
            members = shuffled[places[shuffled] == index]
            for part, piece in zip(parts, np.split(members, np.cumsum(counts[:-1, index])), strict=True):
                part.append(piece)
        return [np.concatenate(part) for part in parts]

    def _balanced(self, class_sizes: Indices, world_size: int, rng: np.random.Generator) -> Indices:
        """Return counts, shape (world_size, classes): equal row sums, drawn without replacement, in rank order."""
        left, counts = class_sizes.copy(), np.zeros((world_size, len(class_sizes)), np.int64)
        sizes = np.diff(class_sizes.sum() * np.arange(world_size + 1) // world_size)
        for rank, size in enumerate(sizes.tolist()):
            mixture = _draw_dirichlet(self.alpha * class_sizes / class_sizes.sum(), rng)
            while size:
                mixture = np.where(left > 0, mixture, 0.0)  # a class without samples left is removed from the mixture
                if mixture.sum() < 1e-9:  # no class of the mixture is left: draw another one from the rest
                    mixture[left > 0] = _draw_dirichlet(self.alpha * left[left > 0] / left.sum(), rng)
                drawn = np.minimum(rng.multinomial(size, mixture / mixture.sum()), left)
                counts[rank] += drawn
                left -= drawn
                size -= int(drawn.sum())
        return counts

    def _skewed(self, class_sizes: Indices, world_size: int, rng: np.random.Generator) -> Indices:
        """Return counts, shape (world_size, classes), each column divided by its own proportions."""
        columns = [
            rng.multinomial(n, _draw_dirichlet(np.full(world_size, self.alpha), rng)) for n in class_sizes.tolist()
        ]
        counts = np.stack(columns, axis=1).astype(np.int64)
        sizes = counts.sum(axis=1)
        for rank in np.flatnonzero(sizes < self.min_samples).tolist():
            while sizes[rank] < self.min_samples:
                largest = int(sizes.argmax())
                label = int(counts[largest].argmax())
                moved = min(self.min_samples - sizes[rank], sizes[largest] - self.min_samples, counts[largest, label])
                counts[[largest, rank], label] += np.array([-moved, moved])
                sizes[[largest, rank]] += np.array([-moved, moved])
        return counts


def _draw_dirichlet(concentration: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw a mixture. If all weights underflow, because the concentration is tiny, return one class, as in the limit."""
    weights = rng.dirichlet(concentration)
    total = weights.sum()
    if np.isfinite(total) and total > 0:
        return np.asarray(weights / total)
    single = np.zeros(len(concentration))
    single[rng.choice(len(concentration), p=concentration / concentration.sum())] = 1.0
    return single


def _check(name: str, labels: NDArray[Any], world_size: int, least: int = 1) -> None:
    if world_size < 1:
        raise ConfigurationError(f"there are {world_size} workers: at least 1 is needed")
    if len(labels) < max(world_size * least, 1):
        each = "one sample" if least <= 1 else f"{least} samples"
        raise DataError(
            f"the partition {name!r} needs at least {each} for each of {world_size} workers, and has {len(labels)}: "
            "use fewer workers or more data"
        )


def _check_classes(name: str, labels: NDArray[Any]) -> None:
    if labels.ndim != 1 or labels.dtype.kind not in "biu":
        raise DataError(
            f"the partition {name!r} needs class labels, and these targets are values ({labels.dtype}, shape {labels.shape}): "
            "give labels, or use 'iid', 'quantity', 'contiguous' or 'replicate'"
        )
