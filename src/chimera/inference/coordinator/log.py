"""The log of the coordinator: submissions, changes, loads of models, first errors and ends of jobs.

Texts of clients are written as Python literals, so that they cannot end a line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chimera.inference.coordinator.worker_handle import WorkerHandle
from chimera.inference.journal import records
from chimera.inference.scheduling.job import Job
from chimera.inference.scheduling.scheduler import Scheduler
from chimera.inference.worker.protocol import WorkerState
from chimera.web.logs import status

_NAMES = ("model", "run", "file", "factory")
"""Keys of tables that name the model."""


def log_record(record: records.Record) -> None:
    """Log a record that may interest an operator; of results, only the first error of a job."""
    match record:
        case records.Accepted(job=job, name=name, queries=queries, model=model, open=is_open):
            what = "served" if is_open else f"submitted, with {queries} queries"
            status().info("job %s is %s: name %r, model %s", job, what, name, _model(model))
        case records.Changed(job=job, weight=weight, batch_size=size, max_workers=most):
            status().info("job %s is changed: weight %s, batch size %s, workers %s", job, weight, size, most)
        case records.Committed(job=job, batch=batch, worker=worker, error=error) if error:
            status().warning("job %s has its first error, in batch %d on %s: %r", job, batch, worker, error)
        case records.Closed(job=job):
            status().info("job %s is not served any more", job)
        case records.Dropped(job=job):
            status().info("job %s is deleted", job)
        case _:
            pass


def log_end(job: Job) -> None:
    """Log the end of a job."""
    status().info("job %s is %s: %d of %d queries, %d errors", job.id, job.ended, job.finished, job.queries, job.errors)


def log_loads(handle: WorkerHandle, reported: WorkerState, scheduler: Scheduler) -> None:
    """Log the models that a worker loads, has loaded or could not load since its last report."""
    before = handle.reported.loading if handle.reported is not None else None
    if reported.loading is not None and reported.loading != before:
        status().info("%s loads %s", handle.name, _model_of(reported.loading, scheduler))
    for key in frozenset(reported.loaded) - handle.loaded:
        status().info("%s has loaded %s", handle.name, _model_of(key, scheduler))
    if before is not None and before != reported.loading and before not in reported.loaded:
        status().warning("%s could not load %s", handle.name, _model_of(before, scheduler))


def _model_of(key: str, scheduler: Scheduler) -> str:
    job = next((job for job in reversed(scheduler.jobs.values()) if job.key == key), None)
    return f"a model of no present job ({key})" if job is None else f"the model of job {job.id}, {_model(job.model)}"


def _model(table: Mapping[str, Any]) -> str:
    return f"{table.get('kind')!r} {next((table[key] for key in _NAMES if key in table), '')!r}"
