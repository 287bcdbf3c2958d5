"""Coded computing (Li et al. 2018, "A Fundamental Tradeoff Between Computation and Communication in Distributed Computing")."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.core.trace import TraceRow
from chimera.strategies.all_reduce import AllReduce
from chimera.strategies.shuffle import Shuffle
from chimera.strategies.shuffled_step import Load, ShuffledStep, by_place
from chimera.strategies.strategy import STRATEGIES, Cluster, Round


@STRATEGIES.register("coded-distributed-computing")
class CodedDistributedComputing(AllReduce):
    """Workers compute blocks several times to send less: an exclusive or serves several at once (Li et al. 2018).

    Each set of r workers computes a block, a batch, and each worker adds up the n-th part of the gradient over all blocks. What
    it lacks comes from those who have it: in a group of r + 1, each sends the others the exclusive or of what each of them
    lacks and the rest have. If all hear what one sends, that is (1 - r / n) / r of all parts of all blocks, and 1 - r / n
    without the code. Then the sums go to all, and each steps its own copy.

    Parameters
    ----------
    copies : how many workers compute each block, r; all if there are fewer.
    coded : whether packets are for several; without it, parts are sent as they are to each who lacks them.
    timeout_s : how long a step waits for everybody's packets before it asks others who hold the same blocks for what is
        missing, and does without those who are late; and then how long for that. Without it, as long as it takes.

    Raises
    ------
    TooFewWorkersError : of `rounds`: nobody who holds a block has answered in time.
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
        self._ahead: tuple[int, ...] = ()  # the places of those who have taken the last step

    def rounds(self, cluster: Cluster) -> Iterator[Round]:
        """Yield one step of all workers a round."""
        first = max(cluster.get([worker.step() for worker in cluster.workers]))
        yield from self.level(cluster)
        self._ahead = tuple(by_place(cluster))
        for number in itertools.count(first):
            shuffle = self._shuffle(len(cluster.dealt))
            step = ShuffledStep(cluster, shuffle, number, self._timeout_s)
            step.map(self._ahead)
            step.complete()
            self._ahead = step.there
            yield Round(step.reduce(), batches=shuffle.count)

    def model(self, cluster: Cluster) -> Sequence[Any]:
        """Return that of somebody who has taken the last step; who has not gets it too."""
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
        """Return one for each block."""
        return self._shuffle(workers).count

    def traced(self, rows: Sequence[TraceRow], cluster: Cluster) -> None:
        """Count what was sent in shuffles."""
        self._load.add(rows, self._shuffle(len(cluster.dealt)))

    def figures(self) -> Mapping[str, Any]:
        """Return what was sent in shuffles, each packet once: bytes, what share of all parts of all blocks, and in theory."""
        return self._load.figures()

    def state(self) -> Mapping[str, Any]:
        """Return what was counted."""
        return self._load.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` returned."""
        self._load.restore(state)

    def _shuffle(self, workers: int) -> Shuffle:
        return Shuffle(workers, min(self._copies, workers), self._coded)
