"""Views of the coordinator's jobs and workers, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from chimera.inference.coordinator.coordinator import Coordinator
from chimera.inference.coordinator.worker_handle import WorkerHandle
from chimera.inference.scheduling.job import Job

PERCENTILES = (50, 90, 95, 99)
MAX_RATES = 100
"""Maximum number of jobs whose rates are compared."""
_MAX_INTEGER = (1 << 53) - 1  # limit of JSON; journals of earlier versions may have larger values


def jobs(leader: Coordinator) -> list[dict[str, Any]]:
    """Return a row per job: its state, progress and options."""
    return [job_row(job) for job in leader.scheduler.jobs.values()]


def rates(leader: Coordinator) -> list[dict[str, Any]]:
    """Return a row per job: its query rate over the last 10 s, and the queries finished since its start.

    ``error`` is its first error, None if it has none.
    """
    now_s = leader.now_s()
    return [
        {"job": job.id, "name": job.accepted.name, "state": state_of(job), "rate": job.rate(now_s),
         "processed": job.finished, "queries": job.queries, "weight": job.weight, "errors": job.errors,
         "error": _error(job)}
        for job in leader.scheduler.jobs.values()
    ]  # fmt: skip


def rates_per_weight(leader: Coordinator) -> dict[str, Any]:
    """Return the rate of each job that has work, per weight and in the unit of the policy, and the fair rate.

    If all these jobs had the fair rate per weight, the sum of their rates would be the same.
    """
    now_s = leader.now_s()
    working = [job for job in leader.scheduler.jobs.values() if not job.ended and (job.waiting or job.running)]
    found = {job.id: job.unit_rate(now_s) for job in working[:MAX_RATES]}
    weights = {job.id: job.weight for job in working[:MAX_RATES]}
    fair = sum(found.values()) / sum(weights.values()) if found else 0.0
    return {"at_s": now_s, "fair": fair, "jobs": {name: rate / weights[name] for name, rate in found.items()}}


def statistics(leader: Coordinator) -> list[dict[str, Any]]:
    """Return a row per job: statistics of the seconds per query."""
    return [
        {"job": job.id, "name": job.accepted.name, "processed": job.finished, **times(job.times)}
        for job in leader.scheduler.jobs.values()
    ]


def workers(leader: Coordinator) -> list[dict[str, Any]]:
    """Return a row per worker: its state, job, batches, number of models in memory, and busy time in seconds."""
    return [
        {"worker": handle.name, "state": handle.state, "job": next(iter(handle.batches), (None,))[0],
         "batches": [list(key) for key in handle.batches], "models": len(handle.loaded),
         "host": handle.host, "error": next(iter(handle.unloadable.values()), _unusual(handle)),
         "busy_s": handle.reported and handle.reported.busy_s, "up_s": handle.reported and handle.reported.up_s}
        for handle in sorted(leader.workers.values(), key=lambda handle: handle.name)
    ]  # fmt: skip


def _error(job: Job) -> str | None:
    """Return the first error of a query, or why the whole job has failed; None without."""
    return job.error or (job.why if job.ended == "failed" else "") or None


def _unusual(handle: WorkerHandle) -> str | None:
    """Return the errors of modules of ``--preload`` that a worker runs without, and warnings of its machine; None without."""
    without = "" if handle.reported is None else handle.reported.without
    return "; ".join(filter(None, (without, handle.warning))) or None


def times(batches: Sequence[tuple[int, float]]) -> dict[str, float | None]:
    """Return mean, standard deviation and percentiles of the seconds per query.

    The time of a batch is divided evenly among its queries.

    Parameters
    ----------
    batches : for each batch, its number of queries and its seconds.
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
    """Return ``serving`` (online, without an end), ``waiting``, ``running``, ``done``, ``failed`` or ``cancelled``."""
    return job.ended or ("serving" if job.open else "waiting" if job.first_s is None else "running")


def job_row(job: Job) -> dict[str, Any]:
    """Return the state, progress and options of a job."""
    accepted = job.accepted
    return {
        "job": job.id,
        "name": accepted.name,
        "state": state_of(job),
        "queries": job.queries,
        "finished": job.finished,
        "errors": job.errors,
        "error": _error(job),
        "max_error_rate": accepted.max_error_rate,
        "weight": job.weight,
        "batch_size": min(job.batch_size, _MAX_INTEGER) or "auto",
        "max_workers": min(job.max_workers, _MAX_INTEGER) or None,
        "batch_timeout_s": job.batch_timeout_s or "auto",
        "reserve": job.reserve,
        "latency_target_s": job.latency_target_s or None,
        "model": accepted.model,
        "why": job.why or None,
        "accepted_s": accepted.at_s,
        "ended_s": job.ended_s,
    }
