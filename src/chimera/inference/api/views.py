"""What a coordinator tells of its jobs and workers, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from chimera.inference.coordinator.coordinator import Coordinator
from chimera.inference.scheduling.job import Job

PERCENTILES = (50, 90, 95, 99)


def listed(leader: Coordinator) -> list[dict[str, Any]]:
    """Return each job, how far it is, and how it is served."""
    return [_listed(job) for job in leader.scheduler.jobs.values()]


def rates(leader: Coordinator) -> list[dict[str, Any]]:
    """Return for each job its query rate over the last 10 s and the queries processed since its start."""
    now_s = leader.now_s()
    return [
        {"job": job.id, "name": job.accepted.name, "state": state_of(job), "rate": job.rate(now_s),
         "processed": job.finished, "queries": job.queries, "weight": job.weight}
        for job in leader.scheduler.jobs.values()
    ]  # fmt: skip


def statistics(leader: Coordinator) -> list[dict[str, Any]]:
    """Return for each job the processing time per query, in seconds."""
    return [
        {"job": job.id, "name": job.accepted.name, "processed": job.finished, **times(job.times)}
        for job in leader.scheduler.jobs.values()
    ]


def serving(leader: Coordinator) -> list[dict[str, Any]]:
    """Return what each worker does: its state, the job that it serves, its models in memory, and for how long it was busy."""
    return [
        {"worker": seat.name, "state": seat.state, "job": next(iter(seat.has), (None,))[0],
         "batches": [list(key) for key in seat.has], "models": len(seat.loaded),
         "busy_s": seat.told and seat.told.busy_s, "up_s": seat.told and seat.told.up_s}
        for seat in sorted(leader.seats.values(), key=lambda seat: seat.name)
    ]  # fmt: skip


def times(batches: Sequence[tuple[int, float]]) -> dict[str, float | None]:
    """Return mean, standard deviation and percentiles of the seconds per query.

    All queries of a batch count as having taken equally long.

    Parameters
    ----------
    batches : for each its queries, and the seconds that they took.
    """
    names = ["mean_s", "std_s", "median_s", *(f"p{p}_s" for p in PERCENTILES[1:])]
    if not batches:
        return dict.fromkeys(names)
    counts, seconds = np.array(batches, np.float64).T
    each = seconds / counts
    mean = float(np.average(each, weights=counts))
    deviation = float(np.sqrt(np.average((each - mean) ** 2, weights=counts)))
    order = np.argsort(each)
    reached = np.cumsum(counts[order]) / counts.sum()
    found = [float(each[order][np.searchsorted(reached, p / 100 - 1e-12)]) for p in PERCENTILES]
    return dict(zip(names, (mean, deviation, *found), strict=True))


def state_of(job: Job) -> str:
    """Return ``serving`` (queries come as they come), ``waiting``, ``running``, ``done`` or ``cancelled``."""
    return job.ended or ("serving" if job.open else "waiting" if job.first_s is None else "running")


def _listed(job: Job) -> dict[str, Any]:
    accepted = job.accepted
    return {
        "job": job.id,
        "name": accepted.name,
        "state": state_of(job),
        "queries": job.queries,
        "finished": job.finished,
        "errors": job.errors,
        "weight": job.weight,
        "batch_size": job.batch_size or "auto",
        "max_workers": job.max_workers or None,
        "model": accepted.model,
        "why": job.why or None,
        "accepted_s": accepted.at_s,
        "ended_s": job.ended_s,
    }
