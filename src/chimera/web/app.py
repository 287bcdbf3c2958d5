"""The web application of every Chimera server, and the function that serves it."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
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
from chimera.web.errors import ErrorForm, install_error_handlers, responses
from chimera.web.handshakes import BoundedListener, Handshakes
from chimera.web.logs import open_logs, status
from chimera.web.metrics import CONTENT_TYPE, Metrics
from chimera.web.middleware import ServerMiddleware
from chimera.web.page.routes import page_route
from chimera.web.routing import Endpoints, documented, plain_router
from chimera.web.security import Access, anonymous_access, check_exposure, warn_if_exposed

About = Mapping[str, Any]


STOP_S = 3  # requests in flight have this long after the node receives a signal to stop
KEEP_ALIVE_S = 300  # an idle connection stays open this long; masters keep their connections between iterations


def create_app(
    *,
    title: str,
    settings: Access,
    routers: Sequence[APIRouter],
    about: About | Callable[[], About],
    metrics: Metrics | None = None,
    public: Sequence[APIRouter] = (),
    forwarded: bool = False,
    error_forms: Mapping[str, ErrorForm] | None = None,
    limited_tokens: Mapping[str, str] | None = None,
) -> FastAPI:
    """Return an app with these routes, and with ``/health``, ``/metrics``, ``/docs`` and ``/openapi.json``.

    Every request passes the `ServerMiddleware`, which checks the token, limits the body and counts the request. All errors have
    the form of `chimera.web.errors`. Routes find the app's `Metrics` in ``request.app.state.metrics``.

    Parameters
    ----------
    title : title of the OpenAPI pages.
    settings : the server's settings.
    routers : the server's own routes.
    about : fields of ``/health`` besides ``status``, ``chimera`` and ``binary``: ``name`` and ``kind`` (``master`` or
        ``worker``). A function is called for each request. A master's app writes the latency of its requests to the time log;
        a worker's app does not, because the master that calls it does.
    metrics : default: those of requests only.
    public : routes that need no token, because they contain no data; their paths must be in `OPEN_PATHS`.
    forwarded : whether connections are forwarded from an address beyond loopback, such as that of a gateway. Pages without data
        are then sent under any name of this machine.
    error_forms : functions that answer exceptions at the paths of plain routes; default: `chimera.web.errors.response_to`.
    limited_tokens : tokens that open only the paths that begin with a text, by that text.
    """
    counted = Metrics() if metrics is None else metrics
    fields = about() if callable(about) else about
    protected, unprotected = (*routers, _metrics_router()), (_public_router(about), _docs_route(), *public)
    middleware = partial(
        ServerMiddleware,
        endpoints=Endpoints((*protected, *unprotected)),
        token=settings.token,
        max_body_bytes=settings.max_body_bytes,
        metrics=counted,
        anonymous_access=anonymous_access(settings),
        error_forms=error_forms,
        logs_latency=str(fields.get("kind", "")).endswith("master"),
        forwarded=forwarded,
        limited_tokens=limited_tokens,
    )
    app = _NodeApp(middleware, title=title, version=__version__, docs_url=None, redoc_url=None)
    app.state.metrics = counted
    install_error_handlers(app, (*protected, *unprotected))
    # This only documents the token in the OpenAPI pages; the middleware checks it.
    dependencies: list[Any] = [Depends(HTTPBearer(auto_error=False))] if settings.token else []
    for router in protected:
        app.include_router(router, dependencies=dependencies)
    for router in unprotected:
        app.include_router(router)
    return app


class _NodeApp(FastAPI):
    """An app with Chimera's middleware outside all of FastAPI's own middleware."""

    def __init__(self, middleware: Callable[[ASGIApp], ServerMiddleware], **options: Any) -> None:
        super().__init__(**options)
        self._middleware = middleware

    def build_middleware_stack(self) -> ASGIApp:
        return self._middleware(super().build_middleware_stack())


def _public_router(about: About | Callable[[], About]) -> APIRouter:
    router = plain_router()
    schema = {"type": "object", "required": ["status", "chimera", "binary", "instance"]}
    instance = secrets.token_hex(8)  # by which a driver detects two addresses of one node
    fixed = {"chimera": __version__, "binary": True}
    example = {"status": "ok", "name": "tree1", "kind": "worker", **fixed, "instance": "5c0e1f7a93b2d846"}

    @router.get(
        "/health",
        **documented(
            "Report that the node is up, with its kind and version.",
            answer=schema,
            answer_example=example,
            binary=False,
        ),
    )
    async def health(_: Request) -> Response:
        own = await in_thread(about) if callable(about) else about  # may read files
        body = {"status": "ok", **own, **fixed, "instance": instance}
        return Response(orjson.dumps(body), media_type="application/json")

    return router


def _docs_route() -> APIRouter:
    return page_route("chimera.web.docs_page", "Chimera node", path="/docs")


def _metrics_router() -> APIRouter:
    router = plain_router()
    text = {"description": "Done.", "content": {"text/plain": {"schema": {"type": "string"}}}}

    @router.get(
        "/metrics",
        summary="Return metrics for Prometheus.",
        response_model=None,
        responses={200: text, **responses(400, 401, 403, 500)},
        response_class=Response,
    )
    async def figures(request: Request) -> Response:
        page = await in_thread(request.app.state.metrics.page)  # collecting some metrics blocks
        return Response(page, headers={"Content-Type": CONTENT_TYPE})

    return router


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None] | None, limits: Limits) -> None:
        super().__init__(config)
        self._on_started, self._limits = on_started, limits

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self.config.ssl is not None:  # uvicorn has no setting for these timeouts
            loop, timeouts = asyncio.get_running_loop(), ("ssl_handshake_timeout", "ssl_shutdown_timeout")
            create_server = partial(loop.create_server, **dict.fromkeys(timeouts, self._limits.handshake_s))
            loop.create_server = create_server  # type: ignore[method-assign]
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
    logs: bool = True,
) -> None:
    """Serve an app until SIGINT or SIGTERM. Requests in flight then have `STOP_S` seconds.

    While the server runs, ``app.state.address`` is its address, and ``app.state.stop()`` stops it from any thread.

    Parameters
    ----------
    host, port : where to listen; port 0 means any free port.
    settings : access rules, certificate and key.
    on_started : called in the event loop once requests are answered.
    listener : a socket that `listen` returned, for a process that keeps its port when it restarts the server.
    limits : limits on each client; default: `Limits()`.
    logs : whether to write the logs of a node to files in the working folder.

    Raises
    ------
    ConfigurationError : the address cannot be used or is not allowed (`check_exposure`), or a TLS file cannot be used.
    RunError : the start-up of a router failed.
    """
    check_exposure(host, settings)
    if logs:
        open_logs()
    limits = Limits() if limits is None else limits
    handshakes = Handshakes(limits.handshakes)
    config = uvicorn.Config(
        app,
        http=partial(BoundedProtocol, limits=limits, waiting={}, handshakes=handshakes),  # type: ignore[arg-type] # uvicorn calls it like the class
        loop="asyncio",  # others, such as uvloop, would not call `BoundedListener.accept`
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # a client must not be able to forge its address
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
            f"used: {first_line(error)}; all must be PEM files, and the key must belong to the certificate"
        ) from error
    listening = listener or listen(host, port)
    # Without TLS there is no handshake: clients of a burst, which are accepted together, must not replace one another.
    with listening if settings.tls_cert is None else BoundedListener(listening, handshakes) as listener:
        port = listener.getsockname()[1]
        warn_if_exposed(host, port, settings)
        server = _Server(config, on_started, limits)
        app.state.address, app.state.stop = (host, port), partial(setattr, server, "should_exit", True)
        status().info("%s listens on %s:%d", app.title, host, port)
        with _signals_end(server):
            server.run(sockets=[listener])
        if server.lifespan.should_exit:
            raise RunError(f"{app.title} could not start: see the error above")
        status().info("%s has stopped", app.title)


@contextmanager
def _signals_end(server: uvicorn.Server) -> Iterator[None]:
    """Make SIGINT and SIGTERM stop the server but not the process, so that the caller of `serve` can clean up.

    Uvicorn sets handlers of its own while it runs, and raises the signal again afterwards; these handlers then receive it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        server.should_exit = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address.

    Raises
    ------
    ConfigurationError : the address cannot be used; the message states why and what to do.
    """
    where = f"port {port} of {host}"
    try:
        found = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
        return _bound(socket.socket(family, kind, protocol), address)
    except socket.gaierror as error:
        reason = "no machine has this name or address; use 127.0.0.1 to serve this machine only"
        raise ConfigurationError(f"cannot listen on {host!r}: {reason}") from error
    except PermissionError as error:
        raise ConfigurationError(f"{where} is reserved for system services: choose a port from 1024") from error
    except OSError as error:
        in_use = "it is in use: stop the process that listens there, or choose another port"
        reason = in_use if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        raise ConfigurationError(f"cannot listen on {where}: {reason}") from error


def _bound(listener: socket.socket, address: Any) -> socket.socket:
    """Bind the socket, listen on it, and return it.

    The socket must name its protocol; otherwise asyncio leaves TCP_NODELAY off, and each answer takes 40 ms.
    """
    try:
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener
