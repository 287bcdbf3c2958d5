"""The packed form of trace rows, in which actors send them to the driver."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TypeAlias

import msgspec

Row: TypeAlias = tuple[float, float, float, float, float, int, int, int, bytes]
"""Start and end on the driver's clock, start of the idle time before, seconds moving data and waiting, bytes in and out,
samples, error."""

ROW = struct.Struct("dddddqqq24s")


def packed_rows(row: Row, parts: Mapping[str, bytes | bytearray]) -> bytes:
    """Return the row of a call, and the rows of its parts, which ``parts`` holds by name, each packed as `ROW`."""
    return ROW.pack(*row) + (msgspec.msgpack.encode(parts) if parts else b"")


def row_of_call(packed: bytes) -> Row:
    """Return the row of a call. It starts with the call, also if parts of the call have rows."""
    return ROW.unpack_from(packed)


def rows_of_parts(packed: bytes) -> list[tuple[str, Row]]:
    """Return the rows of the parts of a call, with their names, in the order of time."""
    if len(packed) == ROW.size:
        return []
    parts = msgspec.msgpack.decode(packed[ROW.size :], type=dict[str, bytes])
    return sorted(
        ((name, row) for name, rows in parts.items() for row in ROW.iter_unpack(rows)), key=lambda part: part[1]
    )
