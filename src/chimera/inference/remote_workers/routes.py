"""The REST route that machines with remote workers dial."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from fastapi import APIRouter, Request, Response

from chimera.core.errors import ConfigurationError, ConflictError, DataError
from chimera.engines.http import wire
from chimera.inference.client import with_version
from chimera.inference.coordinator.coordinator import Coordinator
from chimera.inference.remote_workers.files import SharedModels, check_is_needed, read_piece
from chimera.inference.remote_workers.pool import RemoteWorkers
from chimera.inference.remote_workers.protocol import (
    MAX_REPORT_BYTES,
    PATH,
    FilesAnswer,
    FilesRequest,
    Next,
    Piece,
    Report,
)
from chimera.inference.remote_workers.session import Session
from chimera.version import __version__
from chimera.web.background import in_thread
from chimera.web.body import read_object
from chimera.web.routing import documented, plain_router

T = TypeVar("T")
_EXAMPLE = {
    "machine": "0123456789abcdef", "address": "http://127.0.0.1:40123", "host": "b", "pid": 17, "hold_s": 0,
    "versions": {"chimera": __version__},
}  # fmt: skip


def dial_router(leader: Callable[[], Coordinator], remote: RemoteWorkers, *, shares_models: bool = False) -> APIRouter:
    """Return the routes.

    Parameters
    ----------
    leader : returns the coordinator; raises `NotCoordinator` if this process is not the coordinator.
    remote : the remote workers; the route adds to them.
    shares_models : whether machines may fetch the folders of models that their batches need.
    """
    models = SharedModels()
    router = plain_router(prefix=PATH, tags=["inference"])
    (_, components) = msgspec.json.schema_components([Report, FilesRequest], ref_template="#/components/schemas/{name}")

    @router.post(
        "/{worker}",
        **documented(
            "Report about a worker of another machine, with its answer to a request; return the next request to it.",
            body=components["Report"], example=_EXAMPLE, answer={"type": "object"}, errors=(409, 422, 503),
        ),
    )  # fmt: skip
    async def dial(request: Request) -> Response:
        body, worker = await read_object(request, MAX_REPORT_BYTES), str(request.path_params["worker"])
        leader()
        remote.check_version(worker, body.get("versions"))  # first: another version may have other fields
        report = _read(body, Report)
        session = remote.reported(worker, report)
        found = None if session is None else await _next(session, report)
        following = Next() if session is None else Next(found, session.kills, session.other_versions)
        answer = wire.pack(msgspec.to_builtins(following, builtin_types=(bytes,)))
        return Response(answer, media_type=wire.CONTENT_TYPE)  # not JSON, because pieces are bytes

    @router.post(
        "/{worker}/files",
        **documented(
            "Return the list of files of a model that a batch of the worker needs, or a piece of one of them.",
            body=components["FilesRequest"], example={"machine": "0123456789abcdef", "path": "/srv/bert"},
            answer={"type": "object"}, errors=(409, 422, 503),
        ),
    )  # fmt: skip
    async def files(request: Request) -> Response:
        files_request = _read(await read_object(request, MAX_REPORT_BYTES), FilesRequest)

        def found() -> FilesAnswer:
            coordinator, worker = leader(), str(request.path_params["worker"])
            if not shares_models:
                raise ConfigurationError(
                    "this cluster sends no models: start it with 'chimera infer up --fetch-models'"
                )
            if not remote.is_of(worker, files_request.machine):
                raise ConflictError(f"the worker {worker[:80]!r} is not one of this machine, or has not reported yet")
            coordinator.call(lambda: check_is_needed(coordinator, worker, files_request.path))
            folder = Path(files_request.path)
            if files_request.name:
                return FilesAnswer(data=read_piece(folder, files_request.name, files_request.at))
            return FilesAnswer(models.files(folder))

        body = wire.pack(msgspec.to_builtins(await in_thread(found), builtin_types=(bytes,)))
        return Response(body, media_type=wire.CONTENT_TYPE)  # as above

    return router


def _read(body: dict[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise DataError(with_version(f"invalid body: {error}")) from error


async def _next(session: Session, report: Report) -> Piece | None:
    """Return the next piece for the worker; wait for a request, unless the machine has more to send first."""
    if report.wanted is not None:
        return session.more(report.wanted)
    if report.answer is not None and not session.accept(report.answer):
        return None
    loop, changed, expired = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

    def expire() -> None:
        expired.set()
        changed.set()

    timer = loop.call_later(report.hold_s, expire)
    with session.on_change(lambda: loop.call_soon_threadsafe(changed.set)):
        while (found := session.take()) is None and not session.kills and not expired.is_set():
            await changed.wait()
            changed.clear()
    timer.cancel()
    return found
