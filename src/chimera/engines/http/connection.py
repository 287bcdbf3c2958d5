"""A kept-alive connection to a node. httptools parses answers, in a tenth of the time of ``http.client``."""

from __future__ import annotations

import contextlib
import errno
import math
import select
import socket
import ssl
import time
from typing import Any, NamedTuple

from chimera.core.address import Address, host_in_url
from chimera.core.errors import TimeLimitError
from chimera.engines.http.wire import CONTENT_TYPE

JSON = "application/json"
ACCEPT = f"{CONTENT_TYPE}, {JSON}"
_OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_READ_BYTES = 1 << 18
_MAX_HEAD_BYTES = 1 << 20
_QUICK_ACK: int | None = getattr(socket, "TCP_QUICKACK", None)  # on Linux


class Answer(NamedTuple):
    """The answer of a node."""

    status: int
    content_type: str
    body: bytes | bytearray | memoryview


class Unreachable(Exception):  # noqa: N818 - it says what the node is
    """No process listens at the address, or the connection broke.

    Attributes
    ----------
    here : whether this process has no room for a connection; the node may be reachable.
    """

    def __init__(self, text: str, *, here: bool = False) -> None:
        super().__init__(text)
        self.here = here


class InvalidAnswer(Exception):  # noqa: N818 - it says what came
    """The received bytes are not a valid answer."""


