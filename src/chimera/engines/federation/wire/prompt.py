"""WebSocket connections that hand a frame over as soon as it is read, without a turn of the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.server import ServerConnection
from websockets.frames import Frame, Opcode

from chimera.core.errors import DataError

_MAX_UNREAD_BYTES = 4 << 20
"""Chimera sends no pings. The library answers each one, and a side that reads no answer would fill the memory."""

Take = Callable[[bytes], bool]
"""Handles a message, and returns whether it did; one that it cannot handle now waits for `rest`."""


class _Prompt:
    """The common part of both sides. Messages keep their order: none is handed over while an earlier one waits for `rest`.

    Attributes
    ----------
    take : handles binary messages of one frame; None: all messages wait for `rest`.
    """

    take: Take | None = None
    _waiting = 0  # messages that the library has, and the last message that `rest` returned
    _returned = False
    _failure: Exception | None = None

    def process_event(self, event: Any) -> None:
        """Hand a message over, or leave it to the library."""
        if isinstance(event, Frame):
            if event.opcode is Opcode.BINARY and event.fin and not self._waiting and self._took(event.data):
                return
            self._waiting += event.opcode in (Opcode.BINARY, Opcode.TEXT)  # the first frame of a message
            if event.opcode is Opcode.PING and self.transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:  # type: ignore[attr-defined]
                self.transport.abort()  # type: ignore[attr-defined]
        super().process_event(event)  # type: ignore[misc]

    def _took(self, data: Any) -> bool:
        if self.take is None or self._failure is not None:
            return False
        try:
            return self.take(bytes(data))
        except Exception as error:  # the task in `rest` raises the error, and ends the connection
            self._failure = error
            return False

    async def rest(self) -> bytes:
        """Return the next message that was not handed over. Until the next call, further messages wait.

        Raises
        ------
        DataError : the message is a text.
        Exception : the exception with which ``take`` has failed.
        """
        self._waiting -= self._returned
        self._returned = False
        message = await self.recv()  # type: ignore[attr-defined]
        self._returned = True
        if self._failure is not None:
            raise self._failure
        if not isinstance(message, bytes):
            raise DataError("a text frame")
        return message


class ToHub(_Prompt, ClientConnection):
    """The connection of a node or driver to its hub."""


class ToMember(_Prompt, ServerConnection):
    """The connection of a hub to a node or driver."""
