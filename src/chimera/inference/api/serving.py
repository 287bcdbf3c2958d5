"""Models that are served online: serve and unserve a model, and answer queries."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from starlette.requests import ClientDisconnect

from chimera.core.errors import ConfigurationError, ConflictError, TimeLimitError
from chimera.inference.api.options import (
    check_name,
    checked_batch_size,
    checked_batch_timeout,
    checked_latency_target,
    checked_max_workers,
    checked_model,
    checked_reserve,
    checked_weight,
)
from chimera.inference.coordinator.coordinator import Coordinator
from chimera.inference.coordinator.request_queue import PendingRequest, RequestQueue
from chimera.inference.journal import records
from chimera.inference.models.spec import key_of
from chimera.inference.scheduling.job import Job

TIMEOUT_S = 30.0
"""Default seconds to wait for the answers of a request."""
MAX_TIMEOUT_S = 300.0
"""Maximum of ``timeout_s`` in a request."""
MAX_QUERIES = 100
"""Maximum number of queries in a request; submit a job for more."""
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_RESERVED = ("jobs", "members", "models", "rate", "stats", "workers")  # other routes have these names


class NotServedError(ConfigurationError):
    """No model is served under the name."""


def serve(
    leader: Coordinator,
    *,
    name: str,
    model: Mapping[str, Any],
    weight: float = 1.0,
    batch_size: int | str = "auto",
    max_workers: int | None = None,
    batch_timeout_s: float | str = "auto",
    reserve: int = 0,
    latency_target_s: float | None = None,
) -> str:
    """Serve a model under a name, and return the number of its job.

    If the same model is served under the name already, set its options.

    Parameters
    ----------
    reserve : number of workers that serve no other job; at least one worker remains for the others.
    latency_target_s : target seconds until an answer. A third of it limits the expected time of the model's batches and, unless
        a worker is reserved for it, of the batches of all other jobs.

    Raises
    ------
    ConfigurationError : the name or an option is invalid.
    ConflictError : another model is served under the name.
    NoSpaceError : the disk is nearly full, and the model is not served yet.
    """
    if not _NAME.fullmatch(name) or name in _RESERVED:
        raise ConfigurationError(
            f"invalid name of a served model: {name!r}; use letters, digits, '-', '_' and '.', and none of"
            f" {', '.join(_RESERVED)}"
        )
    check_name(name)
    table = checked_model(model, code=leader.code)
    share, size, most = checked_weight(weight), checked_batch_size(batch_size), checked_max_workers(max_workers)
    more: dict[str, Any] = {
        "batch_timeout_s": checked_batch_timeout(batch_timeout_s),
        "reserve": checked_reserve(reserve),
        "latency_target_s": checked_latency_target(latency_target_s),
    }

    def apply() -> str:
        now_s = leader.now_s()
        job = _served(leader, name)
        if job is None:
            number = leader.new_number()
            leader.check_space()
            leader.record(records.Accepted(number, "", name, table, 0, share, size, most, now_s, open=True, **more))
            return number
        if job.key != key_of(table):
            raise ConflictError(f"another model is served as {name!r}: stop it with 'chimera infer unserve {name}'")
        leader.record(records.Changed(job.id, now_s, share, size, most, **more))
        return job.id

    return leader.call(apply)


def unserve(leader: Coordinator, name: str) -> str:
    """Accept no more queries for a model, and return the number of its job. Waiting queries are answered."""

    def apply() -> str:
        job = _find(leader, name)
        leader.record(records.Closed(job.id, leader.now_s()))
        return job.id

    return leader.call(apply)


def served(leader: Coordinator) -> list[tuple[str, float]]:
    """Return the name of each served model, and the time at which its serving began, in seconds since 1970."""

    def found() -> list[tuple[str, float]]:
        jobs = leader.scheduler.jobs.values()
        return [(job.accepted.name, job.accepted.at_s) for job in jobs if job.open and not job.ended]

    return leader.call(found)


async def ask(
    leader: Coordinator,
    name: str,
    pending: PendingRequest,
    *,
    timeout_s: float,
    disconnected: Callable[[], Awaitable[None]],
) -> list[dict[str, Any]]:
    """Queue a request, and return its answers.

    Parameters
    ----------
    pending : the request; used for this call only.
    timeout_s : seconds to wait for the answers.
    disconnected : returns when the client has disconnected.

    Raises
    ------
    NotServedError : no model is served under the name.
    QueueFullError : the model's queue is full.
    TimeLimitError : the request was not answered in time. Its queries that are in no batch yet are dropped.
    ClientDisconnect : the client has disconnected.
    """
    answered = _queued(leader, name, pending)
    disconnection = asyncio.ensure_future(disconnected())
    try:
        both: set[asyncio.Future[Any]] = {answered, disconnection}
        await asyncio.wait(both, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if answered.done():
            return answered.result()
        if disconnection.done():
            raise ClientDisconnect
        raise TimeLimitError(f"model {name!r} has not answered within {timeout_s:g} s")
    finally:
        disconnection.cancel()
        if answered.cancel():
            leader.submit(lambda: _withdraw(leader, pending))


async def stream(
    leader: Coordinator, name: str, queries: Sequence[Any], size: int, *, timeout_s: float
) -> AsyncGenerator[tuple[int, str] | list[dict[str, Any]], None]:
    """Queue a request, and yield the texts of its answers as they are generated, and finally its answers.

    Parameters
    ----------
    queries, size : see `PendingRequest`.
    timeout_s : seconds to wait for the answers.

    Yields
    ------
    The position of a query and the next part of its text; finally the answers. The parts of a text make up the whole
    text.

    Raises
    ------
    Exception : see `ask`.
    """
    loop, pieces = asyncio.get_running_loop(), asyncio.Queue[tuple[int, int, str] | None]()

    def take(*piece: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: this process ends
            loop.call_soon_threadsafe(pieces.put_nowait, piece)

    pending = PendingRequest(queries, size, take)
    sent = [0] * len(pending.queries)
    answered = _queued(leader, name, pending)
    answered.add_done_callback(lambda _: pieces.put_nowait(None))
    until_s = loop.time() + timeout_s
    try:
        while (piece := await asyncio.wait_for(pieces.get(), until_s - loop.time())) is not None:
            position, at, text = piece
            if at <= sent[position] < at + len(text):  # otherwise it is sent already, or a part before it was lost
                yield position, text[sent[position] - at :]
                sent[position] = at + len(text)
        answers = answered.result()
        for position, answer in enumerate(answers):
            result = answer.get("result")
            whole = result.get("text") if isinstance(result, Mapping) else None
            if isinstance(whole, str) and len(whole) > sent[position]:
                yield position, whole[sent[position] :]
        yield answers
    except TimeoutError:
        raise TimeLimitError(f"model {name!r} has not answered within {timeout_s:g} s") from None
    finally:
        if answered.cancel():
            leader.submit(lambda: _withdraw(leader, pending))


def checked_timeout(timeout_s: Any) -> float:
    """Return a timeout in seconds.

    Raises
    ------
    ConfigurationError : it is not a number above 0, or larger than `MAX_TIMEOUT_S`.
    """
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise ConfigurationError(f"timeout_s must be a number above 0, at most {MAX_TIMEOUT_S:g}, not {timeout_s!r}")
    return float(timeout_s)


def _queued(leader: Coordinator, name: str, pending: PendingRequest) -> asyncio.Future[list[dict[str, Any]]]:
    """Queue a request, and return the future of its answers."""

    def refuse(queued: Future[None]) -> None:
        if (error := queued.exception()) is not None:
            pending.fail(error)

    leader.submit(lambda: _enqueue(leader, name, pending)).add_done_callback(refuse)
    return asyncio.wrap_future(pending.answers)


def _enqueue(leader: Coordinator, name: str, pending: PendingRequest) -> None:
    job = _find(leader, name)
    _queue(leader, job.id).put(pending)
    pending.job = job.id
    leader.record(records.Arrived(job.id, len(pending.queries), leader.now_s()))


def _withdraw(leader: Coordinator, pending: PendingRequest) -> None:
    count = _queue(leader, pending.job).withdraw(pending) if pending.job else 0
    if count:
        leader.record(records.Withdrawn(pending.job, count, leader.now_s()))


def _queue(leader: Coordinator, job: str) -> RequestQueue:
    queue = leader.store(job)
    assert isinstance(queue, RequestQueue)
    return queue


def _served(leader: Coordinator, name: str) -> Job | None:
    jobs = leader.scheduler.jobs.values()
    return next((job for job in jobs if job.open and not job.ended and job.accepted.name == name), None)


def _find(leader: Coordinator, name: str) -> Job:
    job = _served(leader, name)
    if job is None:
        raise NotServedError(
            f"no model is served as {name!r}: serve one with 'chimera infer serve {name} --model FILE'"
        )
    return job
