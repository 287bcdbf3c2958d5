"""A prefetch queue between actors: the consumer keeps a fixed number of calls in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from chimera.core import call
from chimera.core.errors import ActorLost, TimeLimitError


class PrefetchQueue:
    """Calls in flight on another actor, the producer, for consecutive values of a sequence.

    The number of calls bounds how far the producer can be ahead: a slow consumer gives backpressure. The queue can be
    used only inside calls of an actor.

    Parameters
    ----------
    request : makes the call for the value at a position, and returns its ref.
    stride : distance of consecutive positions.
    ahead : number of calls in flight while the consumer computes.
    seek : called with a position before the first call for it, unless the last value was that of the position before.
    """

    def __init__(
        self, request: Callable[[int], Any], stride: int, ahead: int, seek: Callable[[int], None] | None = None
    ) -> None:
        self._request, self._stride, self._ahead, self._seek = request, stride, ahead, seek
        self._refs: deque[Any] = deque()
        self._position: int | None = None  # position of the first call in flight
        self._next = 0  # position of the next call

    def get(self, position: int, timeout_s: float | None = None) -> Any:
        """Return the value at a position, and request the next ones.

        A call that failed because the producer, or an actor before it, was dead is retried once: the actor may be replaced.

        Raises
        ------
        ActorLost : the retried call failed too.
        TimeLimitError : ``timeout_s`` passed.
        """
        try:
            return self._take(position, timeout_s)
        except ActorLost:
            if self._jumped:
                raise
        return self._take(position, timeout_s)

    def done(self) -> int:
        """Return the number of results, values or errors, that are ready and not yet taken."""
        count = 0
        for ref in self._refs:
            try:
                call.get(ref, timeout_s=0)
            except TimeLimitError:
                break
            except Exception:  # noqa: S110 - the ref is kept, and raises it when the value is taken
                pass
            count += 1
        return count

    def fill(self) -> float:
        """Return the share of the queue that is ready, 0 to 1."""
        return min(self.done() / self._ahead, 1.0) if self._ahead else 0.0

    def clear(self) -> None:
        """Drop all calls in flight."""
        self._refs.clear()
        self._position = None

    def _take(self, position: int, timeout_s: float | None) -> Any:
        self._jumped = position != self._position
        if self._jumped:
            self._refs.clear()
            self._next = position
            if self._seek is not None:
                self._seek(position)
        while len(self._refs) <= self._ahead:
            self._refs.append(self._request(self._next))
            self._next += self._stride
        self._position = None  # if the next line raises, the calls after it are discarded too
        value = call.get(self._refs.popleft(), timeout_s)
        self._position = position + self._stride
        return value
