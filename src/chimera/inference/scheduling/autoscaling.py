"""The number of workers that the waiting queries need. No I/O and no clock."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

from chimera.inference.scheduling.job import Job

QUEUE_S = 5.0
"""Target of the queue time: seconds until all waiting queries would be in a batch."""
SCALE_DOWN_WINDOW_S = 60.0
"""A worker is dismissed when it was not needed for this many seconds."""


def queue_s(jobs: Iterable[Job], workers: int) -> float:
    """Return the seconds until all waiting queries would be in a batch, by the measured times; infinite without workers."""
    total_s = sum(job.estimate_s(job.waiting) or 0.0 for job in jobs if not job.ended)
    return total_s / workers if workers else math.inf if total_s else 0.0


def needed(jobs: Iterable[Job]) -> int:
    """Return the number of workers that bring the queue time to `QUEUE_S`, and at least those that compute now.

    A job counts with at most its ``max_workers``. A job without measured times counts as one worker.
    """
    return sum(_needed_by(job) for job in jobs if not job.ended)


def _needed_by(job: Job) -> int:
    waiting_s = job.estimate_s(job.waiting)
    new = math.ceil((waiting_s or 0.0) / QUEUE_S) if job.waiting else 0
    count = max(new, len(job.serving), 1 if job.waiting else 0)
    return min(count, job.max_workers) if job.max_workers else count


class Autoscaler:
    """Decides the number of workers between bounds. It grows at once. It shrinks to the maximum of `SCALE_DOWN_WINDOW_S`.

    Parameters
    ----------
    count : the number of workers at ``now_s``.
    """

    def __init__(self, count: int, now_s: float) -> None:
        self._needed: deque[tuple[float, int]] = deque([(now_s, count)])

    def wanted(self, needed: int, *, least: int, most: int, now_s: float) -> int:
        """Return the number of workers, from the number that is needed now."""
        while self._needed and self._needed[-1][1] <= needed:  # a later, larger number makes it irrelevant
            self._needed.pop()
        self._needed.append((now_s, needed))
        while self._needed[0][0] < now_s - SCALE_DOWN_WINDOW_S:
            self._needed.popleft()
        return min(max(self._needed[0][1], least), most)
