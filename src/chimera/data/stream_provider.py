"""The provider of data that is read in sequence: the place of each worker in the stream at each step."""

from __future__ import annotations

from dataclasses import dataclass

from chimera.data.iterable import IterableSamples
from chimera.data.provider import DataProvider
from chimera.data.stream import StreamBatch, can_be_sharded


@dataclass(frozen=True)
class StreamOrder:
    """The order of a worker that reads a stream, see `Order`.

    If the data set is divided into shards, each worker reads its own. Otherwise each step takes ``world_size * batch_size``
    samples of one stream, and each worker keeps its slice of them. So N workers read in each step the same samples as
    one worker with batches of N times the size.

    Attributes
    ----------
    samples : samples per epoch.
    since, begin : first step of this order, and the number of samples that were read before it.
    """

    samples: int
    world_size: int
    rank: int
    batch_size: int
    sharded: bool
    since: int = 0
    begin: int = 0

    @property
    def steps_per_epoch(self) -> float:
        """Return the steps in which all workers read as many samples as an epoch has."""
        return self.samples / (self.world_size * self.batch_size)

    @property
    def share(self) -> float:
        """Return the samples that this worker reads per epoch."""
        return self.samples / self.world_size

    def batch(self, step: int) -> StreamBatch:
        """Return the samples of this rank at ``step``."""
        steps = step - self.since
        if self.sharded:
            first = self.begin // self.world_size + steps * self.batch_size
            return StreamBatch(first, self.batch_size, self.rank, self.world_size)
        first = self.begin + (steps * self.world_size + self.rank) * self.batch_size
        return StreamBatch(first, self.batch_size, 0, 1)


@dataclass(frozen=True)
class StreamData(DataProvider):
    """A stream from which all workers read."""

    dataset: IterableSamples
    batch_size: int

    def orders(self, world_size: int, *, since: int = 0, begin: int = 0) -> list[StreamOrder]:
        """Return the order of each worker."""
        sharded = can_be_sharded(self.dataset.source)
        return [
            StreamOrder(len(self.dataset), world_size, rank, self.batch_size, sharded, since, begin)
            for rank in range(world_size)
        ]
