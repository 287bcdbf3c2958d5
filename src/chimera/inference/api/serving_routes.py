"""REST routes of models that are served online."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any, TypeAlias

from fastapi import APIRouter, Request, Response
from prometheus_client import Histogram
from starlette.requests import ClientDisconnect

from chimera.core.errors import DataError
from chimera.inference.api import serving
from chimera.inference.api.job_routes import CHANGES, JOB, PREFIX, known_fields
from chimera.inference.api.options import MAX_RESERVE
from chimera.inference.coordinator.coordinator import Coordinator
from chimera.inference.coordinator.request_queue import PendingRequest
from chimera.web.background import in_thread
from chimera.web.body import answer, read_object, required
from chimera.web.metrics import Metrics
from chimera.web.routing import documented, plain_router

MAX_BODY_BYTES = 16 << 20
"""Maximum size of a request to a served model."""
Event: TypeAlias = tuple[int, str] | list[dict[str, Any]]
_BUCKETS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_OPTIONS: dict[str, Any] = {
    **CHANGES,
    "reserve": {"type": "integer", "minimum": 0, "maximum": MAX_RESERVE},
    "latency_target_s": {"anyOf": [{"type": "null"}, {"type": "number", "exclusiveMinimum": 0}]},
}
_SERVE_BODY: dict[str, Any] = {
    "type": "object",
    "required": ["model"],
    "properties": {"model": {"type": "object"}, **_OPTIONS},
    "additionalProperties": False,
}
_ANSWER: dict[str, Any] = {"type": "object", "properties": {"result": {}, "error": {"type": "string"}}}
_QUERY_BODY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "query": {},
        "queries": {"type": "array", "minItems": 1, "maxItems": serving.MAX_QUERIES},
        "timeout_s": {"type": "number", "exclusiveMinimum": 0, "maximum": serving.MAX_TIMEOUT_S},
    },
    "oneOf": [{"required": ["query"]}, {"required": ["queries"]}],
    "additionalProperties": False,
}
_ANSWERS = {"oneOf": [_ANSWER, {"type": "object", "properties": {"results": {"type": "array", "items": _ANSWER}}}]}


class QuerySender:
    """Sends the queries of requests to served models.

    Parameters
    ----------
    leader : returns the coordinator; raises `NotCoordinator` if this process is not the coordinator.
    metrics : the histogram of answer times is registered here.
    """

    def __init__(self, leader: Callable[[], Coordinator], metrics: Metrics) -> None:
        self.leader = leader
        self._seconds = Histogram(
            "chimera_inference_answer_seconds",
            "Seconds from a request to a served model until its answer, or the first part of a stream.", ["model"],
            buckets=_BUCKETS_S, registry=metrics.registry,
        )  # fmt: skip

    async def ask(self, request: Request, name: str, queries: list[Any], timeout_s: float) -> list[dict[str, Any]]:
        """Return the answers of the queries, see `serving.ask`. The body of the request must have been read."""
        began_s = time.perf_counter()
        pending = PendingRequest(queries, int(request.headers.get("content-length", MAX_BODY_BYTES)))
        disconnected = partial(_disconnected, request)
        found = await serving.ask(self.leader(), name, pending, timeout_s=timeout_s, disconnected=disconnected)
        self._seconds.labels(name).observe(time.perf_counter() - began_s)
        return found

    async def stream(
        self, request: Request, name: str, queries: list[Any], timeout_s: float
    ) -> tuple[Event, AsyncGenerator[Event, None]]:
        """Wait for the first event of `serving.stream`, and return it and the others.

        Raises
        ------
        ClientDisconnect : the client has disconnected before the first event.
        """
        began_s = time.perf_counter()
        size = int(request.headers.get("content-length", MAX_BODY_BYTES))
        events = serving.stream(self.leader(), name, queries, size, timeout_s=timeout_s)
        first = asyncio.ensure_future(anext(events))
        disconnection = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait({first, disconnection}, return_when=asyncio.FIRST_COMPLETED)
            if not first.done():
                raise ClientDisconnect
            event = first.result()
            self._seconds.labels(name).observe(time.perf_counter() - began_s)
            return event, events
        finally:
            disconnection.cancel()
            first.cancel()


def serving_router(query_sender: QuerySender) -> APIRouter:
    """Return the routes."""
    router, leader = plain_router(prefix=PREFIX, tags=["serving"]), query_sender.leader

    @router.put(
        "/models/{name}",
        **documented(
            "Serve a model. If it is served already, change its options.", body=_SERVE_BODY,
            example={"model": {"kind": "factory", "factory": "file.py:make"}, "weight": 2.0}, answer=JOB,
            answer_example={"job": "1"}, errors=(409, 422, 503, 507),
        ),
    )  # fmt: skip
    async def serve(request: Request) -> Response:
        body = await read_object(request)
        (model,) = required(body, "model")
        if not isinstance(model, dict):
            raise DataError("model must be a table")
        more = known_fields(body, *_OPTIONS, besides=("model",))
        job = await in_thread(lambda: serving.serve(leader(), name=_name(request), model=model, **more))
        return answer(request, {"job": job})

    @router.delete(
        "/models/{name}",
        **documented("Stop serving a model. Waiting queries are answered.", answer=JOB, errors=(422, 503)),
    )
    async def unserve(request: Request) -> Response:
        return answer(request, {"job": await in_thread(lambda: serving.unserve(leader(), _name(request)))})

    @router.post(
        "/{name}",
        **documented(
            "Send one or several queries to a served model, and wait for the answers.", body=_QUERY_BODY,
            example={"query": "a [MASK] day", "timeout_s": 10}, answer=_ANSWERS, answer_example={"result": "a fine day"},
            errors=(422, 503, 504),
        ),
    )  # fmt: skip
    async def ask(request: Request) -> Response:
        body = await read_object(request, MAX_BODY_BYTES)
        queries, timeout_s = _queries_of(body), serving.checked_timeout(body.get("timeout_s", serving.TIMEOUT_S))
        found = await query_sender.ask(request, _name(request), queries, timeout_s)
        return answer(request, found[0] if "query" in body else {"results": found})

    return router


def _name(request: Request) -> str:
    return str(request.path_params["name"])


def _queries_of(body: dict[str, Any]) -> list[Any]:
    """Return the queries of a request."""
    known_fields(body, "query", "queries", "timeout_s")
    if ("query" in body) == ("queries" in body):
        raise DataError("the body must have either 'query' or 'queries'")
    queries = body.get("queries", [body.get("query")])
    if not isinstance(queries, list) or not 1 <= len(queries) <= serving.MAX_QUERIES:
        raise DataError(f"queries must be a list of 1 to {serving.MAX_QUERIES} queries; submit a job for more")
    return queries


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
