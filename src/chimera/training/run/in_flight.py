"""Rounds in flight: issued by the strategy and not counted yet."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from chimera.strategies.strategy import Round
from chimera.training.cluster.cluster import TrainingCluster
from chimera.training.cluster.heartbeat import HeartbeatMonitor

AHEAD = 16
"""The most rounds that the driver issues before their results arrive."""

_AT_ONCE = 2
"""The rounds that the driver issues and counts together, where the strategy says when that disturbs workers least."""


class InFlight:
    """Issues rounds ahead of their results, so that the driver is off the hot path.

    Parameters
    ----------
    cluster : its ``horizon`` is set before each round.
    monitor : waits for results.

    Attributes
    ----------
    issued : rounds issued so far.
    """

    def __init__(self, cluster: TrainingCluster, monitor: HeartbeatMonitor) -> None:
        self._cluster, self._monitor, self.issued = cluster, monitor, 0
        self._open: deque[Round] = deque()
        # Refs after which the driver wakes, for each round; refs that are not waited for are not kept alive.
        self._moments: deque[Sequence[Any]] = deque()

    def __len__(self) -> int:
        return len(self._open)

    def fill(self, rounds: Iterator[Round], horizon: int) -> None:
        """Issue rounds while there is room, until ``horizon`` rounds have been issued in all.

        Raises
        ------
        ActorLost : an actor died. Rounds issued before still complete.
        """
        while self.issued < horizon and len(self._open) < AHEAD:
            self._cluster.horizon = horizon - self.issued
            made = next(rounds)
            self.issued += made.rounds
            self._moments.append(made.computed if len(self._open) % _AT_ONCE == 0 else ())
            self._open.append(replace(made, computed=()) if made.computed else made)

    def await_some(self) -> int:
        """Wait until a batch of rounds is over; return how many.

        While the driver issues and counts rounds, it takes a core from the workers. So it wakes when workers have just sent
        their results and servers compute. If the strategy does not say when that is, the driver wakes seldom: after half of
        `AHEAD` rounds, or after all rounds in flight if they are fewer.
        """
        count = min(AHEAD // 2, len(self._open))
        if len(self._open) > _AT_ONCE and (computed := self._moments[_AT_ONCE]):
            self._moments[_AT_ONCE] = ()
            self._monitor.wait(computed, len(computed))
            count = _AT_ONCE
        last = self._open[count - 1]
        self._monitor.wait(last.done, len(last.done))
        return count

    def over(self, count: int) -> Iterator[tuple[Round, list[Any]]]:
        """Yield the first ``count`` rounds, each when it is over, with the values of its ``done``."""
        rounds = [self._open.popleft() for _ in range(count)]
        for _ in rounds:
            self._moments.popleft()
        refs = [ref for over in rounds for ref in over.done]
        values: Iterator[Any] | None = None
        with contextlib.suppress(Exception):  # raised again below, after the rounds before it are counted
            values = iter(self._monitor.get(refs))  # one call: each call of `get` costs a round trip on some engines
        for over in rounds:
            yield over, self._monitor.get(over.done) if values is None else [next(values) for _ in over.done]
