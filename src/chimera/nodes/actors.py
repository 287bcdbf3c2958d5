"""The routes below ``/v1/chimera/actors``: drivers let actors live in this node, of the classes that it allows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from chimera.core.errors import ActorLost, ConfigurationError, DataError, UnavailableError
from chimera.engines.http import wire
from chimera.engines.http.host import Done, Host, Reply, error_reply
from chimera.web.errors import UnsupportedMediaTypeError
from chimera.web.routing import plain_router

_MOST_READ_HERE = 1 << 16  # bytes: a body of so many is read in a few milliseconds, whatever it holds


def actors_router(host: Host) -> APIRouter:
    """Return the routes that a driver's `HttpEngine` uses; their bodies are of the form of `chimera.engines.http.wire`.

    ``GET`` tells the classes, and with ``?engine=KEY`` which actors one driver has here and for how long each has been silent;
    ``POST .../{actor}`` makes one, ``POST .../{actor}/{method}`` calls it, ``DELETE`` drops it, or all of ``?engine=KEY``.
    They are for programs of Chimera only, and so not in the OpenAPI pages.
    """

    @asynccontextmanager
    async def closing(_: Any) -> AsyncIterator[None]:
        try:
            yield
        finally:
            host.close()

    router = plain_router(prefix="/v1/chimera/actors", include_in_schema=False, lifespan=closing)

    @router.get("")
    async def listed(request: Request) -> Response:
        engine = request.query_params.get("engine")
        told: dict[str, Any] = {"kinds": sorted(host.kinds)}
        if engine is not None:
            told["actors"] = host.actors(engine)
        return Response(orjson.dumps(told), media_type="application/json")

    @router.delete("")
    async def ended(request: Request) -> Response:
        engine = request.query_params.get("engine")
        if not engine:
            raise DataError("say whose actors: ?engine=KEY")
        return Response(orjson.dumps({"dropped": host.kill_all(engine)}), media_type="application/json")

    @router.post("/{actor}")
    async def created(request: Request) -> Response:
        actor, body = request.path_params["actor"], await _body(request)
        return await _response(body, lambda done: host.create(actor, body, done))

    @router.post("/{actor}/{method}")
    async def called(request: Request) -> Response:
        actor, method = request.path_params["actor"], request.path_params["method"]
        body = await _body(request)
        return await _response(body, lambda done: host.call(actor, method, body, done))

    @router.delete("/{actor}")
    async def dropped(request: Request) -> Response:
        told = {"dropped": int(host.kill(request.path_params["actor"]))}
        return Response(orjson.dumps(told), media_type="application/json")

    return router


async def _body(request: Request) -> bytes:
    """Return the body; no page of another site can send one of this type without being asked for leave (CORS).

    Raises
    ------
    UnsupportedMediaTypeError : the body is of another type.
    """
    if request.headers.getlist("content-type") != [wire.CONTENT_TYPE]:
        raise UnsupportedMediaTypeError(wire.CONTENT_TYPE)
    return await request.body()


async def _response(body: bytes, ask: Callable[[Done], None]) -> Response:
    """Hand a call to the actor's thread, and return its reply.

    A large body is read in a thread: a million small values take half a second, in which other requests are answered. The
    calls of an actor keep their order, since a driver sends the next one after the answer.
    """
    loop = asyncio.get_running_loop()
    reply: asyncio.Future[Reply] = loop.create_future()

    def arrive(came: Reply) -> None:
        if not reply.done():  # the driver may have gone away
            reply.set_result(came)

    def done(came: Reply) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(arrive, came)

    try:
        if len(body) > _MOST_READ_HERE:
            await asyncio.to_thread(ask, done)
        else:
            ask(done)
        status, content_type, body = await reply
    except ActorLost as error:
        status, content_type, body = error_reply(404, error)
    except ConfigurationError as error:
        status, content_type, body = error_reply(422, error)
    except UnavailableError as error:
        status, content_type, body = error_reply(503, error)
    return Response(body, status, media_type=content_type)
