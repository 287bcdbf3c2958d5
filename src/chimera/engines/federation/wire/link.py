"""The connection of a node or driver to its hub, which is opened again after each break."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
from collections.abc import Callable
from typing import Any, Protocol

from chimera.core.errors import DataError, RunError
from chimera.engines.federation.credentials import Credentials
from chimera.engines.federation.renewal import Renewal
from chimera.engines.federation.wire.frames import (
    BEAT,
    CHUNK,
    MOST_FRAME,
    Beat,
    Header,
    Hello,
    Present,
    Refused,
    Renew,
    Renewed,
    pack,
    unpack,
)
from chimera.engines.federation.wire.port import Port

RECENT_S = 60.0
"""While the link was up less than this long ago, tries follow one another within half a second."""
_FIRST_PAUSE_S, _RECENT_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 0.5, 30.0
_OPEN_S, _QUICK_OPEN_S, _QUICK_TRIES = 15.0, 1.5, 4  # TCP repeats a lost first packet after 1 s, and then after 3 s
_SILENT_S = 3.0  # without a confirmation of sent bytes; a retransmission of TCP after a longer gap comes too late
_BEAT_S, _BUSY_BEAT_S, _ANSWER_S = 10.0, 1.0, 20.0


class HubRefusedError(RunError):
    """The hub does not accept this node or driver: its certificate, its version, or a second process of its name."""


class Peer(Protocol):
    """What uses a link; all methods are called in the link's event loop and do not wait."""

    @property
    def busy(self) -> bool:
        """Whether calls are under way, so that a break should be noticed soon."""

    def joined(self, port: Port, present: Present) -> None:
        """Note that the connection is open."""

    def received(self, header: Header, payload: memoryview) -> None:
        """Handle a frame."""

    def parted(self) -> None:
        """Note that the connection is closed."""


