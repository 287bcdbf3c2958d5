"""The order in which workers read samples. It is a function of the step number, so a resumed run needs no other state."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError, DataError
from chimera.data.grouping import Grouping
from chimera.data.held_out import HeldOut

Indices = NDArray[np.int64]


class Order(Protocol):
    """The samples that one worker reads at each step.

    Attributes
    ----------
    batch_size : samples in each batch.
    steps_per_epoch : number of steps in which all workers together process as many samples as they train on.
    share : number of samples that this worker reads per epoch, on average.
    """

    batch_size: int
    steps_per_epoch: float
    share: float

    def batch(self, step: int) -> Indices:
        """Return the sample indices, shape (batch_size,), of ``step``, counted from 0. The array may be read-only."""


class GlobalOrder:
    """An endless stream of permutations of the data, from which each step takes the next batch of every worker.

    Step t takes ``world_size * batch_size`` samples, and each rank reads its slice of them. So N workers with batches
    of B read in each step the same samples as one worker with batches of N * B. A step may cross the end of one or more
    epochs.

    Parameters
    ----------
    n_samples : number of samples in the data set.
    world_size, rank : number of workers, and the number of this one.
    batch_size : samples per worker and step.
    seed : seed of the permutations; each epoch has its own permutation.
    since, begin : first step of this order, and the number of samples of the stream that were read before it.
    grouping : samples that are read together; default: none.
    """

    __slots__ = (
        "batch_size", "begin", "grouping", "n_samples", "rank", "seed", "share", "since", "steps_per_epoch", "world_size",
    )  # fmt: skip

    def __init__(
        self,
        n_samples: int,
        *,
        world_size: int,
        rank: int,
        batch_size: int,
        seed: int,
        since: int = 0,
        begin: int = 0,
        grouping: Grouping | None = None,
    ) -> None:
        check_order(n_samples, batch_size, seed)
        if not 0 <= rank < world_size:
            raise ConfigurationError(f"rank {rank} is not one of {world_size} workers")
        self.n_samples, self.world_size, self.rank = n_samples, world_size, rank
        self.batch_size, self.seed = batch_size, seed
        self.since, self.begin, self.grouping = since, begin, grouping
        self.steps_per_epoch = n_samples / (world_size * batch_size)
        self.share = n_samples / world_size

    def batch(self, step: int) -> Indices:
        """Return the sample indices of this rank at ``step``."""
        start = self.begin + ((step - self.since) * self.world_size + self.rank) * self.batch_size
        if self.grouping is not None:
            return self.grouping.batch((self.seed,), start, self.batch_size)
        epoch, begin = divmod(start, self.n_samples)
        end = begin + self.batch_size
        permutation = _permutation(self.seed, epoch, self.n_samples)
        if end <= self.n_samples:
            return permutation[begin:end]
        epochs = [_permutation(self.seed, epoch + i, self.n_samples) for i in range(-(-end // self.n_samples))]
        return np.concatenate(epochs)[begin:end]

    def own(self) -> Indices:
        """Return samples that only this rank owns, such as for evaluation; over time the rank reads all samples."""
        return np.arange(self.rank, self.n_samples, self.world_size)


class ShardOrder:
    """An endless stream of permutations of a worker's own samples, cut into batches.

    Parameters
    ----------
    indices : indices of the samples that the worker holds.
    batch_size : samples per step; may be more than the worker holds.
    seed, rank : seed of the permutations; each epoch of each rank has its own permutation.
    steps_per_epoch : steps in which all workers read as many samples as they train on; by default the steps of one pass of this
        worker over its samples.
    kept : indices of further samples, which the worker keeps for its evaluation, see `HeldOut`; default: it is evaluated on the
        samples that it reads.
    grouping : samples that are read together, numbered from 0 by their place in ``indices``, which then ascend. Default: none.
    """

    def __init__(
        self,
        indices: NDArray[Any],
        *,
        batch_size: int,
        seed: int,
        rank: int,
        steps_per_epoch: float | None = None,
        kept: NDArray[Any] | None = None,
        grouping: Grouping | None = None,
    ) -> None:
        check_order(len(indices), batch_size, seed)
        self.indices, self.share, self.kept = indices, float(len(indices)), kept
        self.batch_size, self.seed, self.rank, self.grouping = batch_size, seed, rank, grouping
        self.steps_per_epoch = len(indices) / batch_size if steps_per_epoch is None else steps_per_epoch
        self._epoch, self._shuffled = -1, np.empty(0, np.int64)

    def batch(self, step: int) -> Indices:
        """Return the sample indices of ``step``."""
        size = len(self.indices)
        if self.grouping is not None:
            places = self.grouping.batch((self.seed, self.rank + 1), step * self.batch_size, self.batch_size)
            return self.indices[places].astype(np.int64, copy=False)
        epoch, begin = divmod(step * self.batch_size, size)
        end = begin + self.batch_size
        if end <= size:
            return self._shuffle(epoch)[begin:end]
        return np.concatenate([self._shuffle(epoch + i) for i in range(-(-end // size))])[begin:end]

    def own(self) -> Indices:
        """Return the indices of the samples that the worker holds and reads."""
        return self.indices

    def _shuffle(self, epoch: int) -> Indices:
        if epoch != self._epoch:
            # rank + 1: zeros at the end of a seed are ignored, and rank 0 would share the stream of GlobalOrder
            rng = np.random.default_rng([self.seed, epoch, self.rank + 1])
            self._epoch, self._shuffled = epoch, rng.permutation(self.indices).astype(np.int64, copy=False)
            self._shuffled.flags.writeable = False
        return self._shuffled

    def __reduce__(self) -> tuple[Any, ...]:
        options = {"steps_per_epoch": self.steps_per_epoch, "kept": self.kept, "grouping": self.grouping}
        return _shard_order, (self.indices, self.batch_size, self.seed, self.rank, options)


def _shard_order(indices: NDArray[Any], batch_size: int, seed: int, rank: int, options: dict[str, Any]) -> ShardOrder:
    return ShardOrder(indices, batch_size=batch_size, seed=seed, rank=rank, **options)


@dataclass(frozen=True)
class MultiBlockOrder:
    """The order of a worker that holds several blocks of data, such as for gradient coding.

    By default the worker reads its own block. A call can name another one.

    Attributes
    ----------
    parts : the order of each block, the worker's own block first.
    """

    parts: tuple[Any, ...]

    @property
    def batch_size(self) -> int:
        """See `Order`, here and below."""
        return int(self.parts[0].batch_size)

    @property
    def steps_per_epoch(self) -> float:
        """Return the steps per epoch of its own block."""
        return float(self.parts[0].steps_per_epoch)

    @property
    def share(self) -> float:
        """Return the share of its own block."""
        return float(self.parts[0].share)

    @property
    def rank(self) -> int:
        """Return the rank of the worker."""
        return int(self.parts[0].rank)

    def batch(self, step: int) -> Indices:
        """Return the sample indices of its own block."""
        return self.parts[0].batch(step)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class OwnOrder:
    """The order of a worker whose data the driver does not have. The worker turns it into a `ShardOrder`.

    Attributes
    ----------
    batch_size : samples per step.
    seed : seed of the permutations.
    test_share : share of its samples that the worker keeps for its evaluation, see `HeldOut`; default: none.
    """

    batch_size: int
    seed: int
    test_share: float | None = None

    def of(self, samples: int, rank: int, labels: NDArray[Any] | None = None) -> ShardOrder:
        """Return the order in which the worker of a rank reads its own ``samples`` samples, whose ``labels`` may be known."""
        rows, kept = np.arange(samples), None
        if self.test_share is not None:
            rows, kept = HeldOut(self.test_share, self.seed, samples, labels).divided(rows)
        return ShardOrder(rows, batch_size=self.batch_size, seed=self.seed, rank=rank, kept=kept)


@lru_cache(maxsize=8)  # a process with many workers, such as that of the simulated engine, shuffles only once
def _permutation(seed: int, epoch: int, samples: int) -> Indices:
    permutation = np.random.default_rng([seed, epoch]).permutation(samples)
    permutation.flags.writeable = False
    return permutation


def check_order(samples: int, batch_size: int, seed: int) -> None:
    """Raise DataError if there are no samples, ConfigurationError if batch size or seed are invalid."""
    if samples < 1:
        raise DataError("there is no sample to read")
    if batch_size < 1:
        raise ConfigurationError(f"batch_size is {batch_size}: it must be 1 or more")
    if seed < 0:
        raise ConfigurationError(f"the seed is {seed}: it must be 0 or more")
