"""Coded distributed computing (Li et al. 2018, "A Fundamental Tradeoff Between Computation and Communication ...")."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from chimera.core.errors import ConfigurationError, TooFewWorkersError
from chimera.core.trace import TraceRow
from chimera.strategies.all_reduce import AllReduce
from chimera.strategies.shuffle import Shuffle
from chimera.strategies.strategy import STRATEGIES, Cluster, Round

Places: TypeAlias = tuple[int, ...]


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

    def __init__(self, *, copies: int = 2, coded: bool = True, timeout_s: float | None = None) -> None:
        if copies < 1:
            raise ConfigurationError(f"copies must be at least 1, not {copies}")
        if timeout_s is not None and not timeout_s > 0:
            raise ConfigurationError(f"timeout_s must be above 0, not {timeout_s}")
        self._copies, self._coded, self._timeout_s = copies, coded, timeout_s
        self._sent, self._whole, self._theory = 0, 0, 0.0
        self._there: Places = ()  # who has taken the last step

    def rounds(self, cluster: Cluster) -> Iterator[Round]:
        """Yield one step of all workers a round."""
        first = max(cluster.get([worker.step() for worker in cluster.workers]))
        yield from self.level(cluster)
        self._there = tuple(_by_place(cluster))
        for step in itertools.count(first):
            yield Round(self._stepped(cluster, step), batches=self._shuffle(len(cluster.dealt)).count)

    def model(self, cluster: Cluster) -> Sequence[Any]:
        """Return that of somebody who has taken the last step; who has not gets it too."""
        workers = _by_place(cluster)
        ahead = next((workers[place] for place in self._there if place in workers), cluster.workers[0])
        for place in set(workers) - set(self._there or workers):
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
        """Count what was sent in shuffles, and how large all parts of all blocks are, as the sums of one say."""
        shuffle = self._shuffle(len(cluster.dealt))
        self._theory = shuffle.load
        self._sent += sum(row.bytes_out for row in rows if row.call == "shuffled")
        self._whole += shuffle.count * sum(row.bytes_out for row in rows if row.call == "reduced")

    def figures(self) -> Mapping[str, Any]:
        """Return what was sent in shuffles, each packet once: bytes, what share of all parts of all blocks, and in theory."""
        load = self._sent / self._whole if self._whole else 0.0
        return {"shuffle_bytes": self._sent, "shuffle_load": load, "shuffle_load_in_theory": self._theory}

    def state(self) -> Mapping[str, Any]:
        """Return what was counted."""
        return {"sent": self._sent, "whole": self._whole, "theory": self._theory}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` returned."""
        self._sent, self._whole, self._theory = state["sent"], state["whole"], state["theory"]

    def _shuffle(self, workers: int) -> Shuffle:
        return Shuffle(workers, min(self._copies, workers), self._coded)

    def _stepped(self, cluster: Cluster, step: int) -> list[Any]:
        """Let those who are free take a step, with the weights of the last one; return what stands when it is over."""
        shuffle, workers = self._shuffle(len(cluster.dealt)), _by_place(cluster)
        places = {worker.name: place for place, worker in workers.items()}
        self._check(shuffle, tuple(workers), step)
        numbers = _by_sender(shuffle.senders(tuple(workers)))

        def ask(worker: Any) -> list[Any]:
            place = places[worker.name]
            if place not in self._there:
                worker.restore(workers[self._there[0]].state())
            mapped = worker.map_blocks(shuffle, place, step)
            return [*_packets(worker, numbers.get(place, [])), mapped]

        came = cluster.soonest(list(workers.values()), ask, None, self._timeout_s)
        told = {places[name]: refs[-1] for name, refs in came.items()}
        packets = {
            number: ref
            for name, refs in came.items()
            for number, ref in zip(numbers.get(places[name], []), refs[:-1], strict=True)
        }
        self._there = there = self._completed(cluster, step, tuple(told), packets)
        sums: list[Any] = []
        for place in there:
            needed = [packets[number] for number in shuffle.needs(place, there)]
            sums += workers[place].reduced(there, *needed, returns=len(shuffle.parts(place, there)))
        return [*(workers[place].step_shuffled(*sums) for place in there), *(told[place] for place in there)]

    def _completed(self, cluster: Cluster, step: int, there: Places, packets: dict[int, Any]) -> Places:
        """Ask those at these places for the packets that are missing; return who is left, for whom there are enough."""
        shuffle, workers = self._shuffle(len(cluster.dealt)), _by_place(cluster)
        places = {worker.name: place for place, worker in workers.items()}
        while True:
            self._check(shuffle, there, step)
            senders = shuffle.senders(there)
            asked = _by_sender({number: place for number, place in senders.items() if number not in packets})
            if not asked:
                return there

            def ask(worker: Any, asked: Mapping[int, list[int]] = asked) -> list[Any]:
                return _packets(worker, asked[places[worker.name]])

            try:
                came = cluster.soonest([workers[place] for place in asked], ask, len(asked), self._timeout_s)
            except TooFewWorkersError:  # there may be others still
                came = {}
            for name, refs in came.items():
                packets.update(zip(asked[places[name]], refs, strict=True))
            there = tuple(place for place in there if place not in asked or workers[place].name in came)

    def _check(self, shuffle: Shuffle, there: Places, step: int) -> None:
        if lost := shuffle.lost(there):
            when = "" if self._timeout_s is None else f" in {self._timeout_s} s"
            raise TooFewWorkersError(
                f"step {step}: block {lost[0]} is missing, and nobody who holds it is there or has answered{when}: "
                "let copies be more"
            )


def _by_place(cluster: Cluster) -> dict[int, Any]:
    """Return the living workers by their places among those that the data is dealt to."""
    places = list(cluster.dealt)
    return {places.index(worker.name): worker for worker in cluster.workers}


def _by_sender(senders: Mapping[int, int]) -> dict[int, list[int]]:
    """Return the numbers of the packets that each is to send, by its place."""
    numbers: dict[int, list[int]] = {}
    for number, place in sorted(senders.items()):
        numbers.setdefault(place, []).append(number)
    return numbers


def _packets(worker: Any, numbers: list[int]) -> list[Any]:
    return worker.shuffled(numbers, returns=len(numbers)) if numbers else []
