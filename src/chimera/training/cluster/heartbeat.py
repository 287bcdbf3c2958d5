"""Waiting for actors that may hang: whoever gives no sign of life for too long is killed, and so known to be lost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from chimera.core.engine import Engine
from chimera.core.errors import ActorError, RunError, TimeLimitError

_MOST_TIMEOUTS = 1000


class Watch:
    """What waits for refs in the driver of a run.

    Parameters
    ----------
    engine : where the actors run.
    worker_timeout_s : after how many seconds without a sign of life an actor counts as lost.

    Attributes
    ----------
    hung : the names of those that were killed for it.
    alarm : called when the engine's clock has come to ``alarm_s``, also amid a wait; returns the next such time.
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
        for _ in self._patiently():
            left_s = deadline_s - self._engine.now()
            slice_s = min(self._slice_s(), max(left_s, 0.0))
            done, pending = self._engine.wait(asked, count, None if slice_s == math.inf else slice_s)
            if len(done) >= count or not pending or left_s <= 0:
                break
        return done, pending

    def get(self, refs: Any) -> Any:
        """See `Engine.get`."""
        for _ in self._patiently():
            slice_s = self._slice_s()
            if slice_s == math.inf:
                break
            end_s = self._engine.now() + slice_s
            try:
                return self._engine.get(refs, slice_s)
            except TimeLimitError as error:
                if isinstance(error.__cause__, ActorError) or self._engine.now() < end_s:
                    raise  # some other limit than this one
        return self._engine.get(refs)

    def look(self) -> None:
        """Sound the alarm if it is time, and kill whoever hangs."""
        if self._engine.now() >= self.alarm_s:
            self.alarm_s = self.alarm()
        if self._timeout_s < math.inf:
            for actor in self._engine.silent(self._timeout_s):
                self.hung.add(actor.name)
                self._engine.kill(actor)

    def _patiently(self) -> Iterator[None]:
        """Give one turn after the other, and look around between them; give up after very long."""
        began_s = self._engine.now()
        yield
        while True:
            self.look()
            if self._engine.now() - began_s > _MOST_TIMEOUTS * self._timeout_s:
                waited_s = self._engine.now() - began_s
                raise RunError(f"a call did not end within {waited_s:g} s, though everybody gives signs of life")
            yield

    def _slice_s(self) -> float:
        return max(min(self._timeout_s / 4, self.alarm_s - self._engine.now()), 0.0)
