"""REST routes that submit jobs: at once, or in pieces that may be repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import Meta, Struct

from chimera.core.errors import DataError
from chimera.inference.api import operations
from chimera.inference.api.job_routes import CHANGES, JOB, PREFIX, known_fields
from chimera.inference.client import with_version
from chimera.inference.coordinator.coordinator import Coordinator
from chimera.inference.journal.records import InputFile
from chimera.inference.pieces import MAX_PIECE_BYTES, check_key
from chimera.web.background import in_thread
from chimera.web.body import answer, read_object, required
from chimera.web.routing import documented, plain_router

MAX_BODY_BYTES = 16 << 20
"""Maximum size of a request that submits a whole job, or begins a submission."""
_OPTIONS = ("name", *CHANGES, "max_error_rate")
_ANY: dict[str, Any] = {"type": "object"}
_JOB: dict[str, Any] = {
    "name": {"anyOf": [{"type": "null"}, {"type": "string"}]},
    "model": _ANY,
    "max_error_rate": {"type": "number", "minimum": 0, "maximum": 1},
    **CHANGES,
}
_QUERIES: dict[str, Any] = {"type": "array", "minItems": 1}
_COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}
_SUBMISSION = {
    "type": "object",
    "required": ["key", "model", "queries"],
    "properties": {"key": {"type": "string", "minLength": 1}, "queries": _QUERIES, **_JOB},
    "additionalProperties": False,
}
_BEGIN = {"type": "object", "required": ["model"], "properties": _JOB, "additionalProperties": False}
_PIECE = {"type": "object", "required": ["first", "queries"], "properties": {"first": _COUNT, "queries": _QUERIES}}
_LIST: dict[str, Any] = {"type": "array"}
_END = {"type": "object", "required": ["queries"], "properties": {"queries": _COUNT, "files": _LIST, "chunks": _LIST}}
_BEGUN = {"type": "object", "properties": {"job": {"anyOf": [{"type": "null"}, {"type": "string"}]}, "queries": _COUNT}}
_MODEL = {"kind": "transformers", "task": "image-classification", "model": "google/vit-base-patch16-224"}
_EXAMPLE = {"name": "cats", "model": _MODEL, "weight": 1.0}
_IMAGES = ["/data/images/1.png", "/data/images/2.png"]


class _End(Struct, forbid_unknown_fields=True):
    """The body that accepts a job."""

    queries: int
    files: list[InputFile] = []
    chunks: list[tuple[int, Annotated[int, Meta(ge=0)]]] = []


def submissions_router(leader: Callable[[], Coordinator]) -> APIRouter:
    """Return the routes.

    Parameters
    ----------
    leader : returns the coordinator; raises `NotCoordinator` if this process is not the coordinator.
    """
    router = plain_router(prefix=PREFIX, tags=["inference"])

    @router.post(
        "/jobs",
        **documented(
            "Submit a job of at most 16 MiB. A request with the key of an existing job returns that job.", body=_SUBMISSION,
            example={"key": "e7c1", **_EXAMPLE, "queries": _IMAGES}, answer=JOB, answer_example={"job": "1"},
            errors=(422, 503, 507),
        ),
    )  # fmt: skip
    async def submit(request: Request) -> Response:
        body = await read_object(request, MAX_BODY_BYTES)
        key, model, queries = required(body, "key", "model", "queries")
        if not isinstance(key, str) or not isinstance(model, dict) or not isinstance(queries, list):
            raise DataError("a job needs a key (a text), a model (a table) and queries (a list)")
        more = _options(body, "key", "model", "queries")
        job = await in_thread(lambda: operations.submit(leader(), key=key, model=model, queries=queries, **more))
        return answer(request, {"job": job})

    @router.put(
        "/submissions/{key}",
        **documented(
            "Begin or continue a submission in pieces; the key is yours. Return how many queries have arrived.",
            body=_BEGIN, example=_EXAMPLE, answer=_BEGUN,
            answer_example={"job": None, "queries": 0, "reads_files": True}, errors=(409, 422, 503, 507),
        ),
    )  # fmt: skip
    async def begin(request: Request) -> Response:
        key, body = _key(request), await read_object(request, MAX_BODY_BYTES)
        (model,) = required(body, "model")
        if not isinstance(model, dict):
            raise DataError("a job needs a model (a table)")
        more = _options(body, "model")

        def begun() -> dict[str, Any]:
            leading = leader()
            job, received = operations.begin(leading, key=key, model=model, **more)
            return {"job": job, "queries": received, "reads_files": leading.reads_files}

        return answer(request, await in_thread(begun))

    @router.post(
        "/submissions/{key}/queries",
        **documented(
            "Add queries, from number ``first`` on. Queries that have arrived before are ignored.", body=_PIECE,
            example={"first": 0, "queries": _IMAGES}, answer=_END, answer_example={"queries": 2}, errors=(422, 503, 507),
        ),
    )  # fmt: skip
    async def put(request: Request) -> Response:
        key, body = _key(request), await read_object(request, MAX_PIECE_BYTES)
        first, queries = required(body, "first", "queries")
        if not isinstance(queries, list):
            raise DataError("the queries must be a list")
        at = _count(first, "first")
        received = await in_thread(lambda: leader().submissions.put(key, at, queries))
        return answer(request, {"queries": received})

    @router.post(
        "/submissions/{key}/job",
        **documented(
            "Accept the job: its ``queries`` have all arrived, or stay in ``files``. A repeated request returns that job.",
            body=_END, example={"queries": 2}, answer=JOB, answer_example={"job": "1"}, errors=(422, 503, 507),
        ),
    )  # fmt: skip
    async def accept(request: Request) -> Response:
        key, body = _key(request), await read_object(request, MAX_BODY_BYTES)
        count = _count(required(body, "queries")[0], "queries")
        try:
            end = msgspec.convert(body, _End)
        except msgspec.ValidationError as error:
            raise DataError(with_version(f"invalid body: {error}")) from error
        job = await in_thread(lambda: leader().submissions.accept(key, count, end.files, end.chunks))
        return answer(request, {"job": job})

    @router.delete(
        "/submissions/{key}",
        **documented("Delete a submission that is not accepted.", answer=_BEGUN, errors=(422, 503)),
    )
    async def discard(request: Request) -> Response:
        key = _key(request)
        await in_thread(lambda: leader().submissions.discard(key))
        return answer(request, {"job": None, "queries": 0})

    return router


def _options(body: dict[str, Any], *besides: str) -> dict[str, Any]:
    more = known_fields(body, *_OPTIONS, besides=besides)
    if not isinstance(more.get("name"), str | None):
        raise DataError(f"name must be a text, not {more['name']!r}")
    return more


def _key(request: Request) -> str:
    key = str(request.path_params["key"])
    check_key(key)
    return key


def _count(value: Any, name: str) -> int:
    if type(value) is not int or value < 0:
        raise DataError(f"{name} must be a whole number of at least 0, not {str(value)[:40]!r}")
    return value
