"""The middleware of every server: checks of origin and token, body limit, request metrics, and answers to exceptions.

The middleware calls plain routes directly, because FastAPI's own dispatch takes as long as a short route itself.
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
    ErrorForm,
    ForeignRequestError,
    MalformedRequestError,
    UnauthorizedError,
    error_response,
    response_to,
)
from chimera.web.logs import log_latency
from chimera.web.metrics import Metrics
from chimera.web.routing import Endpoints
from chimera.web.security import (
    AnonymousAccess,
    SelectedHeaders,
    answer_headers,
    has_token,
    host_and_port,
    may_serve_page,
    may_serve_without_token,
    selected_headers,
)

OPEN_PATHS = frozenset({"/health", "/docs", "/"})  # pages without data: their scripts fetch it with the token
_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})


class ServerMiddleware:
    """ASGI middleware that checks, counts and dispatches requests.

    Parameters
    ----------
    app : the wrapped application.
    endpoints : the plain routes; the app answers all other requests.
    token : the bearer token that every request needs, except for `OPEN_PATHS`.
    anonymous_access : requests that are answered if there is no token.
    max_body_bytes : maximum length of a body. A body is refused by its announced length, or as soon as it is too long.
    metrics : counts the requests.
    forwarded : whether connections are forwarded from an address beyond loopback.
    logs_latency : whether to write the latency of each answered route to the time log, as kind ``master``.
    error_forms : functions that answer exceptions at some paths; default: `response_to`.
    limited_tokens : tokens that open only the paths that begin with a text, by that text.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        endpoints: Endpoints,
        token: str | None,
        max_body_bytes: int,
        metrics: Metrics,
        logs_latency: bool,
        anonymous_access: AnonymousAccess = AnonymousAccess.LOOPBACK,
        forwarded: bool = False,
        error_forms: Mapping[str, ErrorForm] | None = None,
        limited_tokens: Mapping[str, str] | None = None,
    ) -> None:
        self._forwarded, self._limited_tokens = forwarded, limited_tokens or {}
        self._app, self._endpoints, self._token, self._limit = app, endpoints, token, max_body_bytes
        self._error_forms = error_forms or {}
        self._metrics, self._logs_latency, self._anonymous_access = metrics, logs_latency, anonymous_access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        endpoint = self._endpoints.find(scope)
        status = 0
        received = 0
        whole = False

        async def recorded(message: Message) -> None:
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
            if self._check(scope) and (admit := scope.get(ADMIT)):
                admit()
            if endpoint is None:
                await self._app(scope, limited, recorded)
            else:
                response = await endpoint(Request(scope, limited))
                await response(scope, limited, recorded)
        except ClientDisconnect:
            return
        except asyncio.CancelledError:  # the server cancels requests only when it stops
            if not status:
                await error_response(503, "NodeStopped", "this node is being stopped")(scope, receive, recorded)
        except Exception as error:  # the server below would not answer Chimera's errors
            if status and not whole:
                raise  # part of an answer is sent: the server can only abort it
            if not status:
                answer_to = self._error_forms.get(scope["path"], response_to)
                await answer_to(error)(scope, receive, recorded)
        finally:
            self._record(scope, status, time.perf_counter() - began)

    def _check(self, scope: Scope) -> bool:
        """Raise the error of a refused request; return whether it may keep its connection when there are too many.

        A page without data is sent without the token. A client that only reads such pages must not block other clients.
        """
        given = selected_headers(scope["headers"])
        host_port = host_and_port(given.get(b"host"))
        if host_port is None:
            raise MalformedRequestError("Host")
        known = True
        if self._token is None:
            if not may_serve_without_token(scope, host_port, given, self._anonymous_access):
                raise ForeignRequestError
        elif not (known := has_token(given, self._token) or self._has_limited_token(scope["path"], given)):
            if scope["path"] not in OPEN_PATHS:
                raise UnauthorizedError(sent=b"authorization" in given)
            if not may_serve_page(scope, host_port, given, forwarded=self._forwarded):
                raise ForeignRequestError
        length = given.get(b"content-length", b"0")
        if length is None or not length.isdigit():
            raise MalformedRequestError("Content-Length")
        if len(length) > 18 or int(length) > self._limit:
            raise BodyTooLargeError(self._limit)
        return known

    def _has_limited_token(self, path: str, given: SelectedHeaders) -> bool:
        return any(path.startswith(start) and has_token(given, token) for start, token in self._limited_tokens.items())

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        method, path = scope["method"], scope["path"]
        route: Any = scope.get("route")
        path = getattr(route, "path", None) or ("/openapi.json" if path == "/openapi.json" else None)
        method = method if method in _METHODS else "other"
        self._metrics.request_ended(method, path or "none", status, seconds)
        if self._logs_latency and path and path.startswith("/v1/"):
            port = (scope.get("server") or (None, None))[1]
            at = f"localhost:{port}" if port else "localhost"
            log_latency(f"{scope['scheme']}://{at}{path}", "master", seconds)
