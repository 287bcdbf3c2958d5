"""Bodies as streams of chunks."""

from __future__ import annotations

from collections.abc import Iterator

from chimera.engines.federation.wire.frames import CHUNK, WINDOW


class Sending:
    """The progress of a body: the bytes that were sent, and the bytes that the receiver has.

    Parameters
    ----------
    size : size of the body, in bytes.
    at : number of bytes that the receiver has already.
    """

    __slots__ = ("_confirmed", "_sent", "size")

    def __init__(self, size: int, at: int = 0) -> None:
        self.size = size
        self._sent = self._confirmed = at

    def took(self, at: int) -> None:
        """Note that the receiver has the first ``at`` bytes. After a break, these may be more bytes than this side has sent."""
        if at <= self.size:
            self._confirmed = max(self._confirmed, at)
            self._sent = max(self._sent, at)

    def skip(self, size: int) -> None:
        """Note that ``size`` bytes were sent in another way."""
        self._sent += size

    def due(self) -> Iterator[tuple[int, int]]:
        """Yield first and last byte of the chunks to send now, the last one excluded."""
        while self._sent < self.size and self._sent - self._confirmed < WINDOW * CHUNK:
            begin, self._sent = self._sent, min(self._sent + CHUNK, self.size)
            yield begin, self._sent


class Receiving:
    """A body that is being received. Repeated chunks are ignored; no chunk is skipped. Memory grows with the chunks.

    Parameters
    ----------
    size : size of the body, in bytes; the caller has checked it.
    """

    __slots__ = ("_body", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._body = bytearray()

    @property
    def got(self) -> int:
        """The number of received bytes."""
        return len(self._body)

    def take(self, at: int, chunk: memoryview) -> bool:
        """Add a chunk; return whether it was the next one and fits."""
        if at != self.got or at + len(chunk) > self.size or not (len(chunk) or not self.size):
            return False
        self._body += chunk
        return True

    @property
    def complete(self) -> bool:
        """Whether the whole body has arrived."""
        return self.got == self.size

    def body(self) -> bytearray:
        """Return the body, without a copy."""
        return self._body
