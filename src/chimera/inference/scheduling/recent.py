"""The recently finished work of a job, and its rates."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

WINDOW_S = 10.0
"""Seconds over which a rate is measured."""


@dataclass
class RecentWork:
    """The batches that a job has finished in the last `WINDOW_S`."""

    _batches: deque[tuple[float, int, float]] = field(default_factory=deque)  # time, queries and units
    _queries: int = 0
    _units: float = 0.0

    def add(self, at_s: float, queries: int, units: float) -> None:
        """Note that a batch is finished."""
        self._batches.append((at_s, queries, units))
        self._queries += queries
        self._units += units
        self._expire(at_s)

    def rates(self, now_s: float, first_s: float | None, ended_s: float | None) -> tuple[float, float]:
        """Return the queries and the units finished per second, over the last `WINDOW_S` or since the first dispatch.

        Parameters
        ----------
        first_s, ended_s : time of the first dispatch, and of the end of the job; None if it is in the future.
        """
        self._expire(now_s)
        if first_s is None:
            return 0.0, 0.0
        until_s = now_s if ended_s is None else min(now_s, max(ended_s, now_s - WINDOW_S))
        span_s = max(min(max(until_s - first_s, 1e-9), WINDOW_S), 1.0)
        return self._queries / span_s, self._units / span_s

    def _expire(self, now_s: float) -> None:
        while self._batches and self._batches[0][0] <= now_s - WINDOW_S:
            _, queries, units = self._batches.popleft()
            self._queries -= queries
            self._units -= units
