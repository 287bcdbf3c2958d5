"""Rounds in flight: issued by the strategy and not counted yet."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from chimera.core.engine import Engine
from chimera.core.errors import ActorLost, RunError
from chimera.strategies.strategy import Round
from chimera.training.cluster.cluster import TrainingCluster
from chimera.training.cluster.heartbeat import HeartbeatMonitor

AHEAD = 16
"""The most rounds that the driver issues before their results arrive."""

_AT_ONCE = 2
"""The rounds that the driver issues and counts together, if the strategy states when this disturbs workers least."""


_CALL_S = 0.5
"""Seconds that the rounds of one call, or those issued ahead, may take: signals, limits of time and displays wait for them."""


_FIRST = 2
"""Rounds that are issued before the time of a round is known: it may be long, and a signal would wait for all of them."""

_CHECK_INTERVAL_S = 1.0


class Pace:
    """The number of rounds that one call of an actor may run, or that are issued ahead, by the time that rounds have taken.

    Attributes
    ----------
    look_s : seconds after which the driver looks for errors of some refs while it waits for others; None in virtual time.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine, self._since_s = engine, engine.now()
        self._limited = engine.servers_in_groups or not engine.virtual_time
        self.look_s = None if engine.virtual_time else _CHECK_INTERVAL_S
        self._rounds = _FIRST

    def limit(self, rounds: int) -> int:
        """Return ``rounds``, or the number for which there is time."""
        return min(rounds, self._rounds) if self._limited else rounds

    def begin(self) -> None:
        """Start to measure."""
        self._since_s = self._engine.now()

    def ended(self, rounds: int) -> None:
        """Count rounds that have ended since the last call of this method."""
        before_s, self._since_s = self._since_s, self._engine.now()
        passed_s = max(self._since_s - before_s, 1e-6)
        self._rounds = max(1, min(2 * self._rounds, int(rounds * _CALL_S / passed_s)))


class InFlight:
    """Issues rounds ahead of their results, so that workers do not wait for the driver.

    Parameters
    ----------
    cluster : its ``horizon`` is set before each round.
    monitor : waits for results.
    pace : limits the rounds of one call.

    Attributes
    ----------
    issued : rounds issued so far.
    """

    def __init__(self, cluster: TrainingCluster, monitor: HeartbeatMonitor, pace: Pace) -> None:
        self._cluster, self._monitor, self._pace, self.issued = cluster, monitor, pace, 0
        self._over = 0
        pace.begin()
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
        while self.issued < horizon and self._has_room():
            self._cluster.horizon = self._pace.limit(horizon - self.issued)
            made = next(rounds)
            self.issued += made.rounds
            self._moments.append(made.computed if len(self._open) % _AT_ONCE == 0 else ())
            self._open.append(replace(made, computed=()) if made.computed else made)

    def _has_room(self) -> bool:
        return len(self._open) < 2 or self.issued - self._over < self._pace.limit(AHEAD)

    def await_some(self) -> int:
        """Wait until a batch of rounds is over; return how many.

        While the driver issues and counts rounds, it takes a core from the workers. So it wakes when workers have just sent
        their results and servers compute. If the strategy does not state this moment, the driver wakes rarely: after half of
        `AHEAD` rounds, or after all rounds in flight if they are fewer. A call of several rounds is awaited on its own.
        """
        count = 1 if self._open[0].rounds > 1 else min(AHEAD // 2, len(self._open))
        if len(self._open) > _AT_ONCE and (computed := self._moments[_AT_ONCE]):
            self._moments[_AT_ONCE] = ()
            self._monitor.wait(computed, len(computed))
            count = _AT_ONCE
        self._await(self._open[count - 1].done)
        return count

    def _await(self, pending: Sequence[Any]) -> None:
        """Wait until all refs are done. Raise an error of one of them at once: others may wait in a group for its actor."""
        while pending:
            try:
                done, pending = self._monitor.wait(pending, len(pending), self._pace.look_s)
            except RunError:  # in virtual time, the driver has not looked for errors while it waited
                limit_s = None if self._pace.look_s is None else 0.0
                while pending:  # in virtual time, `wait` raises the error again when none of the others ends
                    done, pending = self._monitor.wait(pending, 1, limit_s)
                    self._raise_errors(done)
                    if not done:
                        break
                raise
            self._raise_errors(done if pending else ())

    def _raise_errors(self, done: Sequence[Any]) -> None:
        """Raise the first error of calls that are over; the loss of an actor is detected by the others that wait for it."""
        for ref in done:
            with contextlib.suppress(ActorLost):
                self._monitor.get(ref)

    def over(self, count: int) -> Iterator[tuple[Round, list[Any]]]:
        """Yield the first ``count`` rounds, each when it is over, with the values of its ``done``."""
        rounds = [self._open.popleft() for _ in range(count)]
        for _ in rounds:
            self._moments.popleft()
        ended = sum([over.rounds for over in rounds])
        self._over += ended
        self._pace.ended(ended)
        refs = [ref for over in rounds for ref in over.done]
        values: Iterator[Any] | None = None
        with contextlib.suppress(Exception):  # raised again below, after the rounds before it are counted
            values = iter(self._monitor.get(refs))  # one call: each call of `get` costs a round trip on some engines
        for over in rounds:
            yield over, self._monitor.get(over.done) if values is None else [next(values) for _ in over.done]
