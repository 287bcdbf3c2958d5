"""One step of coded distributed computing (Li et al. 2018): map, shuffle and reduce, with substitutes for stragglers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from chimera.core.errors import TooFewWorkersError
from chimera.core.trace import TraceRow
from chimera.strategies.cluster import Cluster
from chimera.strategies.shuffle import Shuffle


class ShuffledStep:
    """The state of one step.

    Parameters
    ----------
    cluster : the workers.
    shuffle : blocks of workers and packets between them.
    step : number of the step.
    timeout_s : seconds to wait for the answers to each request; None for no limit.

    Attributes
    ----------
    workers : living workers, by their places among the workers that the data is distributed to.
    there : places of the workers that participate in the step.
    """

    def __init__(self, cluster: Cluster, shuffle: Shuffle, step: int, timeout_s: float | None) -> None:
        self._cluster, self._shuffle, self._step, self._timeout_s = cluster, shuffle, step, timeout_s
        self.workers = by_place(cluster)
        self.there = tuple(self.workers)
        self._places = {worker.name: place for place, worker in self.workers.items()}
        self._packets: dict[int, Any] = {}
        self._results: dict[int, Any] = {}

    def map(self, ahead: Collection[int]) -> None:
        """Start the computation of blocks, and the sending of packets, at all free workers.

        A worker that is not in ``ahead`` first restores the state of one that is.
        """
        self._check()
        numbers = _by_sender(self._shuffle.senders(self.there))
        source = next((self.workers[place] for place in ahead if place in self.workers), None)

        def ask(worker: Any) -> list[Any]:
            place = self._places[worker.name]
            if place not in ahead and source is not None:
                worker.restore(source.state())
            result = worker.map_blocks(self._shuffle, place, self._step)
            # The result is first: an error in `map_blocks` causes errors in the calls after it.
            return [result, *_sent(worker, numbers.get(place, []))]

        received = self._cluster.soonest(list(self.workers.values()), ask, None, self._timeout_s)
        for place, (result, *packets) in ((self._places[name], refs) for name, refs in received.items()):
            self._results[place] = result
            self._packets.update(zip(numbers.get(place, []), packets, strict=True))
        self.there = tuple(self._results)

    def complete(self) -> None:
        """Ask participating workers for the packets that stragglers have not sent, until none is missing.

        Raises
        ------
        TooFewWorkersError : no worker that holds a block has answered in time.
        """
        while True:
            self._check()
            senders = self._shuffle.senders(self.there)
            numbers = _by_sender({n: place for n, place in senders.items() if n not in self._packets})
            if not numbers:
                return
            holders = [self.workers[place] for place in numbers]
            try:
                received = self._cluster.soonest(
                    holders,
                    lambda worker: _sent(worker, numbers[self._places[worker.name]]),  # noqa: B023
                    len(holders),
                    self._timeout_s,
                )
            except TooFewWorkersError:  # other holders may remain
                received = {}
            for name, packets in received.items():
                self._packets.update(zip(numbers[self._places[name]], packets, strict=True))
            self.there = tuple(p for p in self.there if p not in numbers or self.workers[p].name in received)

    def reduce(self) -> list[Any]:
        """Start the sums of the participating workers' parts, and their steps; return refs of small results."""
        sums: list[Any] = []
        for place in self.there:
            needed = [self._packets[number] for number in self._shuffle.needs(place, self.there)]
            parts = self._shuffle.parts(place, self.there)
            sums += self.workers[place].reduced(self.there, *needed, returns=len(parts))
        done = [self.workers[place].step_shuffled(*sums) for place in self.there]
        return [*(self._results[place] for place in self.there), *done]

    def _check(self) -> None:
        if lost := self._shuffle.lost(self.there):
            when = "" if self._timeout_s is None else f" in {self._timeout_s} s"
            raise TooFewWorkersError(
                f"step {self._step}: block {lost[0]} is missing, and none of its holders is alive or has answered{when}: "
                "let copies be more"
            )


class Load:
    """The traffic of shuffles, as a share of all parts of all blocks."""

    def __init__(self) -> None:
        self._sent = self._whole = 0
        self._theory = 0.0

    def add(self, rows: Iterable[TraceRow], shuffle: Shuffle) -> None:
        """Add ended calls; the calls that sum parts show the size of a part."""
        for row in rows:
            self._sent += row.bytes_out if row.call == "shuffled" else 0
            self._whole += shuffle.count * row.bytes_out if row.call == "reduced" else 0
        self._theory = shuffle.load

    def figures(self) -> dict[str, float]:
        """Return bytes, measured share and share in theory. A packet to several workers counts once, as in the paper."""
        share = self._sent / self._whole if self._whole else 0.0
        return {"shuffle_bytes": self._sent, "shuffle_load": share, "shuffle_load_in_theory": self._theory}

    def state(self) -> dict[str, float]:
        """Return the counters."""
        return {"sent": self._sent, "whole": self._whole, "theory": self._theory}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned."""
        self._sent, self._whole, self._theory = state["sent"], state["whole"], state["theory"]


def by_place(cluster: Cluster) -> dict[int, Any]:
    """Return the living workers by their places among the workers that the data is distributed to."""
    places = {name: place for place, name in enumerate(cluster.sharded_workers)}
    return {places[worker.name]: worker for worker in cluster.workers}


def _by_sender(senders: Mapping[int, int]) -> dict[int, list[int]]:
    """Return the numbers of the packets of each sender, by its place."""
    numbers: dict[int, list[int]] = {}
    for number, place in sorted(senders.items()):
        numbers.setdefault(place, []).append(number)
    return numbers


def _sent(worker: Any, numbers: list[int]) -> list[Any]:
    return worker.shuffled(numbers, returns=len(numbers)) if numbers else []
