"""What people ask of a coordinator: take a job on, change it, cancel it; checked before it becomes a record."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chimera.core.errors import ConfigurationError, DataError, UnavailableError
from chimera.engines.http import wire
from chimera.inference.coordinator.coordinator import Coordinator
from chimera.inference.journal import records
from chimera.inference.models import check

CHUNK = 1000
"""So many queries lie together in the journal at most,"""
PIECE_BYTES = 1 << 20
"""and so many bytes, unless one query has more: no write takes long beside a lease."""


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
    """Take a job on and return its number; with a key that came before, that of the job that is there.

    Parameters
    ----------
    key : made by whoever submits, so that a request that is sent twice is one job.
    model : the table of a model that was checked.
    queries : its queries, of values that `wire` can pack.
    """
    if not queries:
        raise DataError("a job needs at least one query")
    table = check(model, code=leader.code)
    size, share, most = checked_size(batch_size), checked_weight(weight), checked_most(max_workers)

    def known() -> str | None:
        return next((job.id for job in leader.scheduler.jobs.values() if job.accepted.key == key), None)

    def begin() -> tuple[str | None, str]:
        return (there, there) if (there := known()) else (None, leader.new_number())

    def accept() -> str:
        if (there := known()) is not None:  # the same request came twice at once
            leader.discard(number)
            return there
        now_s = leader.now_s()
        leader.note(records.Accepted(number, key, name or number, table, len(queries), share, size, most, now_s))
        return number

    there, number = leader.ask(begin)
    if there is not None:
        return there
    try:
        for first, body in pieces(queries):
            leader.keep(number, first, body)
    except BaseException:
        leader.discard(number)
        raise
    return leader.ask(accept)


def change(
    leader: Coordinator,
    job: str,
    *,
    weight: float | None = None,
    batch_size: int | str | None = None,
    max_workers: int | None = None,
) -> str:
    """Give a job another weight, batch size or number of workers from its next batch on, and return its number."""
    share = None if weight is None else checked_weight(weight)
    size = None if batch_size is None else checked_size(batch_size)
    most = None if max_workers is None else checked_most(max_workers)

    def note() -> str:
        number = named(leader, job)
        leader.note(records.Changed(number, leader.now_s(), share, size, most))
        return number

    return leader.ask(note)


def cancel(leader: Coordinator, job: str) -> str:
    """Let a job go no further, and return its number; results that it has stay."""

    def note() -> str:
        number = named(leader, job)
        leader.note(records.Cancelled(number, "cancelled", leader.now_s()))
        leader.store(number).refuse(UnavailableError(f"job {number} was cancelled"))
        for seat in leader.seats.values():
            seat.forget(number)
        return number

    return leader.ask(note)


def named(leader: Coordinator, job: str) -> str:
    """Return the number of a job that is given by number or by name; of several with that name, the last."""
    jobs = leader.scheduler.jobs
    if job in jobs:
        return job
    found = [one.id for one in jobs.values() if one.accepted.name == job]
    return found[-1] if found else leader.scheduler.job(job).id


def pieces(queries: Sequence[Any]) -> Iterator[tuple[int, bytes]]:
    """Yield packed queries, and the number of the first of each piece."""
    first, count = 0, 1
    while first < len(queries):
        body = wire.pack(list(queries[first : first + count]))
        if len(body) > PIECE_BYTES and count > 1:
            count //= 2
            continue
        yield first, body
        first += count
        if 2 * len(body) <= PIECE_BYTES:
            count = min(2 * count, CHUNK)


def checked_size(batch_size: Any) -> int:
    """Return a batch size; 0 for ``auto``."""
    if batch_size == "auto":
        return 0
    if type(batch_size) is not int or batch_size < 1:
        raise ConfigurationError(f"batch_size must be 'auto' or a whole number from 1, not {batch_size!r}")
    return batch_size


def checked_weight(weight: Any) -> float:
    """Return a weight."""
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
        raise ConfigurationError(f"weight must be a number above 0, not {weight!r}")
    return float(weight)


def checked_most(max_workers: Any) -> int:
    """Return the highest number of workers; 0 for any."""
    if max_workers is None:
        return 0
    if type(max_workers) is not int or max_workers < 1:
        raise ConfigurationError(f"max_workers must be a whole number from 1, not {max_workers!r}")
    return max_workers
