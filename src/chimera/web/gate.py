"""What every request passes: its origin, the token, the limit of its body, the count of its seconds, the last catch of errors.

A plain route is called from here; FastAPI's own way to it takes as long as the route itself, where that has little to do.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chimera.web.connection import ADMIT
from chimera.web.errors import (
    BodyTooLargeError,
    ForeignRequestError,
    MalformedRequestError,
    UnauthorizedError,
    error_response,
    response_to,
)
from chimera.web.logs import log_latency
from chimera.web.metrics import Metrics
from chimera.web.routing import Endpoint
from chimera.web.security import Open, answer_headers, bears, headers_of, is_own, is_unlocked, place_of

OPEN_PATHS = frozenset({"/health", "/docs", "/"})  # the pages are bare: what they show, they ask for with a token
_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})


class Gate:
    """ASGI middleware.

    Parameters
    ----------
    app : what it stands before.
    endpoints : of the plain routes, by method and path; the app answers everything else.
    token : what every request must bear, except for `OPEN_PATHS`.
    open_to : which requests are answered where there is no token.
    max_body_bytes : a longer body is refused: by its announced length before it is read, else as soon as it is too long.
    metrics : where requests are counted.
    logs_latency : whether the time log gets a line for each request that a route has answered, as a ``master``'s.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        endpoints: Mapping[tuple[str, str], Endpoint],
        token: str | None,
        max_body_bytes: int,
        metrics: Metrics,
        logs_latency: bool,
        open_to: Open = Open.LOOPBACK,
    ) -> None:
        self._app, self._endpoints, self._token, self._limit = app, endpoints, token, max_body_bytes
        self._metrics, self._logs_latency, self._open_to = metrics, logs_latency, open_to

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        status = 0
        received = 0
        whole = False

        async def noting(message: Message) -> None:
            nonlocal status, whole
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = answer_headers(message.get("headers", ()))
            else:
                whole = not message.get("more_body", False)
            await send(message)

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._limit:
                raise BodyTooLargeError(self._limit)
            return message

        try:
            self._check(scope)
            if admit := scope.get(ADMIT):
                admit()
            endpoint = self._endpoints.get((scope["method"], scope["path"]))
            if endpoint is None:
                await self._app(scope, limited, noting)
            else:
                response = await endpoint(Request(scope, limited))
                await response(scope, limited, noting)
        except ClientDisconnect:
            return
        except asyncio.CancelledError:  # the server does that when it is told to stop, and to nothing else
            if not status:
                await error_response(503, "NodeStopped", "this node is being stopped")(scope, receive, noting)
        except Exception as error:  # the last place before the server, which knows nothing of our errors
            if status and not whole:
                raise  # half an answer is on its way: cutting it off is all that is left
            if not status:
                await response_to(error)(scope, receive, noting)
        finally:
            self._note(scope, status, time.perf_counter() - began)

    def _check(self, scope: Scope) -> None:
        given = headers_of(scope["headers"])
        place = place_of(given.get(b"host"))
        if place is None:
            raise MalformedRequestError("Host")
        if self._token is None:
            if not is_own(scope, place, given, self._open_to):
                raise ForeignRequestError
        elif not bears(given, self._token):
            if scope["path"] not in OPEN_PATHS:
                raise UnauthorizedError(sent=b"authorization" in given)
            if not is_unlocked(scope, place, given):
                raise ForeignRequestError
        length = given.get(b"content-length", b"0")
        if length is None or not length.isdigit():
            raise MalformedRequestError("Content-Length")
        if len(length) > 18 or int(length) > self._limit:
            raise BodyTooLargeError(self._limit)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        method, path = scope["method"], scope["path"]
        if (method, path) not in self._endpoints:
            route: Any = scope.get("route")
            path = getattr(route, "path", None) or ("/openapi.json" if path == "/openapi.json" else None)
            method = method if method in _METHODS else "other"
        self._metrics.request_ended(method, path or "none", status, seconds)
        if self._logs_latency and path and path.startswith("/v1/"):
            port = (scope.get("server") or (None, None))[1]
            at = f"localhost:{port}" if port else "localhost"
            log_latency(f"{scope['scheme']}://{at}{path}", "master", seconds)
