"""The web application that every server of Chimera is, and what runs it."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.resources import files
from typing import Any

import orjson
import uvicorn
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.security import HTTPBearer
from starlette.types import ASGIApp

from chimera.core.errors import ConfigurationError, RunError
from chimera.models.instantiation import first_line
from chimera.version import __version__
from chimera.web.background import in_thread
from chimera.web.connection import BoundedProtocol, Limits
from chimera.web.errors import install_error_handlers, responses
from chimera.web.gate import Gate
from chimera.web.logs import open_logs, status
from chimera.web.metrics import CONTENT_TYPE, Metrics
from chimera.web.routing import documented, endpoints, plain_router
from chimera.web.security import PAGE_POLICY, Access, check_reach, open_to, warn_if_open

About = Mapping[str, Any]


STOP_S = 3  # how long requests under way may take once the node is told to stop
KEEP_ALIVE_S = 300  # how long an idle connection stays open; masters keep theirs between iterations


def create_app(
    *,
    title: str,
    settings: Access,
    routers: Sequence[APIRouter],
    about: About | Callable[[], About],
    metrics: Metrics | None = None,
    bare: Sequence[APIRouter] = (),
) -> FastAPI:
    """Return an app with these routes, and with ``/health``, ``/metrics``, ``/docs`` and ``/openapi.json``.

    Every request passes the `Gate`: token, limit of the body, metrics. Errors have the one form of `chimera.web.errors`.
    Routes find the app's `Metrics` in ``request.app.state.metrics``.

    Parameters
    ----------
    title : of the OpenAPI pages.
    settings : of the server.
    routers : its own routes.
    about : what ``/health`` tells besides ``status``, ``chimera`` and ``binary``: ``name``, and ``kind``, which is ``master``
        or ``worker``; a function is asked each time. The latency of a master's requests goes into the time log; that of a
        worker's is written by the master who asks.
    metrics : by default those of requests alone.
    bare : routes that need no token, because they show nothing by themselves; their paths are among `OPEN_PATHS`.
    """
    counted = Metrics() if metrics is None else metrics
    told = about() if callable(about) else about
    locked, opened = (*routers, _metrics_router()), (_open_router(about), *bare)
    gate = partial(
        Gate,
        endpoints=endpoints((*locked, *opened)),
        token=settings.token,
        max_body_bytes=settings.max_body_bytes,
        metrics=counted,
        open_to=open_to(settings),
        logs_latency=str(told.get("kind", "")).endswith("master"),
    )
    app = _NodeApp(gate, title=title, version=__version__, docs_url=None, redoc_url=None)
    app.state.metrics = counted
    install_error_handlers(app)
    locks: list[Any] = (
        [Depends(HTTPBearer(auto_error=False))] if settings.token else []
    )  # for the pages; the Gate checks
    for router in locked:
        app.include_router(router, dependencies=locks)
    for router in opened:
        app.include_router(router)
    return app


class _NodeApp(FastAPI):
    """An app whose gate stands before everything that FastAPI puts around the routes."""

    def __init__(self, gate: Callable[[ASGIApp], Gate], **options: Any) -> None:
        super().__init__(**options)
        self._gate = gate

    def build_middleware_stack(self) -> ASGIApp:
        return self._gate(super().build_middleware_stack())


def _open_router(about: About | Callable[[], About]) -> APIRouter:
    router = plain_router()
    page = files("chimera.web").joinpath("docs.html").read_bytes()
    schema = {"type": "object", "required": ["status", "chimera", "binary"]}
    example = {"status": "ok", "name": "tree1", "kind": "worker", "chimera": __version__, "binary": True}

    @router.get(
        "/health",
        **documented("Whether the node is up, and what it is.", answer=schema, answer_example=example, binary=False),
    )
    async def health(_: Request) -> Response:
        own = about() if callable(about) else about
        body = {"status": "ok", **own, "chimera": __version__, "binary": True}
        return Response(orjson.dumps(body), media_type="application/json")

    @router.get("/docs", include_in_schema=False)
    async def docs(_: Request) -> Response:
        return Response(page, media_type="text/html", headers={"Content-Security-Policy": PAGE_POLICY})

    return router


def _metrics_router() -> APIRouter:
    router = plain_router()
    text = {"description": "Done.", "content": {"text/plain": {"schema": {"type": "string"}}}}

    @router.get(
        "/metrics",
        summary="Figures for Prometheus.",
        response_model=None,
        responses={200: text, **responses(400, 401, 403, 500)},
        response_class=Response,
    )
    async def figures(request: Request) -> Response:
        page = await in_thread(request.app.state.metrics.page)  # some figures have to be asked for
        return Response(page, headers={"Content-Type": CONTENT_TYPE})

    return router


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None] | None, limits: Limits) -> None:
        super().__init__(config)
        self._on_started, self._limits = on_started, limits

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self.config.ssl is not None:  # uvicorn has no setting for it
            loop, times = asyncio.get_running_loop(), ("ssl_handshake_timeout", "ssl_shutdown_timeout")
            within = partial(loop.create_server, **dict.fromkeys(times, self._limits.handshake_s))
            loop.create_server = within  # type: ignore[method-assign]
        await super().startup(sockets)
        if self.started and self._on_started:
            self._on_started()


def serve(
    app: FastAPI,
    *,
    host: str,
    port: int,
    settings: Access,
    on_started: Callable[[], None] | None = None,
    listener: socket.socket | None = None,
    limits: Limits | None = None,
) -> None:
    """Serve an app until SIGINT or SIGTERM; requests under way then have `STOP_S` seconds.

    While it runs, ``app.state.address`` is where it listens, and ``app.state.stop()`` ends it, from any thread.

    Parameters
    ----------
    host, port : where to listen; port 0 is any that is free.
    settings : which requests it answers, certificate and key.
    on_started : called, in the event loop, once requests are answered.
    listener : what `listen` has returned for them, where a process listens longer than one server lives.
    limits : of what clients may let it hold and await.

    Raises
    ------
    ConfigurationError : it cannot listen there, or may not (`check_reach`), or a file of TLS cannot be used.
    RunError : a router's start-up failed.
    """
    check_reach(host, settings)
    open_logs()
    limits = Limits() if limits is None else limits
    config = uvicorn.Config(
        app,
        http=partial(BoundedProtocol, limits=limits, waiting={}),  # type: ignore[arg-type] # makes what the class makes
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # nobody asks for the client's address
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_S,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        ssl_ca_certs=None if settings.tls_client_ca is None else str(settings.tls_client_ca),
        ssl_cert_reqs=ssl.CERT_NONE if settings.tls_client_ca is None else ssl.CERT_REQUIRED,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        authorities = f", and CHIMERA_TLS_CLIENT_CA {str(settings.tls_client_ca)!r}," if settings.tls_client_ca else ""
        raise ConfigurationError(
            f"CHIMERA_TLS_CERT {str(settings.tls_cert)!r} and CHIMERA_TLS_KEY {str(settings.tls_key)!r}{authorities} cannot be "
            f"used: {first_line(error)}; all must be PEM files, and the key that of the certificate"
        ) from error
    with listener or listen(host, port) as listener:
        port = listener.getsockname()[1]
        warn_if_open(host, port, settings)
        server = _Server(config, on_started, limits)
        app.state.address, app.state.stop = (host, port), partial(setattr, server, "should_exit", True)
        status().info("%s listens on %s:%d", app.title, host, port)
        with _signals_end(server):
            server.run(sockets=[listener])
        if server.lifespan.should_exit:
            raise RunError(f"{app.title} could not start: see its error above")
        status().info("%s has stopped", app.title)


@contextmanager
def _signals_end(server: uvicorn.Server) -> Iterator[None]:
    """Let SIGINT and SIGTERM end the server, and not this process with it: whoever called `serve` has to tidy up.

    The server sets handlers of its own while it runs, and raises the signal again afterwards: then these here are in place.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: Any) -> None:
        server.should_exit = True

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens there.

    Raises
    ------
    ConfigurationError : it cannot be had; the message says why, and what to do.
    """
    where = f"port {port} of {host}"
    try:
        found = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
        return _bound(socket.socket(family, kind, protocol), address)
    except socket.gaierror as error:
        why = "no machine has that name or address; 127.0.0.1 is for this machine alone"
        raise ConfigurationError(f"cannot listen on {host!r}: {why}") from error
    except PermissionError as error:
        raise ConfigurationError(f"{where} is for the system's own services: choose one from 1024") from error
    except OSError as error:
        taken = "it is taken: stop what listens there, or choose another port"
        why = taken if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        raise ConfigurationError(f"cannot listen on {where}: {why}") from error


def _bound(listener: socket.socket, address: Any) -> socket.socket:
    """Return the socket, listening. Its protocol is named: else asyncio leaves TCP_NODELAY off, and each answer takes 40 ms."""
    try:
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener
