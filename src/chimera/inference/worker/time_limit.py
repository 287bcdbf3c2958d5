"""The time limit of the current work of a process."""

from __future__ import annotations

import time
from collections.abc import Callable

TICK_S = 0.5
"""`TimeLimit.left_s` is called at least this often."""


class TimeLimit:
    """A time limit. Time in which this process itself was stopped does not count.

    Parameters
    ----------
    clock : returns a time in seconds.

    Attributes
    ----------
    what : the work that the limit applies to; empty if there is no limit.
    limit_s : the limit in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.what, self.limit_s = "", 0.0
        self._left_s = self._seen_s = 0.0

    def start(self, what: str, limit_s: float) -> None:
        """Begin with ``limit_s`` seconds from now; 0: there is no limit."""
        self.what, self.limit_s = (what if limit_s else ""), limit_s
        self._left_s, self._seen_s = limit_s, self._clock()

    def stop(self) -> None:
        """End the limit."""
        self.what = ""

    def left_s(self) -> float | None:
        """Return the seconds that are left, at least 0; None if there is no limit."""
        now_s = self._clock()
        self._left_s -= min(now_s - self._seen_s, 2 * TICK_S)
        self._seen_s = now_s
        return max(self._left_s, 0.0) if self.what else None