class Connection:
    """A connection for one thread. It is opened when first used, and again after the node has closed it.

    Parameters
    ----------
    token : token of every request; sent only over TLS or to this machine, see `Address.check_token_is_protected`.
    tls : TLS context for an https node; default: that of the system.
    max_bytes : maximum size of an answer, in bytes.
    """

    waits = False
    last_received_s = -math.inf

    def __init__(self, address: Address, token: str | None, tls: ssl.SSLContext | None, max_bytes: int) -> None:
        if token:
            address.check_token_is_protected()
        self._address, self._tls, self._max_bytes = address, tls, max_bytes
        self._socket: socket.socket | None = None
        self._broken_by: str | None = None
        authorization = f"Authorization: Bearer {token}\r\n" if token else ""
        self._head = f"Host: {host_in_url(address.host)}:{address.port}\r\nAccept: {ACCEPT}\r\n{authorization}"

    def request(
        self, verb: str, path: str, body: bytes = b"", content_type: str = JSON, *, timeout_s: float, idempotent: bool
    ) -> Answer:
        """Send a request and return the answer.

        If the node closes a kept connection, an idempotent request is sent again. Another request is sent again only if it was
        certainly not sent before.

        Raises
        ------
        TimeLimitError : the request exceeded its time limit.
        Unreachable : no process listens, or the connection broke.
        InvalidAnswer : the answer is not HTTP, incomplete or too large.
        """
        deadline_s = time.monotonic() + timeout_s
        kept = self._socket is not None and not self._was_closed()
        try:
            return self._exchange(verb, path, body, content_type, deadline_s)
        except (ConnectionError, ssl.SSLEOFError) as error:
            self._drop()
            if not (kept and idempotent) or self._broken_by:
                raise Unreachable(self._broken_by or _said(error)) from error
        except TimeoutError as error:
            self._drop()
            raise TimeLimitError(f"{verb} {self._address.url}{path} took longer than {timeout_s:g} s") from error
        except OSError as error:
            self._drop()
            raise Unreachable(self._broken_by or _said(error), here=error.errno in _OUT_OF_RESOURCES) from error
        except InvalidAnswer as error:
            self._drop()
            if self._broken_by:
                raise Unreachable(self._broken_by) from error
            raise
        left_s = max(deadline_s - time.monotonic(), 0.001)
        return self.request(verb, path, body, content_type, timeout_s=left_s, idempotent=False)

    def break_off(self, reason: str) -> None:
        """Abort the current request, from another thread. It and all later requests raise `Unreachable`."""
        self._broken_by = reason
        opened = self._socket
        if opened is not None:
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; the next request opens it again."""
        self._drop()

    def _exchange(self, verb: str, path: str, body: bytes, content_type: str, deadline_s: float) -> Answer:
        opened = self._socket
        if opened is None:
            opened = self._open(deadline_s)
        if self._broken_by:  # the connection may not be open
            raise Unreachable(self._broken_by)
        opened.settimeout(max(deadline_s - time.monotonic(), 0.001))
        head = f"{verb} {self._address.path}{path} HTTP/1.1\r\n{self._head}"
        if body or verb == "POST":
            head += f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        opened.sendall(head.encode("latin-1") + b"\r\n" + body)  # send one packet if everything fits into it
        if (
            _QUICK_ACK is not None
        ):  # otherwise a server that sends head and body separately waits 40 ms for the kernel's delayed acknowledgement
            opened.setsockopt(socket.IPPROTO_TCP, _QUICK_ACK, 1)
        reading = _Reading(self._max_bytes)
        while not reading.complete:
            left_s = deadline_s - time.monotonic()  # the time limit applies to the whole request
            if left_s <= 0:
                raise TimeoutError
            opened.settimeout(left_s)
            data = opened.recv(_READ_BYTES)
            if not data:
                reading.end()
                break
            reading.take(data)
        if not reading.keeps_open:
            self._drop()
        return reading.answer()

    def _open(self, deadline_s: float) -> socket.socket:
        address = self._address.host, self._address.port
        opened = socket.create_connection(address, max(deadline_s - time.monotonic(), 0.001))
        try:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._address.secure:
                tls = self._tls or ssl.create_default_context()
                opened = tls.wrap_socket(opened, server_hostname=self._address.host)
        except BaseException:
            opened.close()
            raise
        self._socket = opened
        return opened

    def _was_closed(self) -> bool:
        """Whether the node has closed the idle connection or sent unexpected bytes; if so, drop the connection."""
        opened: Any = self._socket
        poll = select.poll()
        poll.register(opened, select.POLLIN)
        if poll.poll(0):
            self._drop()
            return True
        return False

    def _drop(self) -> None:
        opened, self._socket = self._socket, None
        if opened is not None:
            opened.close()


class _Reading:
    """An answer that is being received; httptools calls its methods."""

    def __init__(self, max_bytes: int) -> None:
        import httptools

        self._parser = httptools.HttpResponseParser(self)
        self._error = httptools.HttpParserError
        self._max_bytes, self._size, self._received = max_bytes, 0, 0
        self._pieces: list[bytes] = []
        self._content_type = b""
        self._ends_with_connection, self._began, self._failed = True, False, ""
        self.complete = self.keeps_open = False

    def take(self, data: bytes) -> None:
        """Parse received bytes; raise `InvalidAnswer` if they are not HTTP."""
        self._received += len(data)
        if self._received > _MAX_HEAD_BYTES + (2 * self._max_bytes if self._began else 0):
            raise InvalidAnswer(f"an answer of more than {self._received - len(data)} bytes beside its body")
        try:
            self._parser.feed_data(data)
        except self._error as error:
            text = f"{data[:60]!r}{'...' if len(data) > 60 else ''}"
            raise InvalidAnswer(self._failed or f"the answer is not HTTP ({error}): {text}") from error

    def end(self) -> None:
        """Note the end of the stream, which ends an answer without a length."""
        if not self._began:
            raise ConnectionResetError("the connection was closed without an answer")
        if not self._ends_with_connection:
            raise InvalidAnswer(f"the answer was cut off after {self._size} bytes of its body")
        self.complete = True

    def answer(self) -> Answer:
        kind = self._content_type.partition(b";")[0].strip().lower().decode("latin-1")
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        return Answer(self._parser.get_status_code(), kind, body)

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"content-type":
            self._content_type = value
        elif name == b"content-length":
            self._ends_with_connection = False
            self._check(int(value))
        elif name == b"transfer-encoding":
            self._ends_with_connection = False

    def on_headers_complete(self) -> None:
        self._began = True

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        self._check(self._size)
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() >= 200:  # an interim answer such as "100 Continue" may come first
            self.complete, self.keeps_open = True, self._parser.should_keep_alive()

    def _check(self, size: int) -> None:
        if size > self._max_bytes:
            self._failed = f"an answer of {size} bytes, but only {self._max_bytes} are allowed"
            raise ValueError(self._failed)


def _said(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[0].lower() + error.strerror[1:]
    return str(error)[:200] or type(error).__name__
