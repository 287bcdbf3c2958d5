"""Random access to the decompressed bytes of a gzip file."""

from __future__ import annotations

import bisect
import os
import weakref
import zlib
from pathlib import Path
from typing import Any, NamedTuple

_PIECE_BYTES = 1 << 15
_MAX_READ_BYTES = 1 << 20
_MAX_POINTS = 64


class AccessPoint(NamedTuple):
    """An access point: offsets in the decompressed bytes and in the file, and a copy of the decompressor there."""

    offset: int
    file_offset: int
    decompressor: Any


class SeekableGzip:
    """A gzip file (Deutsch 1996, "GZIP file format specification version 4.3", RFC 1952), of one member or several.

    The file is decompressed sequentially. The state of the decompressor, about 50 KB, is stored at up to 64 access
    points at about equal distances. So a seek to a position that was read before decompresses only a small part of the
    file.

    Parameters
    ----------
    path : path of the file.
    spacing : distance of access points, in decompressed bytes. It doubles when there are too many of them.

    Raises
    ------
    OSError : the file cannot be read, here and below.
    """

    def __init__(self, path: str, spacing: int = 1 << 20) -> None:
        self._file = Path(path).open("rb")  # noqa: SIM115 - closed by `close`
        self._close = weakref.finalize(self, self._file.close)
        self._offset, self._decompressor = 0, _between_members()
        self._points, self._spacing = [AccessPoint(0, 0, self._decompressor)], spacing

    def read(self, offset: int, size: int) -> bytes:
        """Return ``size`` decompressed bytes from ``offset`` on, or fewer at the end of the file.

        Raises
        ------
        EOFError, zlib.error : the file is not a complete gzip file, here and below.
        """
        self._seek(offset)
        pieces, end = [], offset + size
        while self._offset < end and (piece := self._next(end - self._offset)):
            pieces.append(piece)
        return b"".join(pieces)

    def size(self) -> int:
        """Return the decompressed size in bytes. This decompresses the rest of the file."""
        while self._next(_MAX_READ_BYTES):
            pass
        return self._offset

    def close(self) -> None:
        """Close the file. Garbage collection of this object closes it too."""
        self._close()

    def _seek(self, offset: int) -> None:
        point = self._points[bisect.bisect_right(self._points, offset, key=lambda point: point.offset) - 1]
        if offset < self._offset or self._offset < point.offset:
            self._offset = point.offset
            self._file.seek(point.file_offset)
            self._decompressor = point.decompressor.copy()
        while self._offset < offset and self._next(min(offset - self._offset, _MAX_READ_BYTES)):
            pass

    def _next(self, most: int) -> bytes:
        """Return the next bytes; at least one unless all were read."""
        while not self._decompressor.eof or self._enter_member():
            compressed = self._decompressor.unconsumed_tail or self._file.read(_PIECE_BYTES)
            found: bytes = self._decompressor.decompress(compressed, most)
            if found:
                self._offset += len(found)
                self._add_access_point()
                return found
            if not compressed and not self._decompressor.eof:
                raise EOFError("it ends within compressed data")
        return b""

    def _enter_member(self) -> bool:
        """Continue with the next member, after any padding; return whether there is one."""
        self._file.seek(-len(self._decompressor.unused_data), os.SEEK_CUR)
        while (byte := self._file.read(1)) == b"\0":
            pass
        if byte:
            self._file.seek(-1, os.SEEK_CUR)
            self._decompressor = zlib.decompressobj(wbits=31)  # 31: a gzip header and checksum around the stream
        return bool(byte)

    def _add_access_point(self) -> None:
        if self._offset - self._points[-1].offset < self._spacing or self._decompressor.eof:
            return
        self._points.append(AccessPoint(self._offset, self._file.tell(), self._decompressor.copy()))
        if len(self._points) > _MAX_POINTS:
            del self._points[1::2]
            self._spacing *= 2


def _between_members() -> Any:
    """Return a decompressor at the end of a member."""
    ended = zlib.decompressobj(wbits=31)
    ended.decompress(zlib.compress(b"", wbits=31))
    return ended
