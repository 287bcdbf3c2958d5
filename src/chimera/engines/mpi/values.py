"""Values that ranks keep for their readers: frozen once, sent without pickle of arrays, and opened by each reader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from chimera.engines.mpi.transfers import aligned
from chimera.engines.shared_memory.values import Packed, opened

Description: TypeAlias = tuple[int, bytes, int]
"""The plain part of a value in a message: its form, its description, and the number of its arrays."""


class Kept:
    """A frozen value.

    Attributes
    ----------
    buffers : the bytes of its arrays, which no code can change.
    array_bytes : number of these bytes.
    """

    __slots__ = ("array_bytes", "buffers", "form", "stream")

    def __init__(self, form: int, stream: bytes, buffers: Sequence[memoryview]) -> None:
        self.form, self.stream, self.buffers = form, stream, buffers
        self.array_bytes = sum(buffer.nbytes for buffer in buffers)

    @classmethod
    def of(cls, value: Any) -> Kept:
        """Copy a value's arrays, once."""
        packed = Packed(value)
        return cls(packed.form, bytes(packed.stream), [_copied(buffer) for buffer in packed.buffers])

    def open(self) -> Any:
        """Return the value for one reader; its arrays are read-only views."""
        return opened(self.form, self.stream, self.buffers)

    def described(self) -> Description:
        """Return the plain part of a message with this value."""
        return self.form, self.stream, len(self.buffers)


def kept_of(described: Sequence[Description], buffers: Sequence[memoryview]) -> Iterator[Kept]:
    """Yield the values of a message."""
    at = 0
    for form, stream, count in described:
        yield Kept(form, stream, buffers[at : at + count])
        at += count


def _copied(buffer: memoryview) -> memoryview:
    block = aligned(buffer.nbytes)
    block[:] = np.frombuffer(buffer, np.uint8)
    return memoryview(block).toreadonly()  # type: ignore[arg-type]