class Link:
    """One connection to the hub.

    Parameters
    ----------
    credentials : the identity of this side, with the hub's address.
    hello : the first frame of every connection.
    peer : handles what arrives.
    renewed : called with each renewed certificate, in PEM.
    clock : returns seconds since 1970, by which the certificate is renewed.

    Attributes
    ----------
    why : why the last connection ended, or could not be opened; empty before.
    """

    def __init__(
        self,
        credentials: Credentials,
        hello: Hello,
        peer: Peer,
        renewed: Callable[[bytes], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._credentials, self._hello, self._peer = credentials, hello, peer
        self._tls = credentials.tls()
        self._renewal, self._renewed = Renewal(credentials, clock), renewed
        self._up_s = time.monotonic()
        self._tries = 0
        self._heard_s = 0.0
        self.why = ""

    async def run(self) -> None:
        """Keep the connection open until the task is cancelled.

        Raises
        ------
        HubRefusedError : the hub does not accept this side, or is not the hub of the authority that this side knows.
        """
        while True:
            try:
                await self._connected()
            except HubRefusedError:
                raise
            except Exception as error:  # any failure of the network, a proxy or the hub: try again
                _check_hub(error, self._credentials.hub)
                self.why = _reason(error)
            pause_s = self._pause_s()
            if pause_s:
                await asyncio.sleep(pause_s)

    def _recently(self) -> bool:
        return time.monotonic() - self._up_s < RECENT_S

    def _pause_s(self) -> float:
        """Return the pause before the next try: none before the first, then a random one with a growing limit."""
        self._tries += 1
        most = _RECENT_PAUSE_S if self._recently() else _LONGEST_PAUSE_S
        grown = _FIRST_PAUSE_S * 2.0 ** min(self._tries, 16) if self._tries > 1 else 0.0
        return random.uniform(0.0, min(most, grown))  # noqa: S311 - it spreads load, and protects nothing

    async def _connected(self) -> None:
        """Open the connection, and handle frames until it breaks."""
        if mistake := self._credentials.mistake():
            raise HubRefusedError(mistake)
        from websockets.asyncio.client import connect

        quick = self._tries <= _QUICK_TRIES or self._tries % 2  # a slow network needs the longer limit
        connection = await connect(
            self._credentials.websocket(),
            ssl=self._tls, compression=None, max_size=MOST_FRAME, max_queue=8, write_limit=2 * CHUNK,
            ping_interval=None, close_timeout=1.0, open_timeout=_QUICK_OPEN_S if quick else _OPEN_S,
            user_agent_header=None, logger=_quiet(),
        )  # fmt: skip
        try:
            await connection.send(pack(self._hello))
            async with asyncio.timeout(_OPEN_S):
                header, _ = unpack(_bytes(await connection.recv()))
            if isinstance(header, Refused):
                raise HubRefusedError(f"the hub {self._credentials.hub} refuses this connection: {header.reason}")
            if not isinstance(header, Present):
                raise DataError("the hub answered with another frame than expected")
            await self._serve(connection, header)
        finally:
            connection.transport.abort()

    async def _serve(self, connection: Any, present: Present) -> None:
        port = Port(connection, _SILENT_S)
        self._tries, self._heard_s = 0, time.monotonic()
        self._peer.joined(port, present)
        tasks = [
            asyncio.create_task(work) for work in (port.write(), self._beat(port, present), self._read(connection))
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            done.pop().result()
        finally:
            for task in tasks:
                task.cancel()
            self._up_s = time.monotonic()
            self._peer.parted()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, connection: Any) -> None:
        while True:
            header, payload = unpack(_bytes(await connection.recv()))
            self._heard_s = time.monotonic()
            if isinstance(header, Refused):
                raise HubRefusedError(f"the hub {self._credentials.hub} ended this connection: {header.reason}")
            if isinstance(header, Renewed):
                self._take(header, payload)
            elif not isinstance(header, Beat):
                self._peer.received(header, payload)

    def _take(self, header: Renewed, payload: memoryview) -> None:
        """Use a renewed certificate from the next connection on; without one, the hub is asked again in an hour."""
        if not header.reason:
            self._renewal.take(bytes(payload))
            self._tls = self._credentials.tls()
            self._renewed(bytes(payload))

    async def _beat(self, port: Port, present: Present) -> None:
        """Send heartbeats, more often while calls are under way, and renew the certificate; raise if none is answered."""
        asked_s: float | None = None
        last_s = time.monotonic()
        while True:
            if present.revision and (request := self._renewal.request()) is not None:
                port.post(pack(Renew(), request))
            await asyncio.sleep(_BUSY_BEAT_S)
            now_s = time.monotonic()
            if asked_s is not None and self._heard_s >= asked_s:
                asked_s = None
            if asked_s is not None and now_s - asked_s > _ANSWER_S:
                raise TimeoutError("the hub does not answer")
            if now_s - last_s >= (_BUSY_BEAT_S if self._peer.busy else _BEAT_S):
                port.post(BEAT)
                last_s = now_s
                asked_s = asked_s or now_s


def ignore_ends(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handle an exception of a callback: the library raises `EOFError` if a proxy closes the connection twice."""
    if not isinstance(context.get("exception"), EOFError):
        loop.default_exception_handler(context)


def _bytes(frame: str | bytes) -> bytes:
    if not isinstance(frame, bytes):
        raise DataError("a text frame")
    return frame


def _check_hub(error: Exception, hub: str) -> None:
    """Raise `HubRefusedError` if the certificate of the hub is wrong."""
    known: BaseException | None = error
    while known is not None:
        if isinstance(known, ssl.SSLCertVerificationError):
            raise HubRefusedError(f"the hub {hub} could not prove its identity: {known.verify_message}") from error
        known = known.__cause__ or known.__context__


def _reason(error: BaseException) -> str:
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(said.split())[:200] or type(error).__name__


def _quiet() -> logging.Logger:
    """Return a logger for the library, which logs breaks with tracebacks."""
    logger = logging.getLogger("chimera.federation.websockets")
    logger.setLevel(logging.CRITICAL + 1)
    return logger
