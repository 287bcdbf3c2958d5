"""In which order samples are read. Stateless: the step number says everything, so that resuming needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError, DataError
from chimera.data.dataset import Dataset
from chimera.data.partition import Partitioner

Indices = NDArray[np.int64]


class Order(Protocol):
    """The samples that one worker reads at each step.

    Attributes
    ----------
    batch_size : how many samples a batch has; always.
    steps_per_epoch : after how many steps all workers together have processed as many samples as the data set has.
    share : how many of the samples are this worker's, on average.
    """

    batch_size: int
    steps_per_epoch: float
    share: float

    def batch(self, step: int) -> Indices:
        """Return the sample numbers, shape (batch_size,), of ``step``, from 0; possibly read-only."""


class DealtOrder:
    """One endless stream of permutations of the data, from which each step takes the next batch for every worker.

    Step t takes ``world_size * batch_size`` samples, and each rank its slice of them: N workers with batches of B read at
    each step exactly what one worker with batches of N * B reads. A step may go over the end of an epoch, or several.

    Parameters
    ----------
    n_samples : how many samples the data set has.
    world_size, rank, batch_size : how many workers, which of them, and how many samples each takes a step.
    seed : of the permutations; each epoch has its own.
    since, begin : the step from which on they deal so, and how many samples of the stream were dealt before it.
    """

    __slots__ = ("batch_size", "begin", "n_samples", "rank", "seed", "share", "since", "steps_per_epoch", "world_size")

    def __init__(
        self, n_samples: int, *, world_size: int, rank: int, batch_size: int, seed: int, since: int = 0, begin: int = 0
    ) -> None:
        _check(n_samples, batch_size, seed)
        if not 0 <= rank < world_size:
            raise ConfigurationError(f"rank {rank} is none of {world_size} workers")
        self.n_samples, self.world_size, self.rank = n_samples, world_size, rank
        self.batch_size, self.seed = batch_size, seed
        self.since, self.begin = since, begin
        self.steps_per_epoch = n_samples / (world_size * batch_size)
        self.share = n_samples / world_size

    def batch(self, step: int) -> Indices:
        """Return the sample numbers of this rank at ``step``."""
        dealt = self.begin + ((step - self.since) * self.world_size + self.rank) * self.batch_size
        epoch, begin = divmod(dealt, self.n_samples)
        end = begin + self.batch_size
        permutation = _permutation(self.seed, epoch, self.n_samples)
        if end <= self.n_samples:
            return permutation[begin:end]
        epochs = [_permutation(self.seed, epoch + i, self.n_samples) for i in range(-(-end // self.n_samples))]
        return np.concatenate(epochs)[begin:end]

    def own(self) -> Indices:
        """Return a share of the samples that is no other rank's, though this one reads them all in time."""
        return np.arange(self.rank, self.n_samples, self.world_size)


