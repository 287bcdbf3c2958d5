"""The form of messages between members of a group that do not share memory."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from chimera.engines.shared_memory.values import Packed, opened

Step: TypeAlias = tuple[int, str, str | int, int]
"""A collective: its number in the group, its name, its operation or root, and the number of elements."""

_HEAD = struct.Struct("<qq")  # bytes of the description, and of the arrays
_ALIGN = 64
_NO_ARRAYS = np.empty(0, np.uint8)

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


class Arrived(NamedTuple):
    """A complete message.

    Attributes
    ----------
    step : the collective that it is a part of; None for a message.
    value : the value; its arrays are read-only views of ``block``.
    nbytes : bytes of its arrays.
    block : the memory of the arrays.
    """

    step: Step | None
    value: Any
    nbytes: int
    block: NDArray[np.uint8]


class Blocks:
    """Memory for arrays that arrive. Parts of collectives have few sizes, and new memory costs as much as a copy.

    Parameters
    ----------
    most : number of unused blocks that are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._unused: list[NDArray[np.uint8]] = []

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """Return a block of this size."""
        for place, block in enumerate(self._unused):
            if block.nbytes == nbytes:
                return self._unused.pop(place)
        return np.empty(nbytes, np.uint8)

    def give_back(self, block: NDArray[np.uint8]) -> None:
        """Accept a block whose values are not read any more."""
        if block.nbytes and self._most:
            self._unused = [*self._unused[1 - self._most :], block]


class Incoming:
    """The message that arrives over a connection.

    Parameters
    ----------
    max_bytes : limit of its size.
    blocks : memory for arrays.
    """

    def __init__(self, max_bytes: int, blocks: Blocks | None = None) -> None:
        self._max_bytes, self._blocks = max_bytes, blocks or Blocks(0)
        self._restart()

    def _restart(self) -> None:
        self._description: bytes | None = None
        self._head_read = False
        self._expect(np.empty(_HEAD.size, np.uint8))

    def _expect(self, block: NDArray[np.uint8]) -> None:
        self._block, self._view, self._filled = block, memoryview(block), 0  # type: ignore[arg-type]

    def read(self, read_into: Callable[[memoryview], int]) -> Arrived | None:
        """Read once; return a complete message, or None.

        Raises
        ------
        ConnectionError : the connection has ended, or its data is not a message.
        """
        count = read_into(self._view[self._filled :])
        if count == 0:
            raise ConnectionResetError("the connection has ended")
        self._filled += count
        if self._filled < len(self._view):
            return None
        return self._next_part()

    def _next_part(self) -> Arrived | None:
        if not self._head_read:
            described, self._nbytes = _HEAD.unpack(self._view)
            if described <= 0 or self._nbytes < 0 or described + self._nbytes > self._max_bytes:
                raise ConnectionAbortedError(f"a message announces {described} and {self._nbytes} bytes")
            self._head_read = True
            self._expect(np.empty(described, np.uint8))
            return None
        if self._description is None:
            self._description = bytes(self._view)
            if self._nbytes:
                self._expect(self._blocks.take(self._nbytes))
                return None
            self._expect(_NO_ARRAYS)
        step, form, stream, sizes = _described(self._description)
        ends = list(itertools.accumulate(map(_aligned, sizes), initial=0))
        view = self._view.toreadonly()
        value = opened(form, stream, [view[at : at + size] for at, size in zip(ends, sizes, strict=False)])
        arrived = Arrived(step, value, sum(sizes), self._block)
        self._restart()
        return arrived


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
    return found.value


def _aligned(nbytes: int) -> int:
    return (nbytes + _ALIGN - 1) & -_ALIGN
