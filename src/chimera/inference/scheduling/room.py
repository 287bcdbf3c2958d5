"""Room for served models beside jobs: reserved workers, and limits on the time of batches."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from chimera.inference.scheduling.job import Job

BATCHES_PER_TARGET = 3
"""A query may wait for two batches, one that is computed and one that was sent ahead, before its own batch."""


class Room:
    """The served models that have a reservation or a latency target, and the workers that are reserved for them."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._owners: dict[str, Job] = {}  # by reserved worker

    def note(self, job: Job) -> None:
        """Note the present options of a job, or its end."""
        if job.open and not job.ended and (job.reserve or job.latency_target_s):
            self._jobs[job.id] = job
        else:
            self._jobs.pop(job.id, None)

    def reserve(self, workers: Mapping[str, Collection[str]]) -> None:
        """Select the reserved workers. A worker stays reserved as long as possible; at least one worker is not reserved.

        Parameters
        ----------
        workers : the available workers, each with the keys of the models in its memory.
        """
        before, self._owners = self._owners, {}
        for job in self._jobs.values():
            free = [name for name in workers if name not in self._owners]
            free.sort(
                key=lambda name: (before.get(name) is not job, name in before, job.key not in workers[name], name)
            )
            self._owners.update(dict.fromkeys(free[: max(min(job.reserve, len(free) - 1), 0)], job))

    def is_reserved(self, worker: str) -> bool:
        """Return whether a worker is reserved."""
        return worker in self._owners

    def admits(self, worker: str, job: Job) -> bool:
        """Return whether a worker may serve a job, because it is reserved for this job or for none."""
        return self._owners.get(worker, job) is job

    def limit_s(self, job: Job) -> float:
        """Return the maximum expected seconds of a batch of a job; infinite if no latency target applies.

        A target applies to the model itself and, if no worker is reserved for it, to all other jobs.
        """
        if not self._jobs:
            return math.inf
        owners = {owner.id for owner in self._owners.values()}
        targets = (
            each.latency_target_s for each in self._jobs.values()
            if each.latency_target_s and (each is job or each.id not in owners)
        )  # fmt: skip
        return min(targets, default=math.inf) / BATCHES_PER_TARGET
