"""The fixed address of a cluster: it passes each connection on to the coordinator that leads, at any address."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import math
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from chimera.core.address import INSECURE, Address, host_in_url, is_insecure_accepted, is_loopback
from chimera.core.errors import ChimeraError, ConfigurationError
from chimera.inference.console import warn

LEADER_S = 5.0
"""Seconds for which a new connection waits for a coordinator."""
_CONNECT_S = 1.0
_POLL_S = 0.05  # between two checks for another coordinator
_IDLE_S = 0.5  # seconds between two checks while there are no connections
_FLUSH_S = 10.0  # a client has this long to read the rest of its answer
_CHUNK = 1 << 15
_WARN_S = 60.0  # between two warnings
_SHORT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_TLS = {"cert": "CHIMERA_TLS_CERT", "key": "CHIMERA_TLS_KEY", "client_ca": "CHIMERA_TLS_CLIENT_CA"}


@dataclass(eq=False)
class _Connection:
    """One client, its coordinator, and whether the coordinator has answered anything."""

    client: asyncio.StreamWriter
    coordinator: str = ""
    is_answered: bool = False


class Gateway:
    """Passes connections on to the coordinator that leads, as bytes: it checks no request and holds no token.

    The coordinator checks each request, and bounds its size and time. The gateway bounds the number of connections, and holds
    at most about 200 KiB of each. When another coordinator takes over, the connections to the former one are cut, so that
    their clients retry.

    Parameters
    ----------
    listener : socket that listens at the address.
    leader : returns the coordinator's address, ``http://host:port``; None if none leads.
    tls : context for ``https``; default: plain HTTP.
    connections : maximum number of connections. At the maximum, a new one replaces the oldest without any answer.
    """

    def __init__(
        self,
        listener: socket.socket,
        leader: Callable[[], str | None],
        *,
        tls: ssl.SSLContext | None = None,
        connections: int | None = None,
    ) -> None:
        self._listener, self._leader, self._tls = listener, leader, tls
        self._most = _max_connections() if connections is None else connections
        self._open: dict[_Connection, None] = {}
        self._loop, self._warned_s = asyncio.new_event_loop(), -math.inf
        self._loop.set_exception_handler(self._report)
        self._stopped = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="chimera-gateway", daemon=True)

    def start(self) -> None:
        """Start to accept connections, in a thread."""
        self._thread.start()

    def close(self) -> None:
        """Close all connections and the listener."""
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    def _report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Show one line while no connection can be accepted; asyncio would print 100 tracebacks a second."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in _SHORT_OF:
            loop.default_exception_handler(context)
        elif time.monotonic() > self._warned_s + _WARN_S:
            self._warned_s = time.monotonic()
            remedy = ": raise the limit (ulimit -n)" if error.errno == errno.EMFILE else ""
            warn(f"the fixed address accepts no connections: {error.strerror}{remedy}")

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        handshake = {"ssl_handshake_timeout": LEADER_S} if self._tls else {}
        server = await asyncio.start_server(
            self._accept,
            sock=self._listener,
            limit=_CHUNK,
            ssl=self._tls,
            **handshake,  # type: ignore[arg-type]
        )
        try:
            while not self._stopped.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopped.wait(), _POLL_S if self._open else _IDLE_S)
                self._cut_former()
        finally:
            server.close()
            end_s = self._loop.time() + _CONNECT_S
            while self._open and self._loop.time() < end_s:  # their tasks end by themselves, without being cancelled
                for each in list(self._open):
                    each.client.transport.abort()
                await asyncio.sleep(_POLL_S)

    def _cut_former(self) -> None:
        """Cut the connections to a coordinator that another one has replaced; it may hang."""
        leader = self._leader() if self._open else None
        for each in list(self._open):
            if each.coordinator and leader is not None and each.coordinator != leader:
                each.client.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own = _Connection(writer)
        if len(self._open) >= self._most:
            oldest = next((each for each in self._open if not each.is_answered), own)
            oldest.client.transport.abort()
            if oldest is own:
                return
            self._open.pop(oldest, None)
        self._open[own] = None
        try:
            await self._pass_on(own, reader)
        finally:
            self._open.pop(own, None)
            with contextlib.suppress(AttributeError):  # asyncio raises it if the connection is closed already
                writer.transport.abort()

    async def _pass_on(self, own: _Connection, reader: asyncio.StreamReader) -> None:
        """Pass bytes both ways until either side ends."""
        found = await self._connected(own)
        if found is None:
            await _finish(own.client, _refusal())
            return
        answers, requests = found
        ways = [
            asyncio.create_task(_copy(reader, requests)),
            asyncio.create_task(_copy(answers, own.client, lambda: setattr(own, "is_answered", True))),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            if ways[1].done():
                await _finish(own.client)
        finally:
            for way in ways:
                way.cancel()
            requests.transport.abort()

    async def _connected(self, own: _Connection) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Connect to the coordinator; wait for one if none answers. Return None after `LEADER_S`."""
        deadline_s = self._loop.time() + LEADER_S
        while self._loop.time() < deadline_s and not own.client.is_closing():
            own.coordinator = self._leader() or ""
            with contextlib.suppress(OSError, TimeoutError, ChimeraError):
                if own.coordinator:
                    where = Address.of(own.coordinator)
                    connecting = asyncio.open_connection(where.host, where.port, limit=_CHUNK)
                    return await asyncio.wait_for(connecting, _CONNECT_S)
            await asyncio.sleep(_POLL_S)
        return None


