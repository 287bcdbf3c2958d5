"""The form of messages between members of a group that do not share memory."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np

from chimera.engines.shared_memory.values import Packed, opened

Step: TypeAlias = tuple[int, str, str | int, int]
"""A collective: its number in the group, its name, its operation or root, and the number of elements."""

_HEAD = struct.Struct("<qq")  # bytes of the description, and of the arrays
_ALIGN = 64

_describe = msgspec.msgpack.Encoder().encode
_described = msgspec.msgpack.Decoder(tuple[Step | None, int, bytes, list[int]]).decode


def framed(packed: Packed, step: Step | None = None) -> list[memoryview]:
    """Return the bytes of a message: head, description, and arrays, which are not copied.

    Parameters
    ----------
    packed : the value.
    step : the collective that the value is a part of; None for a message.
    """
    sizes = [buffer.nbytes for buffer in packed.buffers]
    description = _describe((step, packed.form, bytes(packed.stream), sizes))
    pieces = [memoryview(_HEAD.pack(len(description), sum(map(_aligned, sizes))) + description)]
    for buffer in packed.buffers:
        pieces += (buffer, memoryview(bytes(_aligned(buffer.nbytes) - buffer.nbytes)))
    return pieces


class Incoming:
    """The message that arrives over a connection.

    Parameters
    ----------
    max_bytes : limit of its size.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._restart()

    def _restart(self) -> None:
        self._description: bytes | None = None
        self._arrays: memoryview | None = None
        self._expect(_HEAD.size)

    def _expect(self, nbytes: int) -> None:
        self._block, self._filled = memoryview(np.empty(nbytes, np.uint8)), 0  # type: ignore[arg-type]

    def read(self, read_into: Callable[[memoryview], int]) -> tuple[Step | None, Any, int] | None:
        """Read once; return a complete value with its collective and the bytes of its arrays, or None.

        Raises
        ------
        ConnectionError : the connection has ended, or its data is not a message.
        """
        count = read_into(self._block[self._filled :])
        if count == 0:
            raise ConnectionResetError("the connection has ended")
        self._filled += count
        if self._filled < len(self._block):
            return None
        return self._next_part()

    def _next_part(self) -> tuple[Step | None, Any, int] | None:
        if self._arrays is None:
            described, self._nbytes = _HEAD.unpack(self._block)
            if described <= 0 or self._nbytes < 0 or described + self._nbytes > self._max_bytes:
                raise ConnectionAbortedError(f"a message announces {described} and {self._nbytes} bytes")
            self._arrays = memoryview(b"")
            self._expect(described)
            return None
        if self._description is None:
            self._description = bytes(self._block)
            if self._nbytes:
                self._expect(self._nbytes)
                return None
            self._block = self._arrays
        step, form, stream, sizes = _described(self._description)
        ends = list(itertools.accumulate(map(_aligned, sizes), initial=0))
        block = self._block.toreadonly()
        value = opened(form, stream, [block[at : at + size] for at, size in zip(ends, sizes, strict=False)])
        self._restart()
        return step, value, sum(sizes)


def received(pieces: Sequence[memoryview]) -> Any:
    """Return the value of a message, as a receiver gets it."""
    left = memoryview(b"".join(pieces))
    incoming = Incoming(len(left))

    def read_into(block: memoryview) -> int:
        nonlocal left
        block[:] = left[: len(block)]
        left = left[len(block) :]
        return len(block)

    while (found := incoming.read(read_into)) is None:
        pass
    return found[1]


def _aligned(nbytes: int) -> int:
    return (nbytes + _ALIGN - 1) & -_ALIGN
