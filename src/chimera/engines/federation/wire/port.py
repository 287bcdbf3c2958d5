"""The sending side of a connection."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import Any

MOST_QUEUED = 32 << 20
"""Frames of this many bytes may wait for one connection before `Port.room` makes their sources wait."""
_USER_TIMEOUT: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)  # on Linux


class Port:
    """Sends frames in order. `post` never waits, so that a side that reads always can answer.

    Parameters
    ----------
    connection : a WebSocket connection of `websockets.asyncio`.
    silent_s : the connection breaks if the other side confirms no byte for so long while bytes are under way, in seconds.
    """

    def __init__(self, connection: Any, silent_s: float) -> None:
        self.connection = connection
        self._frames: deque[bytes] = deque()
        self._queued = 0
        self._wake, self._room = asyncio.Event(), asyncio.Event()
        self._room.set()
        opened = connection.transport.get_extra_info("socket")
        if opened is not None and _USER_TIMEOUT is not None:
            opened.setsockopt(socket.IPPROTO_TCP, _USER_TIMEOUT, int(silent_s * 1000))

    def post(self, frame: bytes) -> None:
        """Send a frame after the frames that wait."""
        self._frames.append(frame)
        self._queued += len(frame)
        if self._queued > MOST_QUEUED:
            self._room.clear()
        self._wake.set()

    async def room(self) -> None:
        """Wait until fewer than `MOST_QUEUED` bytes wait."""
        await self._room.wait()

    async def write(self) -> None:
        """Send frames until the connection ends; raise its exception."""
        try:
            while True:
                while self._frames:
                    frame = self._frames.popleft()
                    await self.connection.send(frame)
                    self._queued -= len(frame)
                    if self._queued <= MOST_QUEUED:
                        self._room.set()
                self._wake.clear()
                await self._wake.wait()
        finally:
            self._room.set()  # whoever waits finds the connection closed
            self._frames.clear()

    def abort(self) -> None:
        """Break the connection off."""
        self.connection.transport.abort()
