"""Wait for actors that may hang: an actor without a heartbeat for too long is killed, and thereby lost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from chimera.core.engine import Engine
from chimera.core.errors import ActorError, RunError, TimeLimitError

_MAX_TIMEOUTS = 1000


class HeartbeatMonitor:
    """Waits for refs in the driver of a run, and kills actors that hang.

    Parameters
    ----------
    engine : the engine on which the actors run.
    worker_timeout_s : seconds without a heartbeat after which an actor counts as lost.

    Attributes
    ----------
    hung : names of the actors that were killed because they hung.
    alarm : called at the time ``alarm_s`` of the engine's clock, also during a wait; returns the time of the next call.
    """

    def __init__(self, engine: Engine, worker_timeout_s: float = math.inf) -> None:
        self._engine, self._timeout_s = engine, worker_timeout_s
        self.hung: set[str] = set()
        self.alarm: Callable[[], float] = lambda: math.inf
        self.alarm_s = math.inf

    def wait(self, refs: Iterable[Any], count: int = 1, timeout_s: float | None = None) -> tuple[list[Any], list[Any]]:
        """See `Engine.wait`."""
        asked = list(refs)
        deadline_s = math.inf if timeout_s is None else self._engine.now() + timeout_s
        for _ in self._wait_attempts():
            left_s = deadline_s - self._engine.now()
            slice_s = min(self._slice_s(), max(left_s, 0.0))
            done, pending = self._engine.wait(asked, count, None if slice_s == math.inf else slice_s)
            if len(done) >= count or not pending or left_s <= 0:
                break
        return done, pending

    def get(self, refs: Any) -> Any:
        """See `Engine.get`."""
        for _ in self._wait_attempts():
            slice_s = self._slice_s()
            if slice_s == math.inf:
                break
            end_s = self._engine.now() + slice_s
            try:
                return self._engine.get(refs, slice_s)
            except TimeLimitError as error:
                if isinstance(error.__cause__, ActorError) or self._engine.now() < end_s:
                    raise  # not caused by this time limit
        return self._engine.get(refs)

    def check(self) -> None:
        """Call the alarm if it is due, and kill hung actors."""
        if self._engine.now() >= self.alarm_s:
            self.alarm_s = self.alarm()
        if self._timeout_s < math.inf:
            for actor in self._engine.silent(self._timeout_s):
                self.hung.add(actor.name)
                self._engine.kill(actor)

    def _wait_attempts(self) -> Iterator[None]:
        """Yield once for each attempt to wait, and check all actors between attempts.

        Raises
        ------
        RunError : too much time has passed although every actor sends heartbeats.
        """
        began_s = self._engine.now()
        yield
        while True:
            self.check()
            if getattr(self._engine, "held", False):  # a call waits for a person
                began_s = self._engine.now()
            if self._engine.now() - began_s > _MAX_TIMEOUTS * self._timeout_s:
                waited_s = self._engine.now() - began_s
                raise RunError(f"a call did not end within {waited_s:g} s, although every actor sends heartbeats")
            yield

    def _slice_s(self) -> float:
        return max(min(self._timeout_s / 4, self.alarm_s - self._engine.now()), 0.0)
