"""Connections whose handshake has not ended: their number is bounded, because each one needs a file descriptor and memory."""

from __future__ import annotations

import contextlib
import socket
import time
import weakref
from collections.abc import Hashable
from typing import Any, NamedTuple


def max_files() -> int:
    """Return the maximum number of files that this process may have open; a large number if there is no limit."""
    try:
        import resource
    except ModuleNotFoundError:  # on Windows
        return 1 << 20
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if files == resource.RLIM_INFINITY else files


class _Begun(NamedTuple):
    connection: weakref.ref[socket.socket]
    origin: Hashable
    since_s: float

    def opened(self, descriptor: int) -> socket.socket | None:
        connection = self.connection()
        return connection if connection is not None and connection.fileno() == descriptor else None


class Handshakes:
    """The accepted connections of a server before their handshake has ended. Beyond a limit, a new one replaces the oldest.

    Parameters
    ----------
    limit : maximum number.
    per_address : maximum number of one address, or of one network of IPv6 with a prefix of 64 bits; default: ``limit``.
    """

    def __init__(self, limit: int, per_address: int | None = None) -> None:
        self._limit, self._per_address = limit, limit if per_address is None else per_address
        self._begun: dict[int, _Begun] = {}  # by descriptor, the oldest first

    def begin(self, connection: socket.socket, address: Any) -> None:
        """Add a connection that was accepted from an address; end the oldest one if there are too many."""
        number, origin = connection.fileno(), _origin(connection, address)
        self._begun.pop(number, None)  # of a connection that was closed
        self._begun[number] = _Begun(weakref.ref(connection), origin, time.monotonic())
        if len(self._begun) <= min(self._limit, self._per_address):
            return
        self._begun = {number: each for number, each in self._begun.items() if each.opened(number) is not None}
        own = [number for number, each in self._begun.items() if each.origin == origin]
        if len(own) > self._per_address:
            self._break_off(own[0])
        elif len(self._begun) > self._limit:
            self._break_off(next(iter(self._begun)))

    def end(self, descriptor: int) -> None:
        """Remove a connection, because its handshake has ended."""
        self._begun.pop(descriptor, None)

    def break_off_older(self, than_s: float) -> None:
        """End the connections that were accepted before a time of the clock `time.monotonic`."""
        for number in [number for number, each in self._begun.items() if each.since_s < than_s]:
            self._break_off(number)

    def _break_off(self, number: int) -> None:
        opened = self._begun.pop(number).opened(number)
        if opened is not None:
            with contextlib.suppress(OSError):  # the other side has ended it
                opened.shutdown(socket.SHUT_RDWR)


def _origin(connection: socket.socket, address: Any) -> Hashable:
    """Return what the connections of one client have in common: a client of IPv6 has all addresses of a network."""
    if connection.family == socket.AF_INET6:
        return socket.inet_pton(socket.AF_INET6, address[0].partition("%")[0])[:8]
    return str(address[0] if isinstance(address, tuple) else address)


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
        self._handshakes.begin(connection, address)
        return connection, address
