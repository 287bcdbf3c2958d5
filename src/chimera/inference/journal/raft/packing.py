"""Packing large values as msgpack in pieces, so that no single call holds the GIL for long."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

_PACK = msgspec.msgpack.Encoder().encode
_TOGETHER = 500


def array_head(count: int) -> bytes:
    """Return the head of an array with ``count`` values."""
    if count < 16:
        return bytes([0x90 | count])
    return struct.pack(">BH", 0xDC, count) if count < 1 << 16 else struct.pack(">BI", 0xDD, count)


def bytes_head(size: int) -> bytes:
    """Return the head of ``size`` bytes, which are less than 4 GiB."""
    return struct.pack(">BI", 0xC6, size)


def packed_list(values: Sequence[Any], *, together: int = _TOGETHER) -> Iterator[bytes]:
    """Yield a packed list in pieces.

    Parameters
    ----------
    together : number of values in a piece; 1 for values that may be large.
    """
    yield array_head(len(values))
    for first in range(0, len(values), together):
        part = values[first : first + together]
        yield _PACK(part)[len(array_head(len(part))) :]
