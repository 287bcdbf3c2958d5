"""Connections whose TLS handshake has not ended: their number is bounded, because each one needs a file descriptor."""

from __future__ import annotations

import contextlib
import socket
import weakref


class Handshakes:
    """The accepted connections of a server before their handshake has ended. Beyond the limit, a new one replaces the oldest.

    Parameters
    ----------
    limit : maximum number.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._begun: dict[int, weakref.ref[socket.socket]] = {}  # by descriptor, the oldest first

    def begin(self, connection: socket.socket) -> None:
        """Add an accepted connection; end the oldest one if there are too many."""
        self._begun.pop(connection.fileno(), None)  # of a connection that was closed
        self._begun[connection.fileno()] = weakref.ref(connection)
        if len(self._begun) > self._limit:
            self._begun = {number: each for number, each in self._begun.items() if _is_open(each, number)}
        if len(self._begun) > self._limit:
            oldest = self._begun.pop(next(iter(self._begun)))()
            if oldest is not None:
                with contextlib.suppress(OSError):  # the other side has ended it
                    oldest.shutdown(socket.SHUT_RDWR)

    def end(self, descriptor: int) -> None:
        """Remove a connection, because its handshake has ended."""
        self._begun.pop(descriptor, None)


def _is_open(reference: weakref.ref[socket.socket], descriptor: int) -> bool:
    connection = reference()
    return connection is not None and connection.fileno() == descriptor


class BoundedListener(socket.socket):
    """A listening socket that adds each accepted connection to `Handshakes`.

    Parameters
    ----------
    listener : the socket whose descriptor this one takes over.
    """

    def __init__(self, listener: socket.socket, handshakes: Handshakes) -> None:
        super().__init__(listener.family, listener.type, listener.proto, fileno=listener.detach())
        self._handshakes = handshakes

    def accept(self) -> tuple[socket.socket, object]:
        """Accept a connection."""
        connection, address = super().accept()
        self._handshakes.begin(connection)
        return connection, address
