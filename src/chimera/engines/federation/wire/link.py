"""The connection of a node or driver to its hub, which is opened again after each break."""

from __future__ import annotations

import asyncio
import math
import random
import ssl
import time
from collections.abc import Callable
from typing import Any, Protocol

from chimera.core.errors import DataError, RunError
from chimera.engines.federation.credentials import Credentials
from chimera.engines.federation.renewal import Renewal
from chimera.engines.federation.wire.dialing import Dialler
from chimera.engines.federation.wire.frames import (
    ConnectedNodes,
    Header,
    Heartbeat,
    Hello,
    Refused,
    Renew,
    Renewed,
    pack,
    unpack,
)
from chimera.engines.federation.wire.port import Port

_MIN_RETRY_DELAY_S, _RETRY_DELAY_SHARE, _MAX_RETRY_DELAY_S = (
    0.1,
    0.1,
    30.0,
)  # seconds between tries; as a share of the time without a connection
_HELLO_S = 5.0
_SILENT_S = 10.0  # seconds without a confirmation of sent bytes; a second connection is tried much earlier
_HEARTBEAT_S, _BUSY_HEARTBEAT_S, _ACTIVE_HEARTBEAT_S, _ANSWER_S = 10.0, 1.0, 0.25, 20.0
_BUSY_S, _ACTIVE_S = 30.0, 2.0  # seconds after the last call, and after the last frame
_CHECK_INTERVAL_S = 0.1


class HubRefusedError(RunError):
    """The hub does not accept this node or driver: its certificate, its version, or a second process of its name."""


class Peer(Protocol):
    """The user of a link. All methods are called in the link's event loop and do not wait."""

    @property
    def busy(self) -> bool:
        """Whether calls are under way, so that a break should be noticed soon."""

    def joined(self, port: Port, present: ConnectedNodes) -> None:
        """Note that the connection is open."""

    def received(self, header: Header, payload: memoryview) -> None:
        """Handle a frame."""

    def parted(self) -> None:
        """Note that the connection is closed."""