class ShardOrder:
    """An endless stream of permutations of a worker's own samples, cut into batches.

    Parameters
    ----------
    indices : the numbers of the samples that the worker holds.
    batch_size : how many it takes a step; may be more than it holds.
    seed, rank : of the permutations; each epoch of each rank has its own.
    steps_per_epoch : steps for a pass over the whole data by all workers; without it, over these samples by this one.
    """

    def __init__(
        self, indices: NDArray[Any], *, batch_size: int, seed: int, rank: int, steps_per_epoch: float | None = None
    ) -> None:
        _check(len(indices), batch_size, seed)
        self.indices, self.share = indices, float(len(indices))
        self.batch_size, self.seed, self.rank = batch_size, seed, rank
        self.steps_per_epoch = len(indices) / batch_size if steps_per_epoch is None else steps_per_epoch
        self._epoch, self._shuffled = -1, np.empty(0, np.int64)

    def batch(self, step: int) -> Indices:
        """Return the sample numbers of ``step``."""
        size = len(self.indices)
        epoch, begin = divmod(step * self.batch_size, size)
        end = begin + self.batch_size
        if end <= size:
            return self._shuffle(epoch)[begin:end]
        return np.concatenate([self._shuffle(epoch + i) for i in range(-(-end // size))])[begin:end]

    def own(self) -> Indices:
        """Return the numbers of the samples that the worker holds."""
        return self.indices

    def _shuffle(self, epoch: int) -> Indices:
        if epoch != self._epoch:
            # rank + 1: zeros at the end of a seed are ignored, and rank 0 would share the stream of DealtOrder
            rng = np.random.default_rng([self.seed, epoch, self.rank + 1])
            self._epoch, self._shuffled = epoch, rng.permutation(self.indices).astype(np.int64, copy=False)
            self._shuffled.flags.writeable = False
        return self._shuffled

    def __reduce__(self) -> tuple[Any, ...]:
        return _shard_order, (self.indices, self.batch_size, self.seed, self.rank, self.steps_per_epoch)


def _shard_order(indices: NDArray[Any], batch_size: int, seed: int, rank: int, steps_per_epoch: float) -> ShardOrder:
    return ShardOrder(indices, batch_size=batch_size, seed=seed, rank=rank, steps_per_epoch=steps_per_epoch)


@dataclass(frozen=True)
class HeldOrder:
    """The order of a worker that holds the data of others too: it reads its own, unless it is asked for theirs.

    Attributes
    ----------
    parts : the orders of all whose data it holds, its own first.
    """

    parts: tuple[Any, ...]

    @property
    def batch_size(self) -> int:
        """See `Order`, here and below."""
        return int(self.parts[0].batch_size)

    @property
    def steps_per_epoch(self) -> float:
        """Return that of its own."""
        return float(self.parts[0].steps_per_epoch)

    @property
    def share(self) -> float:
        """Return that of its own."""
        return float(self.parts[0].share)

    @property
    def rank(self) -> int:
        """Return its own."""
        return int(self.parts[0].rank)

    def batch(self, step: int) -> Indices:
        """Return the sample numbers of its own."""
        return self.parts[0].batch(step)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class OwnOrder:
    """The order of a worker whose data only it knows; it is made where they are.

    Attributes
    ----------
    batch_size : how many samples a step takes.
    seed : of the permutations.
    """

    batch_size: int
    seed: int

    def of(self, samples: int, rank: int) -> ShardOrder:
        """Return the order in which the worker of a rank reads so many samples of its own."""
        return ShardOrder(np.arange(samples), batch_size=self.batch_size, seed=self.seed, rank=rank)


def orders(
    partitioner: Partitioner,
    dataset: Dataset,
    world_size: int,
    batch_size: int,
    seed: int,
    *,
    since: int = 0,
    begin: int = 0,
) -> list[Order]:
    """Return the order of each worker, in rank order.

    ``since`` and ``begin`` are for data that is dealt anew amid a run (see `DealtOrder`); where each worker has samples of
    its own, all are parted anew, and the steps only count on.

    Raises
    ------
    DataError : the data cannot be parted so: fewer samples than workers, or values where classes are needed.
    ConfigurationError : what the partitioner returns is not one array of sample numbers for each worker.
    """
    samples = len(dataset)
    _check(samples, batch_size, seed)
    rng = np.random.default_rng([seed, *b"partition"])
    parts = checked_parts(partitioner(dataset.targets, world_size, rng), world_size, samples)
    if getattr(partitioner, "dealt", False):
        return [
            DealtOrder(
                samples,
                world_size=world_size,
                rank=rank,
                batch_size=batch_size,
                seed=seed,
                since=since,
                begin=begin,
            )
            for rank in range(world_size)
        ]
    steps = samples / (world_size * batch_size)
    small = np.int32 if samples <= np.iinfo(np.int32).max else np.int64
    narrow: dict[int, NDArray[Any]] = {id(part): part.astype(small) for part in parts}  # replicas share one array
    return [
        ShardOrder(narrow[id(part)], batch_size=batch_size, seed=seed, rank=rank, steps_per_epoch=steps)
        for rank, part in enumerate(parts)
    ]


def checked_parts(parts: Sequence[Any], world_size: int, samples: int) -> list[Indices]:
    """Return the parts as arrays, one object where the partitioner gave one; anybody may have written it."""
    if len(parts) != world_size:
        raise ConfigurationError(
            f"the partition makes {len(parts)} parts for {world_size} workers: it must return one array for each"
        )
    arrays = {id(part): np.asarray(part) for part in parts}
    for rank, part in enumerate(arrays[id(part)] for part in parts):
        if part.ndim != 1 or not part.size or part.dtype.kind not in "iu":
            raise ConfigurationError(
                f"the partition gives worker {rank} an array of {part.dtype}, shape {part.shape}: it must be whole numbers, "
                "one sample's or more, in one dimension"
            )
        if part.min() < 0 or part.max() >= samples:
            raise ConfigurationError(
                f"the partition gives worker {rank} samples from {part.min()} to {part.max()}, and there are 0 to {samples - 1}"
            )
    return [arrays[id(part)] for part in parts]


@lru_cache(maxsize=8)  # a process that holds many workers, as the simulated engine does, shuffles once for all
def _permutation(seed: int, epoch: int, samples: int) -> Indices:
    permutation = np.random.default_rng([seed, epoch]).permutation(samples)
    permutation.flags.writeable = False
    return permutation


def _check(samples: int, batch_size: int, seed: int) -> None:
    if samples < 1:
        raise DataError("there is no sample to read")
    if batch_size < 1:
        raise ConfigurationError(f"batch_size is {batch_size}: it must be 1 or more")
    if seed < 0:
        raise ConfigurationError(f"the seed is {seed}: it must be 0 or more")
