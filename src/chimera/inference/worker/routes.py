"""REST routes of a worker, for the coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import APIRouter, FastAPI, Request, Response
from msgspec import Meta, Struct

from chimera.core.errors import DataError
from chimera.engines.http import wire
from chimera.inference.worker.protocol import MAX_PREPARED, PATH, Assignment, Collected, WorkerState
from chimera.inference.worker.worker import MAX_WAIT_S, InferenceWorker
from chimera.web.app import create_app
from chimera.web.background import in_thread
from chimera.web.body import answer, read_object
from chimera.web.folder import Access
from chimera.web.logs import status
from chimera.web.routing import documented, plain_router

T = TypeVar("T")
Epoch = Annotated[int, Meta(ge=1)]


class _Adopt(Struct):
    epoch: Epoch
    owner: str


class _Assign(Struct):
    epoch: Epoch
    assignments: list[Assignment]


class _Collect(Struct):
    epoch: Epoch
    done: list[tuple[str, int]] = []
    wait_s: Annotated[float, Meta(ge=0)] = 0.0


class _Prepare(Struct):
    epoch: Epoch
    models: Annotated[list[dict[str, Any]], Meta(max_length=MAX_PREPARED)]


class _Forget(Struct):
    epoch: Epoch
    jobs: list[str]


class _Order(Struct):
    epoch: Epoch


def create_worker_app(worker: InferenceWorker, access: Access, stop: Callable[[], None]) -> FastAPI:
    """Return the app of a worker. ``stop`` is called when the coordinator stops the worker."""

    def about() -> dict[str, Any]:
        return {"name": worker.name, "kind": "worker", "epoch": worker.epoch}

    return create_app(
        title=f"Chimera inference worker {worker.name}",
        settings=access,
        routers=[_router(worker, stop)],
        about=about,
    )


def _router(worker: InferenceWorker, stop: Callable[[], None]) -> APIRouter:
    router = plain_router(prefix=PATH)

    @router.post("/adopt", **_documented("Set the coordinator. Return the worker's state.", _Adopt))
    async def adopt(request: Request) -> Response:
        body = await _read(request, _Adopt)
        before = worker.epoch
        state = worker.adopt(body.epoch, body.owner)
        if body.epoch > before:
            status().info("epoch %d: %s is the coordinator", body.epoch, body.owner[:100])
        return _state_answer(request, state)

    @router.post("/assign", **_documented("Queue batches. Return the worker's state.", _Assign))
    async def assign(request: Request) -> Response:
        body = await _read(request, _Assign)
        return _state_answer(request, worker.assign(body.epoch, body.assignments))

    @router.post(
        "/collect", **_documented("Drop acknowledged results, and return the results that were not sent yet.", _Collect)
    )
    async def collect(request: Request) -> Response:
        body = await _read(request, _Collect)
        collected = await _collected(worker, body)
        packed = wire.pack(msgspec.to_builtins(collected, builtin_types=(bytes,)))
        return Response(packed, media_type=wire.CONTENT_TYPE)  # not JSON, because results are bytes

    @router.post("/prepare", **_documented("Get ready for some models.", _Prepare))
    async def prepare(request: Request) -> Response:
        body = await _read(request, _Prepare)
        await in_thread(worker.prepare, body.epoch, body.models)
        return answer(request, {"prepares": True})

    @router.post("/forget", **_documented("Drop the batches of some jobs. Return the worker's state.", _Forget))
    async def forget(request: Request) -> Response:
        body = await _read(request, _Forget)
        return _state_answer(request, worker.forget(body.epoch, body.jobs))

    @router.post(
        "/drain", **_documented("Note that the worker gets no more batches. Return the worker's state.", _Order)
    )
    async def drain(request: Request) -> Response:
        body = await _read(request, _Order)
        status().info("the worker is drained: it gets no more batches")
        return _state_answer(request, worker.drain(body.epoch))

    @router.post("/stop", **_documented("Stop the worker.", _Order))
    async def end(request: Request) -> Response:
        body = await _read(request, _Order)
        worker.stop(body.epoch)
        stop()
        return answer(request, {"stopped": True})

    return router


async def _collected(worker: InferenceWorker, body: _Collect) -> Collected:
    """Do what `InferenceWorker.collect` does, without a waiting thread, which would delay requests to an idle worker."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()
    until_s = loop.time() + min(body.wait_s, MAX_WAIT_S)
    timer = loop.call_at(until_s, changed.set)
    with worker.on_change(lambda: loop.call_soon_threadsafe(changed.set)):
        while (found := worker.take(body.epoch, body.done, wait=loop.time() < until_s)) is None:
            await changed.wait()
            changed.clear()
    timer.cancel()
    return found


def _documented(summary: str, body: type[Struct]) -> dict[str, Any]:
    (_, components) = msgspec.json.schema_components([body], ref_template="{name}")
    return documented(summary, body=components[body.__name__], answer={"type": "object"}, errors=(409, 422))


async def _read(request: Request, kind: type[T]) -> T:
    body = await read_object(request)
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise DataError(f"invalid body: {error}") from error


def _state_answer(request: Request, state: WorkerState) -> Response:
    return answer(request, msgspec.to_builtins(state))