class Link:
    """One connection to the hub.

    While TCP repeats bytes that are not confirmed, a second connection is opened. The one that works first is used.

    Parameters
    ----------
    credentials : the identity of this side, with the hub's address.
    hello : the first frame of every connection.
    peer : handles what arrives.
    renewed : called with each renewed certificate, in PEM.
    clock : returns seconds since 1970, by which the certificate is renewed.

    Attributes
    ----------
    reason : why the last connection ended, or could not be opened; empty before.
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
        self._renewal, self._renewed = Renewal(credentials, clock), renewed
        self._dialler = Dialler(credentials, hello)
        self._up_s = time.monotonic()
        self._broke_s = self._last_received_s = 0.0
        self._used_s = -math.inf  # when a frame came or went last, other than a heartbeat
        self.reason = ""

    async def run(self) -> None:
        """Keep the connection open until the task is cancelled.

        Raises
        ------
        HubRefusedError : the hub does not accept this side, or is not the hub of the authority that this side knows.
        """
        connection: Any = None
        while True:
            try:
                if connection is None:
                    connection = await self._opened()
                connection = await self._use(connection)
            except HubRefusedError:
                raise
            except Exception as error:  # any failure of the network, a proxy or the hub: try again
                connection = None
                if self._failed(error):
                    await asyncio.sleep(self._gap_s())

    def _failed(self, error: Exception) -> bool:
        """Note why there is no connection; return whether there was none before."""
        _check_hub(error, self._credentials.hub)
        self.reason = _reason(error)
        before_s, self._broke_s = self._broke_s, self._up_s
        return before_s == self._up_s

    def _gap_s(self) -> float:
        """Return the seconds between two tries: a random number that grows with the time without a connection."""
        limit_s = max(_MIN_RETRY_DELAY_S, _RETRY_DELAY_SHARE * (time.monotonic() - self._up_s))
        return min(limit_s, _MAX_RETRY_DELAY_S) * random.uniform(0.5, 1.0)  # noqa: S311 - it spreads load, and protects nothing

    async def _opened(self, wanted: Callable[[], bool] = lambda: True) -> Any:
        """Return a new connection; None if it is not wanted any more once the network works."""
        if mistake := self._credentials.mistake():
            raise HubRefusedError(mistake)
        reached = await self._dialler.reach(self._gap_s, self._failed)
        if not wanted():
            reached.close()
            return None
        return await self._dialler.open(reached)

    async def _use(self, connection: Any) -> Any:
        """Greet the hub, and handle frames until the connection breaks; return another connection if it is open sooner."""
        try:
            await connection.send(pack(self._hello))
            async with asyncio.timeout(_HELLO_S):
                header, _ = unpack(await connection.rest())
            if isinstance(header, Refused):
                raise HubRefusedError(f"the hub {self._credentials.hub} refuses this connection: {header.reason}")
            if not isinstance(header, ConnectedNodes):
                raise DataError("the hub answered with another frame than expected")
            return await self._serve(connection, header)
        finally:
            connection.transport.abort()

    async def _serve(self, connection: Any, present: ConnectedNodes) -> Any:
        port = Port(connection, _SILENT_S)
        self._dialler.up()
        self._last_received_s = time.monotonic()
        self._peer.joined(port, present)
        connection.take = self._take
        work = port.write(), self._beat(port, present), self._read(connection), self._replaced(port)
        tasks = [asyncio.create_task(each) for each in work]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return (tasks[-1] if tasks[-1] in done else done.pop()).result()
        finally:
            connection.take = None
            for task in tasks:
                task.cancel()
            self._up_s = time.monotonic()
            self._peer.parted()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _replaced(self, port: Port) -> Any:
        """Return a second connection if TCP reaches the hub before the first one works again."""
        while True:
            await self._look(port)
            if not port.stuck():
                continue
            self._up_s = time.monotonic()
            try:
                connection = await self._opened(port.stuck)
            except HubRefusedError:
                raise
            except Exception as error:  # an error of TLS, a proxy or the hub: the first connection may still recover
                self._failed(error)
                continue
            if connection is not None:  # the hub has been greeted, and has ended the first connection
                return connection

    async def _read(self, connection: Any) -> None:
        while True:
            self._take(await connection.rest())

    def _take(self, frame: bytes) -> bool:
        """Handle a frame; return True."""
        header, payload = unpack(frame)
        self._last_received_s = time.monotonic()
        if isinstance(header, Refused):
            raise HubRefusedError(f"the hub {self._credentials.hub} ended this connection: {header.reason}")
        if isinstance(header, Renewed):
            self._use_renewed(header, payload)
        elif not isinstance(header, Heartbeat):
            self._used_s = self._last_received_s
            self._peer.received(header, payload)
        return True

    def _use_renewed(self, header: Renewed, payload: memoryview) -> None:
        """Use a renewed certificate from the next connection on; without one, the hub is asked again in an hour."""
        if not header.reason:
            self._renewal.take(bytes(payload))
            self._dialler.renew()
            self._renewed(bytes(payload))

    async def _look(self, port: Port) -> None:
        """Wait for a short time, which is shorter while frames are exchanged."""
        now_s = time.monotonic()
        self._used_s = max(self._used_s, port.used_s)
        await asyncio.sleep(_CHECK_INTERVAL_S if now_s - self._used_s < _ACTIVE_S else _BUSY_HEARTBEAT_S)

    def _beat_s(self, now_s: float) -> float:
        """Return after how many seconds of silence a heartbeat is due."""
        quiet_s = now_s - self._used_s
        if quiet_s < _ACTIVE_S:
            return _ACTIVE_HEARTBEAT_S
        return _BUSY_HEARTBEAT_S if quiet_s < _BUSY_S or self._peer.busy else _HEARTBEAT_S

    async def _beat(self, port: Port, present: ConnectedNodes) -> None:
        """Send heartbeats, more often during calls, and renew the certificate; raise if no answer arrives."""
        asked_s: float | None = None
        last_s = time.monotonic()
        while True:
            if present.revision and (request := self._renewal.request()) is not None:
                port.post(pack(Renew(), request))
            await self._look(port)
            now_s = time.monotonic()
            if asked_s is not None and self._last_received_s >= asked_s:
                asked_s = None
            if asked_s is not None and now_s - asked_s > _ANSWER_S:
                raise TimeoutError("the hub does not answer")
            silent_s = now_s - max(last_s, self._last_received_s)
            if silent_s >= self._beat_s(now_s) or now_s - last_s >= _HEARTBEAT_S:
                port.beat()
                last_s = now_s
                asked_s = asked_s or now_s


def ignore_ends(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handle an exception of a callback: the library fails if a proxy closes a connection twice, or before it is open."""
    error = context.get("exception")
    if not (isinstance(error, EOFError) or (isinstance(error, AttributeError) and error.name == "recv_messages")):
        loop.default_exception_handler(context)


def _check_hub(error: Exception, hub: str) -> None:
    """Raise `HubRefusedError` if the certificate of the hub is wrong."""
    known: BaseException | None = error
    while known is not None:
        if isinstance(known, ssl.SSLCertVerificationError):
            raise HubRefusedError(f"the hub {hub} could not prove its identity: {known.verify_message}") from error
        known = known.__cause__ or known.__context__


def _reason(error: BaseException) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split())[:200] or type(error).__name__
