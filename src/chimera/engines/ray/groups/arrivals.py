"""Connections that other members of a group open. Each begins with a secret, without which it is closed."""

from __future__ import annotations

import errno
import hmac
import selectors
import socket
import struct
import time
from types import TracebackType
from typing import Self

_HELLO = struct.Struct("<32sq")  # the secret of the listening member, and the rank of the connecting one
_HELLO_S = 3.0
_MAX_WAITING = 256


def greet(sock: socket.socket, secret: str, rank: int) -> None:
    """Send the secret of the listening member and the own rank."""
    sock.sendall(_HELLO.pack(secret.encode(), rank))


class Arrivals:
    """Accepts connections while its context lasts, many at a time: a silent stranger does not delay members.

    Parameters
    ----------
    listener : a listening socket.
    secret : the secret that a member knows, 32 characters.
    """

    def __init__(self, listener: socket.socket, secret: str) -> None:
        self._listener, self._secret = listener, secret.encode()
        self._waiting: dict[socket.socket, tuple[bytearray, float]] = {}  # received bytes and deadline; oldest first
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Self:
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for sock in list(self._waiting):
            self._refuse(sock)
        self._selector.close()

    def wait(self, within_s: float) -> list[tuple[int, socket.socket]]:
        """Return ranks and sockets of members that have connected, as soon as there is one, or none after ``within_s`` seconds.

        The rank is the one that the member has sent, any integer.
        """
        found: list[tuple[int, socket.socket]] = []
        end_s = time.monotonic() + within_s
        while not found and (left_s := end_s - time.monotonic()) > 0:
            for key, _ in self._selector.select(left_s):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj in self._waiting:  # otherwise it has just been refused
                    found += self._read(key.fileobj)
            now_s = time.monotonic()
            for sock in [sock for sock, (_, deadline_s) in self._waiting.items() if deadline_s < now_s]:
                self._refuse(sock)
        return found

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                raise
            return  # the other side has ended it already
        sock.setblocking(False)
        if len(self._waiting) >= _MAX_WAITING:
            self._refuse(next(iter(self._waiting)))
        self._waiting[sock] = bytearray(), time.monotonic() + _HELLO_S
        self._selector.register(sock, selectors.EVENT_READ)

    def _read(self, sock: socket.socket) -> list[tuple[int, socket.socket]]:
        """Read a part of the greeting; return the rank and the socket of a member whose greeting is complete."""
        received = self._waiting[sock][0]
        try:
            part = sock.recv(_HELLO.size - len(received))
        except BlockingIOError:
            return []
        except OSError:
            part = b""
        received += part
        if part and len(received) < _HELLO.size:
            return []
        secret, rank = _HELLO.unpack(received) if part else (b"", 0)
        if not hmac.compare_digest(secret, self._secret):
            self._refuse(sock)
            return []
        self._selector.unregister(sock)
        del self._waiting[sock]
        return [(rank, sock)]

    def _refuse(self, sock: socket.socket) -> None:
        self._selector.unregister(sock)
        del self._waiting[sock]
        sock.close()
