"""The ring buffers between an actor and the driver: calls in one direction, rows of calls and of their parts in the other.

Each has one writer and one reader.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from chimera.engines.shared_memory.memory import (
    CALLS_AT,
    CALLS_BYTES,
    CALLS_READ,
    CALLS_WRITTEN,
    PARTS_AT,
    PARTS_READ,
    PARTS_WRITTEN,
    ROWS_AT,
    ROWS_WRITTEN,
    Region,
    fence,
)

ROWS = 1 << 14
_ROW = struct.Struct("qddddqqq24s")
_LENGTH = struct.Struct("q")
_WRAP = -1

Row = tuple[int, float, float, float, float, int, int, int, bytes]
"""Call number, start, end, transfer and wait in seconds of the monotonic clock, bytes in and out, samples, error."""


def write_row(region: Region, row: Row) -> None:
    """Add a row. The driver limits the calls in flight to the size of the ring buffer."""
    written = region.words[ROWS_WRITTEN]
    _ROW.pack_into(region.bytes, ROWS_AT + written % ROWS * _ROW.size, *row)
    fence()
    region.words[ROWS_WRITTEN] = written + 1


def read_rows(region: Region, read: int) -> Iterator[Row]:
    """Yield the rows from number ``read`` on."""
    for number in range(read, region.words[ROWS_WRITTEN]):
        yield _ROW.unpack_from(region.bytes, ROWS_AT + number % ROWS * _ROW.size)


def write_part(region: Region, row: Row) -> bool:
    """Add a row of a part of a call, with the part's name as its error; return False if the driver must read some first."""
    written = region.words[PARTS_WRITTEN]
    if written - region.words[PARTS_READ] >= ROWS:
        return False
    _ROW.pack_into(region.bytes, PARTS_AT + written % ROWS * _ROW.size, *row)
    fence()
    region.words[PARTS_WRITTEN] = written + 1
    return True


def read_parts(region: Region) -> list[Row]:
    """Return and remove all rows of parts of calls."""
    read, written = region.words[PARTS_READ], region.words[PARTS_WRITTEN]
    fence()
    rows = [_ROW.unpack_from(region.bytes, PARTS_AT + number % ROWS * _ROW.size) for number in range(read, written)]
    region.words[PARTS_READ] = written
    return rows


def write_call(region: Region, message: bytes) -> bool:
    """Add a message, or return False if the ring buffer has no room at present."""
    written, read = region.words[CALLS_WRITTEN], region.words[CALLS_READ]
    size = _LENGTH.size + -(-len(message) // 8) * 8
    place = written % CALLS_BYTES
    skip = CALLS_BYTES - place if place + size > CALLS_BYTES else 0
    if written + skip + size - read > CALLS_BYTES:
        return False
    if skip:
        _LENGTH.pack_into(region.bytes, CALLS_AT + place, _WRAP)
        written, place = written + skip, 0
    at = CALLS_AT + place
    _LENGTH.pack_into(region.bytes, at, len(message))
    region.bytes[at + _LENGTH.size : at + _LENGTH.size + len(message)] = message
    fence()
    region.words[CALLS_WRITTEN] = written + size
    return True


def has_call(region: Region) -> bool:
    """Whether a message waits."""
    return region.words[CALLS_WRITTEN] != region.words[CALLS_READ]


def read_call(region: Region) -> bytes:
    """Return and remove the next message; there must be one."""
    fence()
    read = region.words[CALLS_READ]
    (length,) = _LENGTH.unpack_from(region.bytes, CALLS_AT + read % CALLS_BYTES)
    if length == _WRAP:
        read += CALLS_BYTES - read % CALLS_BYTES
        (length,) = _LENGTH.unpack_from(region.bytes, CALLS_AT + read % CALLS_BYTES)
    at = CALLS_AT + read % CALLS_BYTES + _LENGTH.size
    message = bytes(region.bytes[at : at + length])
    region.words[CALLS_READ] = read + _LENGTH.size + -(-length // 8) * 8
    return message