async def _copy(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, on_first: Callable[[], None] | None = None
) -> None:
    """Copy bytes until the source ends or either connection breaks."""
    with contextlib.suppress(OSError):
        while data := await source.read(_CHUNK):
            if on_first is not None:
                on_first()
            target.write(data)
            await target.drain()


async def _finish(writer: asyncio.StreamWriter, last: bytes = b"") -> None:
    """Send the rest to a client, and close the connection."""
    with contextlib.suppress(OSError, TimeoutError):
        writer.write(last)
        writer.close()
        await asyncio.wait_for(writer.wait_closed(), _FLUSH_S)


def _refusal() -> bytes:
    details = {"errorCode": 503, "errorMessage": "NotCoordinator"}
    body = json.dumps({"message": "no coordinator leads at the moment: retry", "details": details}).encode()
    head = f"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Connection: close\r\n\r\n" + body


def _max_connections() -> int:
    """Return 500, or less if this process may open fewer files: a connection needs two."""
    import resource

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 500 if files == resource.RLIM_INFINITY else max(8, min(500, files // 4))


def check_host(host: str, environment: Mapping[str, str] = os.environ) -> None:
    """Refuse an address beyond this machine without TLS, because clients send their token there.

    Raises
    ------
    ConfigurationError : the token would travel in clear, and the user has not set ``CHIMERA_INSECURE=1``.
    """
    if not (is_loopback(host) or environment.get(_TLS["cert"]) or is_insecure_accepted(environment)):
        raise ConfigurationError(
            f"--host {host}: tokens would travel to it in clear: set {_TLS['cert']} and {_TLS['key']}, or {INSECURE}=1 if you "
            "accept that"
        )


def tls_context(environment: Mapping[str, str] = os.environ) -> ssl.SSLContext | None:
    """Return the TLS context of the certificate that the variables ``CHIMERA_TLS_*`` name; None if they name none.

    With ``CHIMERA_TLS_CLIENT_CA``, clients must present a certificate that one of its authorities signed.

    Raises
    ------
    ConfigurationError : a file is missing or cannot be used.
    """
    cert, key, client_ca = (environment.get(name) or None for name in _TLS.values())
    if cert is None and key is None and client_ca is None:
        return None
    if cert is None or key is None:
        raise ConfigurationError(f"{_TLS['cert']} and {_TLS['key']}: set both or none")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # ssl.SSLError is one
        named = ", ".join(f"{name} {environment[name]!r}" for name in _TLS.values() if environment.get(name))
        raise ConfigurationError(f"{named} cannot be used: {error}; all must be PEM files") from error
    return context


@contextmanager
def fixed_address(host: str, port: int | None, leader: Callable[[], str | None]) -> Iterator[str | None]:
    """Pass connections at an address on to the coordinator, until the context ends. Its value is the address, as a URL.

    Parameters
    ----------
    host, port : where to listen; port 0 is any free port; None: nowhere.

    Raises
    ------
    ConfigurationError : the address cannot be used or is not allowed, or a TLS file cannot be used.
    """
    if port is None:
        yield None
        return
    from chimera.web.app import listen

    check_host(host)
    tls = tls_context()
    with listen(host, port) as listener:
        gateway = Gateway(listener, leader, tls=tls)
        gateway.start()
        try:
            yield f"{'https' if tls else 'http'}://{host_in_url(host)}:{listener.getsockname()[1]}"
        finally:
            gateway.close()
