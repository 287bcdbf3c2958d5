"""REST routes of jobs, and of views of the cluster; `chimera infer` and the Python client use them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from chimera.core.errors import DataError
from chimera.inference.api import operations, views
from chimera.inference.client import with_version
from chimera.inference.coordinator.coordinator import Coordinator
from chimera.inference.journal.records import Accepted
from chimera.inference.results import lines, stored
from chimera.web.background import in_thread
from chimera.web.body import answer, read_object
from chimera.web.routing import documented, plain_router

PREFIX = "/v1/infer"
_ANY: dict[str, Any] = {"type": "object"}
_ROWS: dict[str, Any] = {"type": "object", "properties": {"rows": {"type": "array", "items": _ANY}}}
JOB = {"type": "object", "properties": {"job": {"type": "string"}}, "required": ["job"]}
CHANGES: dict[str, Any] = {
    "batch_size": {"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 1}]},
    "weight": {"type": "number", "exclusiveMinimum": 0},
    "max_workers": {"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 1}]},
    "batch_timeout_s": {"anyOf": [{"const": "auto"}, {"type": "number", "exclusiveMinimum": 0}]},
}


def jobs_router(leader: Callable[[], Coordinator], members: Callable[[], list[dict[str, Any]]]) -> APIRouter:
    """Return the routes.

    Parameters
    ----------
    leader : returns the coordinator; raises `NotCoordinator` if this process is not the coordinator.
    members : returns a row per process of the cluster.
    """
    router = plain_router(prefix=PREFIX, tags=["inference"])

    for path, view, summary in (
        ("/jobs", views.jobs, "All jobs, with their states."),
        (
            "/rate",
            views.rates,
            "The query rate of each job over the last 10 s, and the number of its finished queries.",
        ),
        ("/stats", views.statistics, "The processing time per query of each job."),
        ("/workers", views.workers, "The state of each worker."),
    ):
        router.get(path, **documented(summary, answer=_ROWS, errors=(503,)))(_viewing(leader, view))

    @router.get("/members", **documented("All processes of the cluster.", answer=_ROWS))
    async def processes(request: Request) -> Response:
        return answer(request, {"rows": await in_thread(members)})

    @router.patch(
        "/jobs/{job}",
        **documented(
            "Change a job, from its next batch on.", body={"type": "object", "properties": CHANGES}, example={"weight": 2.0},
            answer=JOB, answer_example={"job": "1"}, errors=(409, 422, 503),
        ),
    )  # fmt: skip
    async def change(request: Request) -> Response:
        changes = known_fields(await read_object(request), *CHANGES)
        job = await in_thread(lambda: operations.change(leader(), _job(request), **changes))
        return answer(request, {"job": job})

    @router.delete(
        "/jobs/{job}", **documented("Cancel a job. Its results so far are kept.", answer=JOB, errors=(409, 422, 503))
    )
    async def cancel(request: Request) -> Response:
        return answer(request, {"job": await in_thread(lambda: operations.cancel(leader(), _job(request)))})

    for word, order, summary in (
        ("drain", operations.drain, "Give a worker no more batches. It finishes those that it has."),
        ("restart", operations.restart, "Restart a worker. Its batches are dispatched to other workers."),
    ):
        router.post(f"/workers/{{worker}}/{word}", **documented(summary, answer=_ANY, errors=(422, 503)))(
            _ordering(leader, order)
        )

    @router.get(
        "/jobs/{job}/results",
        **documented(
            "The results so far in input order, as JSON lines, from query ``first`` on.", answer={"type": "string"},
            answer_example='{"index": 0, "query": "a [MASK] day", "result": "a fine day"}', binary=False, errors=(422, 503),
        ),
    )  # fmt: skip
    async def results(request: Request) -> Response:
        first = request.query_params.get("first", "0")
        if not first.isascii() or not first.isdigit() or len(first) > 15:
            raise DataError(f"first must be a whole number of at least 0, not {first[:40]!r}")
        accepted = await in_thread(lambda: _found(leader(), _job(request)))
        return StreamingResponse(_lines(leader(), accepted, int(first)), media_type="application/jsonl")

    return router


def _viewing(leader: Callable[[], Coordinator], view: Callable[[Coordinator], list[dict[str, Any]]]) -> Any:
    async def show(request: Request) -> Response:
        def rows() -> list[dict[str, Any]]:
            coordinator = leader()
            return coordinator.call(lambda: view(coordinator))

        return answer(request, {"rows": await in_thread(rows)})

    return show


def _ordering(leader: Callable[[], Coordinator], order: Callable[[Coordinator, str], str]) -> Any:
    async def obey(request: Request) -> Response:
        worker = str(request.path_params["worker"])
        return answer(request, {"worker": worker, "state": await in_thread(lambda: order(leader(), worker))})

    return obey


def known_fields(body: dict[str, Any], *names: str, besides: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the fields of a body with these names. Raise DataError if it has others, except those in ``besides``."""
    unknown = [name for name in body if name not in names and name not in besides]
    if unknown:
        raise DataError(
            with_version(
                f"unknown fields: {', '.join(map(repr, unknown))}; allowed fields: {', '.join((*besides, *names))}"
            )
        )
    return {name: body[name] for name in names if name in body}


def _job(request: Request) -> str:
    return str(request.path_params["job"])


def _found(leader: Coordinator, job: str) -> Accepted:
    return leader.call(lambda: leader.scheduler.job(operations.job_number(leader.scheduler, job)).accepted)


def _lines(leader: Coordinator, accepted: Accepted, first: int) -> Iterator[bytes]:
    """Yield the results of a job as JSON lines, batch by batch."""
    for rows in stored(leader.journal, accepted, first):
        yield b"".join(lines(rows))
