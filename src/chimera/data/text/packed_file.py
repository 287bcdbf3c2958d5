"""Random access to the decompressed bytes of a gzip file."""

from __future__ import annotations

import bisect
import os
import weakref
import zlib
from pathlib import Path
from typing import Any, NamedTuple

_PIECE_BYTES = 1 << 15
_MOST_BYTES = 1 << 20
_MOST_MARKS = 64


class Mark(NamedTuple):
    """An access point: offsets in the decompressed bytes and in the file, and a copy of the decompressor there."""

    place: int
    read: int
    unpacker: Any


class PackedFile:
    """A gzip file (Deutsch 1996, "GZIP file format specification version 4.3", RFC 1952), of one member or several.

    The file is decompressed sequentially. The state of the decompressor, about 50 KB, is stored at up to 64 access points
    at about equal distances, so that a seek to a position that was read before decompresses only a small part of the file.

    Parameters
    ----------
    path : path of the file.
    apart : distance of access points, in decompressed bytes. It doubles when there are too many of them.

    Raises
    ------
    OSError : the file cannot be read, here and below.
    """

    def __init__(self, path: str, apart: int = 1 << 20) -> None:
        self._file = Path(path).open("rb")  # noqa: SIM115 - closed by `close`
        self._close = weakref.finalize(self, self._file.close)
        self._place, self._unpacker = 0, _between_members()
        self._marks, self._apart = [Mark(0, 0, self._unpacker)], apart

    def read(self, place: int, size: int) -> bytes:
        """Return ``size`` decompressed bytes from ``place`` on, or fewer at the end of the file.

        Raises
        ------
        EOFError, zlib.error : the file is not a complete gzip file, here and below.
        """
        self._go_to(place)
        pieces, end = [], place + size
        while self._place < end and (piece := self._next(end - self._place)):
            pieces.append(piece)
        return b"".join(pieces)

    def size(self) -> int:
        """Return the decompressed size in bytes. This decompresses the rest of the file."""
        while self._next(_MOST_BYTES):
            pass
        return self._place

    def close(self) -> None:
        """Close the file. Garbage collection of this object closes it too."""
        self._close()

    def _go_to(self, place: int) -> None:
        mark = self._marks[bisect.bisect_right(self._marks, place, key=lambda mark: mark.place) - 1]
        if place < self._place or self._place < mark.place:
            self._place = mark.place
            self._file.seek(mark.read)
            self._unpacker = mark.unpacker.copy()
        while self._place < place and self._next(min(place - self._place, _MOST_BYTES)):
            pass

    def _next(self, most: int) -> bytes:
        """Return the next bytes; at least one unless all were read."""
        while not self._unpacker.eof or self._enter_member():
            packed = self._unpacker.unconsumed_tail or self._file.read(_PIECE_BYTES)
            found: bytes = self._unpacker.decompress(packed, most)
            if found:
                self._place += len(found)
                self._mark()
                return found
            if not packed and not self._unpacker.eof:
                raise EOFError("it ends within compressed data")
        return b""

    def _enter_member(self) -> bool:
        """Continue with the next member, after any padding; return whether there is one."""
        self._file.seek(-len(self._unpacker.unused_data), os.SEEK_CUR)
        while (byte := self._file.read(1)) == b"\0":
            pass
        if byte:
            self._file.seek(-1, os.SEEK_CUR)
            self._unpacker = zlib.decompressobj(wbits=31)  # 31: a gzip header and checksum around the stream
        return bool(byte)

    def _mark(self) -> None:
        if self._place - self._marks[-1].place < self._apart or self._unpacker.eof:
            return
        self._marks.append(Mark(self._place, self._file.tell(), self._unpacker.copy()))
        if len(self._marks) > _MOST_MARKS:
            del self._marks[1::2]
            self._apart *= 2


def _between_members() -> Any:
    """Return a decompressor at the end of a member."""
    ended = zlib.decompressobj(wbits=31)
    ended.decompress(zlib.compress(b"", wbits=31))
    return ended
