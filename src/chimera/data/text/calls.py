"""A bounded queue between actors: whoever takes from it keeps so many calls under way, and no more."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from chimera.core import call
from chimera.core.errors import ActorLost, TimeLimitError


class Calls:
    """Calls that are under way on another actor, for values that follow each other.

    That bounds how far the other can be ahead: a slow taker holds it back. Works inside calls of an actor only.

    Parameters
    ----------
    ask : makes the call for what stands at a place, and returns its ref.
    stride : how far the next place is.
    ahead : how many calls are under way while the taker computes.
    enter : called with a place before the first call for it, if the last one was not for the place before.
    """

    def __init__(
        self, ask: Callable[[int], Any], stride: int, ahead: int, enter: Callable[[int], None] | None = None
    ) -> None:
        self._ask, self._stride, self._ahead, self._enter = ask, stride, ahead, enter
        self._refs: deque[Any] = deque()
        self._place: int | None = None  # of the first call under way
        self._next = 0  # the place of the call that is made next

    def get(self, place: int, timeout_s: float | None = None) -> Any:
        """Return what stands at a place, and have the next ones made.

        A call that was made when the other, or somebody behind it, was dead is made once again: that may be mended.

        Raises
        ------
        ActorLost : it is not mended.
        TimeLimitError : ``timeout_s`` passed.
        """
        try:
            return self._got(place, timeout_s)
        except ActorLost:
            if self._fresh:
                raise
        return self._got(place, timeout_s)

    def done(self) -> int:
        """Return how many values, or errors, stand already that nobody has taken."""
        count = 0
        for ref in self._refs:
            try:
                call.get(ref, timeout_s=0)
            except TimeLimitError:
                break
            except Exception:  # noqa: S110 - it is not lost: the ref stays, and raises it where the value is taken
                pass
            count += 1
        return count

    def fill(self) -> float:
        """Return the share of the queue that stands, 0 to 1."""
        return min(self.done() / self._ahead, 1.0) if self._ahead else 0.0

    def clear(self) -> None:
        """Forget all calls that are under way."""
        self._refs.clear()
        self._place = None

    def _got(self, place: int, timeout_s: float | None) -> Any:
        self._fresh = place != self._place
        if self._fresh:
            self._refs.clear()
            self._next = place
            if self._enter is not None:
                self._enter(place)
        while len(self._refs) <= self._ahead:
            self._refs.append(self._ask(self._next))
            self._next += self._stride
        self._place = None  # until the value is there, nothing is known of the calls after it
        value = call.get(self._refs.popleft(), timeout_s)
        self._place = place + self._stride
        return value
