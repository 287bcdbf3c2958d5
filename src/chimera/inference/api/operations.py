"""Operations on jobs: submit, change and cancel. They check their arguments, and record the operation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from chimera.core.errors import ConfigurationError, DataError, UnavailableError
from chimera.inference.coordinator.coordinator import Coordinator, NotCoordinator
from chimera.inference.journal import records
from chimera.inference.models import check


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
) -> str:
    """Accept a job, and return its number.

    Parameters
    ----------
    key : chosen by the client. A request with the key of an existing job returns the number of that job, so that a retry
        submits nothing twice.
    model : table of the model.
    queries : values that `chimera.engines.http.wire` can pack.
    name : default: the number.

    Raises
    ------
    DataError : there are no queries.
    ConfigurationError : the model or an option is invalid.
    """
    if not queries:
        raise DataError("a job needs at least one query")
    options = {"name": name, "weight": weight, "batch_size": batch_size, "max_workers": max_workers}
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
) -> tuple[str | None, int]:
    """Begin or continue a submission whose queries arrive in pieces; see `submit` for the arguments.

    Returns
    -------
    The number of the job if it is accepted already, else None; and the number of queries that have arrived.
    """
    table = check(model, code=leader.code)
    size, share, most = checked_batch_size(batch_size), checked_weight(weight), checked_max_workers(max_workers)
    return leader.submissions.begin(records.Accepted("", key, name or "", table, 0, share, size, most, 0.0))


def change(
    leader: Coordinator,
    job: str,
    *,
    weight: float | None = None,
    batch_size: int | str | None = None,
    max_workers: int | None = None,
) -> str:
    """Change the weight, batch size or maximum number of workers of a job from its next batch on; return its number."""
    share = None if weight is None else checked_weight(weight)
    size = None if batch_size is None else checked_batch_size(batch_size)
    most = None if max_workers is None else checked_max_workers(max_workers)

    def apply() -> str:
        number = job_number(leader, job)
        leader.record(records.Changed(number, leader.now_s(), share, size, most))
        return number

    return leader.call(apply)


def cancel(leader: Coordinator, job: str) -> str:
    """Cancel a job, and return its number. Its results so far are kept."""

    def apply() -> str:
        number = job_number(leader, job)
        leader.record(records.Cancelled(number, "cancelled", leader.now_s()))
        leader.store(number).fail(UnavailableError(f"job {number} was cancelled"))
        for handle in leader.workers.values():
            handle.cancel_job(number)
        return number

    return leader.call(apply)


def job_number(leader: Coordinator, job: str) -> str:
    """Return the number of a job, given its number or name; of several jobs with the name, the last one.

    Raises
    ------
    ConfigurationError : there is no such job.
    """
    jobs = leader.scheduler.jobs
    if job in jobs:
        return job
    found = [each.id for each in jobs.values() if each.accepted.name == job]
    return found[-1] if found else leader.scheduler.job(job).id


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


def checked_max_workers(max_workers: Any) -> int:
    """Return a maximum number of workers; 0 for None, which is no limit. Raise ConfigurationError if it is invalid."""
    if max_workers is None:
        return 0
    if type(max_workers) is not int or max_workers < 1:
        raise ConfigurationError(f"max_workers must be a whole number of at least 1, not {max_workers!r}")
    return max_workers
