"""An authenticated connection between two processes that have the cluster's token.

Both ends prove that they know the token. Each message has an HMAC-SHA256 over its number and body, with one key per
connection and direction. Messages are not encrypted: any host that can read the network traffic can read them.
"""

from __future__ import annotations

import contextlib
import hmac
import itertools
import queue
import secrets
import socket
import struct
import threading
import time

MAX_BYTES = 128 << 20
"""Maximum size of a message; a larger one ends the connection."""
HANDSHAKE_S = 2.0
"""Maximum seconds until the other end has proved that it has the token, and has sent its name."""
_MAX_QUEUED_BYTES = 2 * MAX_BYTES
_NONCE = _CODE = 32
_PROBE_S = 0.1


class Connection:
    """An authenticated connection. The thread that made it reads; a separate thread writes.

    Until `end_handshake` is called, one deadline applies to all messages in both directions.

    Attributes
    ----------
    queued_bytes : size of the messages that are not sent yet.
    """

    def __init__(self, raw: socket.socket, token: bytes, *, client: bool) -> None:
        self._socket = raw
        self._deadline_s: float | None = time.monotonic() + HANDSHAKE_S
        raw.settimeout(HANDSHAKE_S)
        own = secrets.token_bytes(_NONCE)
        raw.sendall(own)
        other = self._receive_exactly(_NONCE)
        nonces = own + other if client else other + own
        mine, theirs = (b"client", b"server") if client else (b"server", b"client")
        raw.sendall(_code(token, b"proof of the " + mine + nonces))
        if not hmac.compare_digest(self._receive_exactly(_CODE), _code(token, b"proof of the " + theirs + nonces)):
            raise ConnectionError("the other end does not have the cluster's token")
        self._send_key, self._receive_key = (_code(token, b"key of the " + who + nonces) for who in (mine, theirs))
        self._sent, self._received = itertools.count(), itertools.count()
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.queued_bytes = 0
        self._lock = threading.Lock()  # of queued_bytes: any thread sends
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # a machine without network sends no FIN
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 5000)
        threading.Thread(target=self._write, name="chimera-raft-send", daemon=True).start()

    def send(self, body: bytes) -> None:
        """Queue a message. Any thread may call it. The connection is closed if too much is queued."""
        self._count(len(body))
        if self.queued_bytes > _MAX_QUEUED_BYTES:
            self.close()
        else:
            self._queue.put(body)

    def end_handshake(self) -> None:
        """Remove the deadline of the handshake."""
        self._deadline_s = None
        self._socket.settimeout(None)

    def receive(self, max_bytes: int = MAX_BYTES) -> bytes:
        """Return the next message."""
        (size,) = struct.unpack("!I", self._receive_exactly(4))
        if size > max_bytes:
            raise ConnectionError(f"a message of {size} bytes is too large")
        code, body = self._receive_exactly(_CODE), self._receive_exactly(size)
        if not hmac.compare_digest(code, _code(self._receive_key, struct.pack("!Q", next(self._received)) + body)):
            raise ConnectionError("a message has the wrong code")
        return body

    def close(self) -> None:
        """End both directions."""
        self._queue.put(None)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _receive_exactly(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            if self._deadline_s is not None:
                self._socket.settimeout(max(self._deadline_s - time.monotonic(), 0.001))
            part = self._socket.recv(min(count - len(found), 1 << 20))
            if not part:
                raise ConnectionError("the connection has ended")
            found += part
        return bytes(found)

    def _count(self, more: int) -> None:
        with self._lock:
            self.queued_bytes += more

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # the reader reports it
            while (body := self._queue.get()) is not None:
                code = _code(self._send_key, struct.pack("!Q", next(self._sent)) + body)
                self._socket.sendall(struct.pack("!I", len(body)) + code + body)
                self._count(-len(body))


def listen(address: str) -> socket.socket:
    """Return a socket that listens at ``host:port`` only."""
    return socket.create_server(parse_address(address))


def refuses(address: str) -> bool:
    """Return whether a machine answers that no process listens at an address, ``http://host:port``; False if unknown."""
    try:
        with socket.create_connection(parse_address(address.rpartition("/")[2]), _PROBE_S):
            return False
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError):
        return False


def _code(key: bytes, body: bytes) -> bytes:
    return hmac.digest(key, body, "sha256")


def parse_address(address: str) -> tuple[str, int]:
    """Return the host and the port of an address."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
