"""Connections between the daemon and the workers of one machine: JSON lines over a Unix socket."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from chimera.jobs.scheduling.messages import Attempt, ToCoordinator, ToWorker

T = TypeVar("T")

_SEND_LIMIT = struct.pack("ll", 1, 0)  # seconds and microseconds


class Hello(Struct, frozen=True, tag=True):
    """First message of a worker after it connects.

    Attributes
    ----------
    name : name of the worker.
    host, pid : its machine and process.
    attempt : attempt that has its lease; None if it is free.
    """

    name: str
    host: str
    pid: int
    attempt: Attempt | None = None


FromWorker = Hello | ToCoordinator


class Connection(Generic[T]):
    """One end of a connection.

    Parameters
    ----------
    own : socket of this end.
    messages : type of the received messages.
    """

    def __init__(self, own: socket.socket, messages: Any) -> None:
        own.settimeout(None)  # the limit of the next line is for sending only, while another thread receives
        own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_LIMIT)
        self._socket, self._received = own, b""
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(messages)

    def fileno(self) -> int:
        """Return the file descriptor, for `select`."""
        return self._socket.fileno()

    def send(self, message: Hello | ToCoordinator | ToWorker) -> None:
        """Send a message; raises OSError, and ends the connection, if the peer is gone or reads nothing for 1 s."""
        try:
            self._socket.sendall(msgspec.json.encode(message) + b"\n")
        except OSError:  # a part of the line may be sent, so no other line can follow
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            raise

    def receive(self) -> Iterator[T]:
        """Wait for data, and yield the complete messages received; raises EOFError if the peer is gone."""
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
        """Close the connection; a thread that waits in `receive` gets an EOFError."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def connection_to_daemon(own: socket.socket) -> Connection[ToWorker]:
    """Return the worker's end of a connection."""
    return Connection(own, ToWorker)


def connection_to_worker(own: socket.socket) -> Connection[Hello | ToCoordinator]:
    """Return the daemon's end of a connection."""
    return Connection(own, FromWorker)
