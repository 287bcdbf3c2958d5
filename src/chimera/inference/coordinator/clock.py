"""The clock of a coordinator: the wall clock, which never goes back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class SteadyClock:
    """Returns the wall-clock time in seconds. If the wall clock is set back, the returned time continues to grow.

    Otherwise, after a step back, rates of jobs would count finished queries repeatedly. Steps forward change the returned time.

    Parameters
    ----------
    wall, monotonic : the clocks.
    """

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._lock = threading.Lock()
        self._last_s, self._at_s = wall(), monotonic()

    def __call__(self) -> float:
        """Return the time. Any thread may call it."""
        with self._lock:
            now_s = self._monotonic()
            self._last_s = max(self._wall(), self._last_s + now_s - self._at_s)
            self._at_s = now_s
            return self._last_s
