"""Coded computing (Li et al. 2018, "A Fundamental Tradeoff Between Computation and Communication in Distributed Computing")."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.core.trace import TraceRow
from chimera.strategies.all_reduce import AllReduce
from chimera.strategies.cluster import Cluster
from chimera.strategies.shuffle import Shuffle
from chimera.strategies.shuffled_step import Load, ShuffledStep, by_place
from chimera.strategies.strategy import STRATEGIES, Round


@STRATEGIES.register("coded-distributed-computing")
class CodedDistributedComputing(AllReduce):
    """Workers compute blocks several times to send less: one coded packet serves several workers at once (Li et al. 2018).

    A block is a batch, and each set of r workers computes one. A step has three parts, for n workers:

    - Map: each worker computes the gradients of its blocks.
    - Shuffle: worker k sums the k-th part of the gradient over all blocks. In each group of r + 1 workers, each worker lacks a
      part that the r others hold. Each worker sends the exclusive or of r segments, one for each other worker: a segment of the
      part that this other worker lacks.
    - Reduce: the sums go to all workers, and each steps its own copy.

    If a packet to several workers counts once, the load is (1 - r / n) / r of all parts of all blocks; without the code it is
    1 - r / n.

    Parameters
    ----------
    copies : number of workers that compute each block, r; default 2, and at most the number of workers.
    coded : whether one packet serves several workers (default). If not, each part is sent directly to each worker that lacks
        it.
    timeout_s : seconds that a step waits for the packets of all workers. After that it drops the stragglers, asks other workers
        that hold the same blocks for the missing packets, and waits as long for these. Default: no limit.

    Raises
    ------
    TooFewWorkersError : raised by `rounds` if no worker that holds a block has answered in time.
    """

    family = "redundant work"
    sends = "peers"
    counts = True
    worker_extensions = ("coded-shuffle",)

    def __init__(self, *, copies: int = 2, coded: bool = True, timeout_s: float | None = None) -> None:
        if copies < 1:
            raise ConfigurationError(f"copies must be at least 1, not {copies}")
        if timeout_s is not None and not timeout_s > 0:
            raise ConfigurationError(f"timeout_s must be above 0, not {timeout_s}")
        self._copies, self._coded, self._timeout_s = copies, coded, timeout_s
        self._load = Load()
        self._ahead: tuple[int, ...] = ()  # places of the workers that have taken the last step

    def rounds(self, cluster: Cluster) -> Iterator[Round]:
        """Yield one step of all workers a round."""
        first = max(cluster.get([worker.step() for worker in cluster.workers]))
        yield from self.level(cluster)
        self._ahead = tuple(by_place(cluster))
        for number in itertools.count(first):
            shuffle = self._shuffle(len(cluster.sharded_workers))
            step = ShuffledStep(cluster, shuffle, number, self._timeout_s)
            step.map(self._ahead)
            step.complete()
            self._ahead = step.there
            yield Round(step.reduce(), batches=shuffle.count)

    def model(self, cluster: Cluster) -> Sequence[Any]:
        """Return the weights of a worker that has taken the last step; copy its state to the workers that have not."""
        workers = by_place(cluster)
        ahead = next((workers[place] for place in self._ahead if place in workers), cluster.workers[0])
        for place in set(workers) - set(self._ahead or workers):
            workers[place].restore(ahead.state())
        return [ahead.weights()]

    def holds(self, workers: int) -> Sequence[Sequence[int]]:
        """Return the blocks of each worker, its own first."""
        shuffle = self._shuffle(workers)
        return [shuffle.held(place) for place in range(workers)]

    def batches_per_round(self, workers: int) -> int:
        """Return one batch for each block."""
        return self._shuffle(workers).count

    def traced(self, rows: Sequence[TraceRow], cluster: Cluster) -> None:
        """Count the bytes sent in shuffles."""
        self._load.add(rows, self._shuffle(len(cluster.sharded_workers)))

    def figures(self) -> Mapping[str, Any]:
        """Return bytes and load of shuffles, and the load in theory. The load is a share of all parts; a packet counts once."""
        return self._load.figures()

    def state(self) -> Mapping[str, Any]:
        """Return the counters of the load."""
        return self._load.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned."""
        self._load.restore(state)

    def _shuffle(self, workers: int) -> Shuffle:
        return Shuffle(workers, min(self._copies, workers), self._coded)
