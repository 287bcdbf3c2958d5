"""Models that are served online: made known, asked single queries, taken away again."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import ClientDisconnect

from chimera.core.errors import ConfigurationError, ConflictError, TimeLimitError
from chimera.inference.api.operations import checked_most, checked_size, checked_weight
from chimera.inference.coordinator.coordinator import Coordinator
from chimera.inference.coordinator.request_queue import Asked, Inbox
from chimera.inference.journal import records
from chimera.inference.models import check
from chimera.inference.models.spec import key_of
from chimera.inference.scheduling.job import Job

TIMEOUT_S = 30.0
"""How long a query waits for its answer, unless it says so itself."""
LONGEST_S = 300.0
"""The most that it may say."""
MOST_QUERIES = 100
"""So many may be asked at once; for more there are jobs."""
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_TAKEN = ("jobs", "members", "models", "rate", "stats", "workers")  # they stand for something else in addresses


class NotServedError(ConfigurationError):
    """No model is served under that name."""


def serve(
    leader: Coordinator,
    *,
    name: str,
    model: Mapping[str, Any],
    weight: float = 1.0,
    batch_size: int | str = "auto",
    max_workers: int | None = None,
) -> str:
    """Serve a model under a name from now on, and return the number of its job.

    If the same model is served there already, it has the new weight, batch size and number of workers.

    Raises
    ------
    ConflictError : another model is served under the name.
    """
    if not _NAME.fullmatch(name) or name in _TAKEN:
        raise ConfigurationError(
            f"a served model cannot be called {name!r}: letters, digits, '-', '_' and '.', and not {', '.join(_TAKEN)}"
        )
    table = check(model, code=leader.code)
    size, share, most = checked_size(batch_size), checked_weight(weight), checked_most(max_workers)

    def note() -> str:
        now_s = leader.now_s()
        held = _served(leader, name)
        if held is None:
            number = leader.new_number()
            leader.note(records.Accepted(number, "", name, table, 0, share, size, most, now_s, open=True))
            return number
        if held.key != key_of(table):
            raise ConflictError(f"another model is served as {name!r}: 'chimera infer unserve {name}' ends that")
        leader.note(records.Changed(held.id, now_s, share, size, most))
        return held.id

    return leader.ask(note)


def unserve(leader: Coordinator, name: str) -> str:
    """Take no more queries for a model; those that wait are answered. Return the number of its job."""

    def note() -> str:
        held = _found(leader, name)
        leader.note(records.Closed(held.id, leader.now_s()))
        return held.id

    return leader.ask(note)


async def ask(
    leader: Coordinator, name: str, asked: Asked, *, timeout_s: float, gone: Callable[[], Awaitable[None]]
) -> list[dict[str, Any]]:
    """Return the answers to a request; nobody else must use it.

    Parameters
    ----------
    gone : returns when nobody waits for the answers any more.

    Raises
    ------
    NotServedError : there is no such model.
    QueueFullError : too many queries wait for it.
    TimeLimitError : they were not answered in time. What was in no batch by then is not computed.
    """
    put = leader.asked(lambda: _put(leader, name, asked))
    answered = asyncio.ensure_future(_answered(asyncio.wrap_future(put), asked))
    left = asyncio.ensure_future(gone())
    try:
        await asyncio.wait({answered, left}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if answered.done():
            return answered.result()
        if left.done():
            raise ClientDisconnect
        raise TimeLimitError(f"model {name!r} has not answered within {timeout_s:g} s")
    finally:
        left.cancel()
        if answered.cancel():
            leader.asked(lambda: _withdraw(leader, asked))


def checked_timeout(timeout_s: Any) -> float:
    """Return a time limit."""
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s <= LONGEST_S:
        raise ConfigurationError(f"timeout_s must be a number above 0, at most {LONGEST_S:g}, not {timeout_s!r}")
    return float(timeout_s)


async def _answered(put: Awaitable[None], asked: Asked) -> list[dict[str, Any]]:
    await put
    return await asyncio.wrap_future(asked.answers)


def _put(leader: Coordinator, name: str, asked: Asked) -> None:
    held = _found(leader, name)
    _inbox(leader, held.id).put(asked)
    asked.job = held.id
    leader.note(records.Arrived(held.id, len(asked.queries), leader.now_s()))


def _withdraw(leader: Coordinator, asked: Asked) -> None:
    count = _inbox(leader, asked.job).withdraw(asked) if asked.job else 0
    if count:
        leader.note(records.Withdrawn(asked.job, count, leader.now_s()))


def _inbox(leader: Coordinator, job: str) -> Inbox:
    found = leader.store(job)
    assert isinstance(found, Inbox)
    return found


def _served(leader: Coordinator, name: str) -> Job | None:
    jobs = leader.scheduler.jobs.values()
    return next((job for job in jobs if job.open and not job.ended and job.accepted.name == name), None)


def _found(leader: Coordinator, name: str) -> Job:
    held = _served(leader, name)
    if held is None:
        raise NotServedError(f"no model is served as {name!r}: 'chimera infer serve {name} --model FILE' serves one")
    return held
