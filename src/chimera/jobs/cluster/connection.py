"""How the daemon and the slots of one machine talk: messages as JSON, a line each, over a Unix socket."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from chimera.jobs.scheduling.messages import Attempt, ToCoordinator, ToSeat

T = TypeVar("T")


class Hello(Struct, frozen=True, tag=True):
    """The first word of a slot.

    Attributes
    ----------
    attempt : that it has promised its place to, if any.
    """

    name: str
    host: str
    pid: int
    attempt: Attempt | None = None


FromSlot = Hello | ToCoordinator


class Connection(Generic[T]):
    """One end of a connection.

    Parameters
    ----------
    messages : the type of those that arrive.
    """

    def __init__(self, own: socket.socket, messages: Any) -> None:
        self._socket, self._received = own, b""
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(messages)

    def fileno(self) -> int:
        """Return the descriptor, for `select`."""
        return self._socket.fileno()

    def send(self, message: Hello | ToCoordinator | ToSeat) -> None:
        """Send a message; raises OSError if the other end is gone, or takes nothing for a second."""
        self._socket.settimeout(1.0)
        self._socket.sendall(msgspec.json.encode(message) + b"\n")

    def receive(self) -> Iterator[T]:
        """Yield the messages that have arrived, at least a part of one; raises EOFError if the other end is gone."""
        self._socket.settimeout(None)
        try:
            data = self._socket.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            raise EOFError
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            yield self._decoder.decode(line)

    def close(self) -> None:
        """Let go of it; whoever waits in `receive` finds the end."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def to_daemon(own: socket.socket) -> Connection[ToSeat]:
    """Return a slot's end."""
    return Connection(own, ToSeat)


def to_slot(own: socket.socket) -> Connection[Hello | ToCoordinator]:
    """Return the daemon's end."""
    return Connection(own, FromSlot)
