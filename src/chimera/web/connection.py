"""One client connection: HTTP by `httptools`, with limits on all memory and time that a client can use.

Uvicorn's own protocol limits neither the size and time of a request's head nor the number of pipelined requests.
"""

from __future__ import annotations

from asyncio import TimerHandle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from chimera.web.errors import error_response
from chimera.web.handshakes import Handshakes, max_files
from chimera.web.security import answer_headers

if TYPE_CHECKING:
    from asyncio import Transport

ADMIT = "chimera.admit"
"""Key in a request's scope of the function that the middleware calls once it has accepted the request of a known client."""


def _max_connections() -> int:
    """Return the maximum number of connections: 1000, or less if the process may open fewer files."""
    return max(16, min(1000, max_files() * 3 // 4))


def _max_handshakes() -> int:
    """Return the maximum number of unfinished handshakes: half of the files that are left, at most as many as connections."""
    return max(8, min(1000, (max_files() - _max_connections()) // 2))


@dataclass(frozen=True)
class Limits:
    """Limits on the memory and time that a client can use.

    Attributes
    ----------
    head_bytes, headers, url_bytes : maximum size of a request's head, number of headers, and size of the URL.
    head_s : maximum seconds until the head is complete, from its first byte or from the start of the connection.
    window_s, window_bytes : in each window of ``window_s`` seconds the client must send at least ``window_bytes`` of an
        incomplete body, and read as many of an answer that is ready. Windows in which the server itself pauses reading do not
        count.
    drain_bytes, drain_s : after the answer, up to this much of the rest of a body is read and dropped, for up to this long.
    pipelined : maximum number of requests that wait on a connection for the answers to earlier requests.
    connections : maximum number of connections at once.
    handshakes, handshake_s : maximum number of connections whose TLS handshake has not ended, and the timeout of the handshake
        in seconds.
    """

    head_bytes: int = 64 << 10
    headers: int = 100
    url_bytes: int = 16 << 10
    head_s: float = 10.0
    window_s: float = 30.0
    window_bytes: int = 30 << 10
    drain_bytes: int = 1 << 20
    drain_s: float = 2.0
    pipelined: int = 16
    connections: int = field(default_factory=_max_connections)
    handshakes: int = field(default_factory=_max_handshakes)
    handshake_s: float = 10.0


class BoundedProtocol(HttpToolsProtocol):
    """A connection within `Limits`.

    A request that is too large or too slow gets an error answer, and the connection is closed. At the maximum number of
    connections, a new one replaces the oldest connection that has had no accepted request yet.

    Parameters
    ----------
    limits : limits of each connection.
    waiting : connections of the server that have had no accepted request yet, the oldest first.
    handshakes : connections of the server whose handshake has not ended.
    """

    def __init__(
        self,
        *args: Any,
        limits: Limits,
        waiting: dict[BoundedProtocol, None],
        handshakes: Handshakes,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._limits, self._waiting, self._handshakes = limits, waiting, handshakes
        self._in_head, self._idle = True, False  # otherwise in a body; idle: before the first byte of a head
        self._head_bytes = self._body_bytes = self._between_bytes = 0
        self._was_paused = False
        self._refusal: tuple[int, str, str] | None = None
        self._timer: TimerHandle | None = None  # for a head or a body
        self._reader_timer: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Accept the connection if the maximum number is not reached."""
        super().connection_made(transport)
        if (own := transport.get_extra_info("socket")) is not None:
            self._handshakes.end(own.fileno())
        if len(self.connections) > self._limits.connections:
            if not self._waiting:
                self._refuse(
                    503, "TooManyConnectionsError", "too many clients are connected to this server: try again later"
                )
                return
            next(iter(self._waiting)).transport.abort()
        self._waiting[self] = None
        self._start_timer(self._limits.head_s, self._on_head_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers of the connection, and drop its queued requests."""
        self._waiting.pop(self, None)
        self._cancel_timer()
        if self._reader_timer is not None:
            self._reader_timer.cancel()
        self.pipeline.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, as far as they are within the limits."""
        self._unset_keepalive_if_required()
        if self._in_head:
            self._idle = False
            self._head_bytes += len(data)
            if self._head_bytes > self._limits.head_bytes:
                self._feed_oversized_head(data)
                return
        else:
            self._body_bytes += len(data)
            self._between_bytes += len(data)
        self._feed(data)

    def _feed_oversized_head(self, data: bytes) -> None:
        """Parse at most the allowed size of a head; parse the remaining bytes only if the head was complete."""
        within = len(data) - (self._head_bytes - self._limits.head_bytes)
        self._feed(data[:within])
        if self._in_head and not self._idle:
            self._refuse(431, "HeadTooLargeError", f"the head is longer than {self._limits.head_bytes} bytes")
        elif not self.transport.is_closing():
            self._feed(data[within:])

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # upgrades are not supported; the request is answered like any other
        except httptools.HttpParserError:
            self._refuse(*(self._refusal or (400, "MalformedRequestError", "the request is not HTTP/1.1")))
        if self._between_bytes > self._limits.head_bytes:
            self._refuse(431, "HeadTooLargeError", "the body has too many bytes between its chunks, or after them")
        if self._timer is None and not self.transport.is_closing():
            self._await_more()

    def _await_more(self) -> None:
        """Set the timer for the rest of a head, for more of a body, or for the next request."""
        if self._in_head:
            if not self._idle:
                self._start_timer(self._limits.head_s, self._on_head_timeout)
            elif self.cycle is not None and self.cycle.response_complete and self.timeout_keep_alive_task is None:
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )
            return
        self._body_bytes = 0
        if self.cycle.response_complete:
            self._start_timer(self._limits.drain_s, self.transport.close)
        else:
            self._start_timer(self._limits.window_s, self._on_body_window)

    def _on_body_window(self) -> None:
        self._timer = None
        paused, self._was_paused = self._was_paused or self.flow.read_paused, self.flow.read_paused
        if not paused and self._body_bytes < self._limits.window_bytes:
            message = f"less than {self._limits.window_bytes} bytes of the body arrived in {self._limits.window_s:g} s"
            self._refuse(408, "SlowRequestError", message)
        else:
            self._await_more()

    def _on_head_timeout(self) -> None:
        self._refuse(
            408, "SlowRequestError", f"the head of the request did not arrive within {self._limits.head_s:g} s"
        )

    def _start_timer(self, seconds: float, on_timeout: Callable[[], None]) -> None:
        self._cancel_timer()
        self._timer = self.loop.call_later(seconds, on_timeout)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_message_begin(self) -> None:
        """Start a request, unless too many are waiting already."""
        if len(self.pipeline) >= self._limits.pipelined:
            self._abort_parsing(
                429, "TooManyRequestsError", f"more than {self._limits.pipelined} requests wait on this connection"
            )
        self._idle = False
        super().on_message_begin()
        scope: dict[str, Any] = self.scope  # type: ignore[assignment] # the key is not in the ASGI standard
        scope[ADMIT] = self._admit

    def on_url(self, url: bytes) -> None:
        """Receive a part of the URL."""
        self.url += url
        if len(self.url) > self._limits.url_bytes:
            self._abort_parsing(414, "UrlTooLongError", f"the URL is longer than {self._limits.url_bytes} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Receive a header. Headers after the body (trailers) are dropped."""
        if not self._in_head:
            return
        if len(self.headers) >= self._limits.headers:
            self._abort_parsing(431, "HeadTooLargeError", f"the request has more than {self._limits.headers} headers")
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Start to answer the request."""
        if self.parser.get_http_version() not in ("1.1", "1.0"):
            self._abort_parsing(400, "MalformedRequestError", "the request is not HTTP/1.1")
        super().on_headers_complete()
        self._in_head, self._between_bytes = False, 0
        self._cancel_timer()

    def on_body(self, body: bytes) -> None:
        """Pass on a part of the body, or drop it if the request is answered already."""
        self._between_bytes = 0
        if self.cycle.response_complete:
            if self._body_bytes > self._limits.drain_bytes:
                self.transport.close()
            return
        super().on_body(body)
        self._was_paused = self._was_paused or self.flow.read_paused

    def on_message_complete(self) -> None:
        """Wait for the next request."""
        super().on_message_complete()
        self._in_head, self._idle, self._head_bytes, self._between_bytes = True, True, 0, 0
        self._cancel_timer()

    def on_response_complete(self) -> None:
        """Read and drop the rest of the body for some time, so that a client that still sends can read the answer."""
        super().on_response_complete()
        if not self._in_head and not self.transport.is_closing():
            self._await_more()

    def _abort_parsing(self, code: int, name: str, message: str) -> NoReturn:
        """Stop the parser, and answer with this error."""
        self._refusal = (code, name, message)
        raise ValueError(message)

    def _refuse(self, code: int, name: str, message: str) -> None:
        """Close the connection, after an error answer unless another answer must come first."""
        if self.transport.is_closing():
            return
        cycle = None if self.cycle is None or self.cycle.response_complete else self.cycle
        if cycle is None or not (self._in_head or cycle.response_started or self.pipeline):
            answer = error_response(code, name, message, {"Connection": "close"})
            head = [name + b": " + value + b"\r\n" for name, value in answer_headers(answer.raw_headers)]
            self.transport.write(b"".join([STATUS_LINE[code], *head, b"\r\n", bytes(answer.body)]))
        if cycle is not None:
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.close()

    def _admit(self) -> None:
        self._waiting.pop(self, None)

    def pause_writing(self) -> None:
        """Pause the answer until the client reads, and check that it reads fast enough."""
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        """Resume the answer."""
        super().resume_writing()
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    def _await_reader(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._reader_timer = self.loop.call_later(self._limits.window_s, self._on_reader_window, left)

    def _on_reader_window(self, before: int) -> None:
        if before - self.transport.get_write_buffer_size() < self._limits.window_bytes:
            self.transport.abort()
        else:
            self._await_reader()
