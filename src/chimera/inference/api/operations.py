"""Operations on jobs: submit, change and cancel. They check their arguments, and record the operation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from chimera.core.errors import ConfigurationError, ConflictError, DataError, UnavailableError
from chimera.inference.coordinator.coordinator import Coordinator, NotCoordinator
from chimera.inference.coordinator.worker_handle import WorkerHandle
from chimera.inference.journal import records
from chimera.inference.models import check
from chimera.inference.scheduling.job import Job
from chimera.inference.scheduling.scheduler import Scheduler

MAX_RESERVE = 1000
"""Maximum number of workers that are reserved for a served model."""


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
    key : chosen by the client. A request with the key of an existing job returns the number of that job, so that a retry
        submits nothing twice.
    model : table of the model.
    queries : values that `chimera.engines.http.wire` can pack.
    name : not a number, which could be that of another job; default: the number of this job.
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
    number, _ = begin(leader, key=key, model=model, **options)
    if number is not None:
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
    check_name(name)
    table = check(model, code=leader.code)
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
        leader.record(records.Cancelled(number, "cancelled", leader.now_s()))
        leader.store(number).fail(UnavailableError(f"job {number} was cancelled"))
        return number

    return leader.call(apply)


def drain(leader: Coordinator, worker: str) -> str:
    """Give a worker no more batches; it finishes those that it has. Return its state. A restart ends it."""

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


def check_name(name: str | None) -> None:
    """Raise ConfigurationError if a name is a number: a job of this number would be unreachable by it."""
    if name is not None and name.isascii() and name.isdigit():
        raise ConfigurationError(f"the name {name!r} is a number, which jobs have too: add a letter")


def checked_batch_size(batch_size: Any) -> int:
    """Return a batch size; 0 for ``auto``. Raise ConfigurationError if it is invalid."""
    if batch_size == "auto":
        return 0
    if type(batch_size) is not int or batch_size < 1:
        raise ConfigurationError(f"batch_size must be 'auto' or a whole number of at least 1, not {batch_size!r}")
    return batch_size


def checked_weight(weight: Any) -> float:
    """Return a weight. Raise ConfigurationError if it is not a finite number above 0."""
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
        raise ConfigurationError(f"weight must be a number above 0, not {weight!r}")
    return float(weight)


def checked_reserve(reserve: Any) -> int:
    """Return a number of reserved workers. Raise ConfigurationError if it is invalid."""
    if type(reserve) is not int or not 0 <= reserve <= MAX_RESERVE:
        raise ConfigurationError(f"reserve must be a whole number from 0 to {MAX_RESERVE}, not {reserve!r}")
    return reserve


def checked_latency_target(latency_target_s: Any) -> float:
    """Return a latency target in seconds; 0 for None, which is no target. Raise ConfigurationError if it is invalid."""
    if latency_target_s is None:
        return 0.0
    number = isinstance(latency_target_s, int | float) and not isinstance(latency_target_s, bool)
    if not number or not 0 < latency_target_s < math.inf:
        raise ConfigurationError(f"latency_target_s must be a number above 0, not {latency_target_s!r}")
    return float(latency_target_s)


def checked_max_workers(max_workers: Any) -> int:
    """Return a maximum number of workers; 0 for None, which is no limit. Raise ConfigurationError if it is invalid."""
    if max_workers is None:
        return 0
    if type(max_workers) is not int or max_workers < 1:
        raise ConfigurationError(f"max_workers must be a whole number of at least 1, not {max_workers!r}")
    return max_workers


def checked_batch_timeout(batch_timeout_s: Any) -> float:
    """Return a time limit of batches in seconds; 0 for ``auto``. Raise ConfigurationError if it is invalid."""
    if batch_timeout_s == "auto":
        return 0.0
    is_number = isinstance(batch_timeout_s, int | float) and not isinstance(batch_timeout_s, bool)
    if not is_number or not 0 < batch_timeout_s < math.inf:
        raise ConfigurationError(f"batch_timeout_s must be 'auto' or a number above 0, not {batch_timeout_s!r}")
    return float(batch_timeout_s)


def checked_max_error_rate(rate: Any) -> float:
    """Return a maximum fraction of errors. Raise ConfigurationError if it is not a number from 0 to 1."""
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
        raise ConfigurationError(f"max_error_rate must be a number from 0 to 1, not {rate!r}")
    return float(rate)
