"""Operations on jobs: submit, change and cancel. They check their arguments, and record the operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chimera.core.errors import ConfigurationError, ConflictError, DataError, UnavailableError
from chimera.inference.api.options import (
    check_name,
    checked_batch_size,
    checked_batch_timeout,
    checked_max_error_rate,
    checked_max_workers,
    checked_model,
    checked_weight,
)
from chimera.inference.coordinator.coordinator import Coordinator, NotCoordinator
from chimera.inference.coordinator.worker_handle import WorkerHandle
from chimera.inference.journal import records
from chimera.inference.pieces import check_key
from chimera.inference.scheduling.job import Job
from chimera.inference.scheduling.scheduler import Scheduler


def submit(
    leader: Coordinator,
    *,
    key: str,
    model: Mapping[str, Any],
    queries: Sequence[Any],
    name: str | None = None,
    weight: float = 1.0,
    batch_size: int | str = "auto",
    max_workers: int | None = None,
    batch_timeout_s: float | str = "auto",
    max_error_rate: float = 1.0,
) -> str:
    """Accept a job, and return its number.

    Parameters
    ----------
    key : chosen by the client, of 1 to 100 letters, digits, '-', '_' and '.'. A request with the key, the model and the
        options of an existing job returns the number of that job, so that a retry submits nothing twice.
    model : table of the model.
    queries : values that `chimera.engines.http.wire` can pack.
    name : see `chimera.inference.api.options.check_name`; default: the number of this job.
    max_error_rate : the job fails as soon as a larger fraction of its queries has errors. If all have, it fails in any case.

    Raises
    ------
    DataError : there are no queries.
    ConfigurationError : the model or an option is invalid.
    """
    if not queries:
        raise DataError("a job needs at least one query")
    options: dict[str, Any] = {
        "name": name, "weight": weight, "batch_size": batch_size, "max_workers": max_workers,
        "batch_timeout_s": batch_timeout_s, "max_error_rate": max_error_rate,
    }  # fmt: skip
    number, count = begin(leader, key=key, model=model, **options)
    if number is not None:
        if count != len(queries):
            raise ConflictError(
                f"the key {key!r} is that of job {number}, which has {count} queries, not {len(queries)}"
            )
        return number
    try:
        leader.submissions.put(key, 0, queries)
        return leader.submissions.accept(key, len(queries))
    except NotCoordinator:  # the client repeats the request at the next coordinator
        raise
    except BaseException:
        leader.submissions.discard(key)
        raise


def begin(
    leader: Coordinator,
    *,
    key: str,
    model: Mapping[str, Any],
    name: str | None = None,
    weight: float = 1.0,
    batch_size: int | str = "auto",
    max_workers: int | None = None,
    batch_timeout_s: float | str = "auto",
    max_error_rate: float = 1.0,
) -> tuple[str | None, int]:
    """Begin or continue a submission whose queries arrive in pieces; see `submit` for the arguments.

    Returns
    -------
    The number of the job if it is accepted already, else None; and the number of queries that have arrived.
    """
    check_key(key)
    check_name(name)
    table = checked_model(model, code=leader.code)
    size, share, most = checked_batch_size(batch_size), checked_weight(weight), checked_max_workers(max_workers)
    limit_s, errors = checked_batch_timeout(batch_timeout_s), checked_max_error_rate(max_error_rate)
    return leader.submissions.begin(
        records.Accepted(
            "", key, name or "", table, 0, share, size, most, 0.0, batch_timeout_s=limit_s, max_error_rate=errors
        )
    )


def change(
    leader: Coordinator,
    job: str,
    *,
    weight: float | None = None,
    batch_size: int | str | None = None,
    max_workers: int | None = None,
    batch_timeout_s: float | str | None = None,
) -> str:
    """Change options of a job from its next batch on; None: unchanged. Return its number.

    Raises
    ------
    ConflictError : the job has ended.
    """
    share = None if weight is None else checked_weight(weight)
    size = None if batch_size is None else checked_batch_size(batch_size)
    most = None if max_workers is None else checked_max_workers(max_workers)
    limit_s = None if batch_timeout_s is None else checked_batch_timeout(batch_timeout_s)

    def apply() -> str:
        found = leader.scheduler.job(job_number(leader.scheduler, job))
        if found.ended:
            raise _ended(found)
        leader.record(records.Changed(found.id, leader.now_s(), share, size, most, limit_s))
        return found.id

    return leader.call(apply)


def cancel(leader: Coordinator, job: str) -> str:
    """Cancel a job, and return its number. Its results so far are kept. A request may be repeated.

    Processes that compute a batch of it are killed.

    Raises
    ------
    ConflictError : the job is done or has failed.
    """

    def apply() -> str:
        number = job_number(leader.scheduler, job)
        found = leader.scheduler.job(number)
        if found.ended == "cancelled":
            return number
        if found.ended:
            raise _ended(found)
        leader.record(records.Cancelled(number, records.BY_USER, leader.now_s()))
        leader.store(number).fail(UnavailableError(f"job {number} was cancelled"))
        return number

    return leader.call(apply)


def drain(leader: Coordinator, worker: str) -> str:
    """Send a worker no more batches; it finishes its present ones. Return its state. A restart ends the drain."""

    def apply() -> str:
        handle = _worker(leader, worker)
        handle.drain()
        return handle.state

    return leader.call(apply)


def restart(leader: Coordinator, worker: str) -> str:
    """Stop a worker, and kill it if it hangs, so that its supervisor starts it again. Return its state.

    Its batches are dispatched to other workers at once.
    """

    def apply() -> str:
        handle = _worker(leader, worker)
        handle.restart()
        return "restarting"

    return leader.call(apply)


def _worker(leader: Coordinator, worker: str) -> WorkerHandle:
    if worker not in leader.workers:
        known = ", ".join(sorted(leader.workers)) or "none"
        raise ConfigurationError(f"there is no worker {worker!r}; the workers: {known}")
    return leader.workers[worker]


def _ended(job: Job) -> ConflictError:
    return ConflictError(f"job {job.id} has ended already: it is {job.ended}")


def job_number(scheduler: Scheduler, job: str) -> str:
    """Return the number of a job, given its number or name; of several jobs with the name, the last one.

    Raises
    ------
    ConfigurationError : there is no such job.
    """
    jobs = scheduler.jobs
    if job in jobs:
        return job
    found = [each.id for each in jobs.values() if each.accepted.name == job]
    return found[-1] if found else scheduler.job(job).id
