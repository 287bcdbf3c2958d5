"""The routes below ``/v1/chimera/actors``, by which drivers create and call actors of allowed classes in this node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from chimera.core.errors import DataError
from chimera.engines.http import wire
from chimera.engines.http.hosting.dispatch import ANSWERED, refusal
from chimera.engines.http.hosting.host import Host
from chimera.engines.http.hosting.hosted_actor import Done, Reply
from chimera.web.errors import UnsupportedMediaTypeError
from chimera.web.routing import plain_router

_MAX_INLINE_BYTES = 1 << 16  # bytes; any body of this size is decoded within a few milliseconds


def actors_router(host: Host) -> APIRouter:
    """Return the routes for a driver's `HttpEngine`. Their bodies have the form of `chimera.engines.http.wire`.

    - ``GET`` returns the allowed classes; with ``?engine=KEY`` also the actors of one driver and how long each has been silent.
    - ``POST .../{actor}`` creates an actor, ``POST .../{actor}/{method}`` calls it, and ``POST .../{actor}/{method},{method}``
      calls it several times, see `chimera.engines.http.joined`.
    - ``DELETE .../{actor}`` drops an actor; ``DELETE`` with ``?engine=KEY`` drops all actors of one driver.

    Only Chimera's own programs use them, so they are not in the OpenAPI pages.
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
        content: dict[str, Any] = {"kinds": sorted(host.kinds), "joined": True}
        if engine is not None:
            content["actors"] = host.actors(engine)
        return Response(orjson.dumps(content), media_type="application/json")

    @router.delete("")
    async def ended(request: Request) -> Response:
        engine = request.query_params.get("engine")
        if not engine:
            raise DataError("the query has no engine: send ?engine=KEY")
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
        content = {"dropped": int(host.kill(request.path_params["actor"]))}
        return Response(orjson.dumps(content), media_type="application/json")

    return router


async def _body(request: Request) -> bytes:
    """Return the body. Its media type is checked: browsers send such a body to other sites only after a CORS preflight.

    Raises
    ------
    UnsupportedMediaTypeError : the body has another media type.
    """
    if request.headers.getlist("content-type") != [wire.CONTENT_TYPE]:
        raise UnsupportedMediaTypeError(wire.CONTENT_TYPE)
    return await request.body()


async def _response(body: bytes, start_call: Callable[[Done], None]) -> Response:
    """Pass a call to the actor's thread, and return its reply.

    A large body is decoded in another thread, because a million small values take half a second. The calls of an actor keep
    their order, because a driver sends the next one after the answer.
    """
    loop = asyncio.get_running_loop()
    reply: asyncio.Future[Reply] = loop.create_future()

    def set_reply(result: Reply) -> None:
        if not reply.done():  # the driver may have disconnected
            reply.set_result(result)

    def done(result: Reply) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(set_reply, result)

    try:
        if len(body) > _MAX_INLINE_BYTES:
            await asyncio.to_thread(start_call, done)
        else:
            start_call(done)
        made = await reply
    except ANSWERED as error:
        made = refusal(error)
    made = made.whole()
    return Response(made.body, made.status, media_type=made.content_type)
