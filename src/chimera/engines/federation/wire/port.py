"""The sending side of a connection."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from chimera.engines.federation.wire.frames import HEARTBEAT

MAX_QUEUED_BYTES = 32 << 20
"""Frames of this many bytes may wait for one connection before `Port.room` makes their sources wait."""
_LITTLE = 1 << 16
"""With fewer bytes in the buffer of the connection, a frame is sent at once."""
_USER_TIMEOUT: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)  # on Linux
_INFO: int | None = getattr(socket, "TCP_INFO", None) if sys.platform == "linux" else None
_RETRANSMITS = 2
"""The byte of ``tcp_info`` with the number of times that TCP has repeated bytes since the last confirmation."""


class Port:
    """Sends frames in order. `post` never waits, so that the reading side can always answer.

    Parameters
    ----------
    connection : a WebSocket connection of `websockets.asyncio`.
    silent_s : the connection breaks if the other side confirms no byte for so long while bytes are under way, in seconds.

    Attributes
    ----------
    used_s : when a frame was posted last, other than a heartbeat.
    """

    def __init__(self, connection: Any, silent_s: float) -> None:
        from websockets.protocol import State

        self._open = State.OPEN
        self.connection, self._transport = connection, connection.transport
        self._frames: deque[bytes] = deque()
        self._queued, self._busy = 0, False
        self._gathers, self._gathered, self._gathered_bytes = False, list[bytes](), 0
        self._wake, self._has_space = asyncio.Event(), asyncio.Event()
        self._has_space.set()
        self.used_s = -math.inf
        self._socket = connection.transport.get_extra_info("socket")
        if self._socket is not None and _USER_TIMEOUT is not None:
            self._socket.setsockopt(socket.IPPROTO_TCP, _USER_TIMEOUT, int(silent_s * 1000))

    def stuck(self) -> bool:
        """Return whether TCP has had to repeat bytes, and they are still not confirmed. On systems other than Linux: False."""
        if self._socket is None or _INFO is None:
            return False
        try:
            return bool(self._socket.getsockopt(socket.IPPROTO_TCP, _INFO, _RETRANSMITS + 1)[_RETRANSMITS])
        except OSError:  # the connection is closed: its reader gets the error
            return False

    def beat(self) -> None:
        """Send a heartbeat."""
        self._post(HEARTBEAT)

    def post(self, frame: bytes) -> None:
        """Send a frame after the frames that wait."""
        self.used_s = time.monotonic()
        self._post(frame)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Send the frames that are posted within the block by one system call at its end. The block must not wait."""
        self._gathers = True
        try:
            yield
        finally:
            self._gathers = False
            self._send_gathered()

    def _post(self, frame: bytes) -> None:
        if not self._frames and not self._busy and self._open is self.connection.state and self._is_little():
            self._gathered.append(frame)
            self._gathered_bytes += len(frame)
            if not self._gathers:
                self._send_gathered()
            return
        self._frames.append(frame)
        self._queued += len(frame)
        if self._queued > MAX_QUEUED_BYTES:
            self._has_space.clear()
        self._wake.set()

    def _is_little(self) -> bool:
        return bool(self._transport.get_write_buffer_size() + self._gathered_bytes < _LITTLE)

    def _send_gathered(self) -> None:
        """Send frames without a turn of the event loop, unless the connection is closing."""
        frames, self._gathered, self._gathered_bytes = self._gathered, [], 0
        if self.connection.state is self._open:
            protocol = self.connection.protocol
            for frame in frames:
                protocol.send_binary(frame)
            self._transport.writelines([data for data in protocol.data_to_send() if data])

    @property
    def full(self) -> bool:
        """Whether more than `MAX_QUEUED_BYTES` bytes wait."""
        return not self._has_space.is_set()

    @property
    def spare_bytes(self) -> int:
        """The number of bytes that can be posted until the port is full; 0 while more than half as many wait."""
        return MAX_QUEUED_BYTES - self._queued if self._queued <= MAX_QUEUED_BYTES // 2 else 0

    async def room(self) -> None:
        """Wait until fewer than `MAX_QUEUED_BYTES` bytes wait, or until `release`."""
        await self._has_space.wait()

    def release(self) -> None:
        """End the waits in `room`."""
        if self.full:
            self._has_space.set()
            self._has_space.clear()

    async def write(self) -> None:
        """Send frames until the connection ends; raise its exception."""
        try:
            while True:
                while self._frames:
                    frame, self._busy = self._frames.popleft(), True
                    await self.connection.send(frame)
                    self._busy = False
                    self._queued -= len(frame)
                    if self._queued <= MAX_QUEUED_BYTES:
                        self._has_space.set()
                self._wake.clear()
                await self._wake.wait()
        finally:
            self._has_space.set()  # a source that waits finds the connection closed
            self._frames.clear()
            self._queued = 0

    def abort(self) -> None:
        """Break the connection off."""
        self.connection.transport.abort()
