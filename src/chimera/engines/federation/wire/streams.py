"""Bodies as streams of chunks."""

from __future__ import annotations

from collections.abc import Iterator

from chimera.engines.federation.wire.frames import CHUNK, WINDOW


class Sending:
    """How much of a body was sent, and how much of it the receiver has.

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
        """Note that the receiver has the first ``at`` bytes. After a break these may be more than this side has sent."""
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
    """A body that is being received. Chunks that came already are ignored; no chunk is skipped.

    Parameters
    ----------
    size : size of the body, in bytes; the caller has checked it. Memory is used as chunks arrive.
    """

    __slots__ = ("_body", "got", "size")

    def __init__(self, size: int) -> None:
        self.size, self.got = size, 0
        self._body = bytearray(size) if size > CHUNK else bytearray()

    def take(self, at: int, chunk: memoryview) -> bool:
        """Add a chunk; return whether it was the next one and fits."""
        if at != self.got or at + len(chunk) > self.size or not (len(chunk) or not self.size):
            return False
        if self.size > CHUNK:
            self._body[at : at + len(chunk)] = chunk
        else:
            self._body += chunk
        self.got += len(chunk)
        return True

    @property
    def complete(self) -> bool:
        """Whether the whole body is there."""
        return self.got == self.size

    def body(self) -> bytes | bytearray:
        """Return the body; a large one is not copied."""
        return self._body if self.size > CHUNK else bytes(self._body)
