"""Opening a connection to a hub, directly or through a proxy."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import urllib.parse
from collections.abc import Callable
from functools import partial
from typing import Any

from chimera.core.address import host_in_url
from chimera.engines.federation.credentials import Credentials
from chimera.engines.federation.wire.frames import CHUNK, GREETING, MAX_FRAME_BYTES, Hello, greeting
from chimera.engines.federation.wire.proxy import pass_through, proxy_for

_TCP_S, _SLOW_TCP_S = 1.0, 4.0  # limits of most tries, and of every fourth. TCP repeats a lost first packet after 1 s
_NAME_S = 0.2  # limit for an answer of the name server, if an older answer is known
_OPEN_S, _MAX_CONNECT_TIMEOUT_S = (
    2.0,
    16.0,
)  # limits of TLS and WebSocket; doubled after each failure, for a hub that many members dial
_PORTS = {"https": 443, "http": 80}
_PORT_OF_SOCKS = 1080


class Dialler:
    """Dials one hub.

    Parameters
    ----------
    credentials : the identity of this side, with the hub's address.
    hello : the first frame; also in a header of the request, so that it needs no round trip of its own.

    Raises
    ------
    ConfigurationError : the identity, or the proxy of the environment, cannot be used.
    """

    def __init__(self, credentials: Credentials, hello: Hello) -> None:
        self._credentials, self._uri = credentials, credentials.websocket()
        self._headers = {GREETING: greeting(hello)}
        self._tls = credentials.tls()
        self._proxy = proxy_for(credentials.hub)
        hub = urllib.parse.urlsplit(credentials.hub)
        name = hub.hostname or ""
        host = name if name.isascii() else name.encode("idna").decode()
        self._hub = f"{host_in_url(host)}:{hub.port or _PORTS['https']}"
        first = urllib.parse.urlsplit(self._proxy or credentials.hub)
        self._to = first.hostname or "", first.port or _PORTS.get(first.scheme, _PORT_OF_SOCKS)
        self._addresses: list[Any] = []
        self._lookup: asyncio.Future[list[Any]] | None = None
        self._limit_s = _OPEN_S

    async def reach(self, gap_s: Callable[[], float], failed: Callable[[Exception], Any]) -> socket.socket:
        """Return a TCP connection to the hub, or to the proxy on the way. Try until one try succeeds.

        Parameters
        ----------
        gap_s : returns the seconds from the start of a try to the start of the next one. A try without an answer continues
            meanwhile.
        failed : called with the exception of each try that failed.
        """
        tries: set[asyncio.Task[socket.socket]] = set()
        now_s = asyncio.get_running_loop().time
        try:
            for number in itertools.count():
                tries.add(asyncio.create_task(self._tcp(number)))
                next_s = now_s() + gap_s()
                while tries and (left_s := next_s - now_s()) > 0:
                    done, _ = await asyncio.wait(tries, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        tries.discard(task)
                        try:
                            return task.result()
                        except OSError as error:
                            failed(error)
                await asyncio.sleep(next_s - now_s())
        finally:
            for task in tries:
                task.cancel()
            for left in await asyncio.gather(*tries, return_exceptions=True):
                if isinstance(left, socket.socket):
                    left.close()
        raise AssertionError

    async def _tcp(self, number: int) -> socket.socket:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_TCP_S if number % 4 else _SLOW_TCP_S):
            addresses = await self._resolved()
            family, kind, protocol, _, address = addresses[number % len(addresses)]
            made = socket.socket(family, kind, protocol)
            try:
                made.setblocking(False)
                await loop.sock_connect(made, address)
            except BaseException:
                made.close()
                raise
            return made

    async def _resolved(self) -> list[Any]:
        """Return the addresses of the hub or proxy; those of last time if the name server is cut off as well."""
        if self._lookup is None or self._lookup.done():  # one at a time: each takes a thread for as long as it lasts
            ask = partial(socket.getaddrinfo, *self._to, type=socket.SOCK_STREAM)
            self._lookup = asyncio.get_running_loop().run_in_executor(None, ask)
        done, _ = await asyncio.wait({self._lookup}, timeout=_NAME_S if self._addresses else None)
        if done and (self._lookup.exception() is None or not self._addresses):
            self._addresses = self._lookup.result()
        return self._addresses

    async def open(self, reached: socket.socket) -> Any:
        """Return a WebSocket connection over a TCP connection to the hub or to a proxy.

        For a proxy with TLS or SOCKS, the library opens another connection.
        """
        from websockets.asyncio.client import connect

        from chimera.engines.federation.wire.prompt import ToHub

        limit_s, self._limit_s = self._limit_s, min(2 * self._limit_s, _MAX_CONNECT_TIMEOUT_S)
        way: dict[str, Any] = {"sock": reached}
        if self._proxy is not None and urllib.parse.urlsplit(self._proxy).scheme == "http":
            await self._through(reached, self._proxy, limit_s)
        elif self._proxy is not None:
            reached.close()
            way = {"proxy": self._proxy}
        return await connect(
            self._uri,
            ssl=self._tls, compression=None, max_size=MAX_FRAME_BYTES, max_queue=8, write_limit=2 * CHUNK, ping_interval=None,
            close_timeout=1.0, open_timeout=limit_s, user_agent_header=None, logger=_quiet(),
            additional_headers=self._headers, create_connection=ToHub, **way,
        )  # fmt: skip

    async def _through(self, reached: socket.socket, proxy: str, limit_s: float) -> None:
        """Ask the proxy to connect this connection to the hub; close it if the proxy does not do so."""
        try:
            async with asyncio.timeout(limit_s):
                await pass_through(reached, proxy, self._hub)
        except BaseException:
            reached.close()
            raise

    def renew(self) -> None:
        """Use the certificate that is in the files of the identity now."""
        self._tls = self._credentials.tls()

    def up(self) -> None:
        """Note that a connection is in use: the next connections have the short limit again."""
        self._limit_s = _OPEN_S


def _quiet() -> logging.Logger:
    """Return a logger for the library, which logs breaks with tracebacks."""
    logger = logging.getLogger("chimera.federation.websockets")
    logger.setLevel(logging.CRITICAL + 1)
    return logger
