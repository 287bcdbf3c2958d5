"""Limits on the decompressed size of files: an untrusted file may be a decompression bomb."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

from chimera.core.errors import DataError

MIN_LIMIT_BYTES = 64 << 20
MAX_RATIO = 100
"""A file may decompress to `MIN_LIMIT_BYTES`, or to this multiple of its size, whichever is larger."""


def max_decompressed_bytes(compressed: int) -> int:
    """Return the largest decompressed size of a file of ``compressed`` bytes."""
    return max(MIN_LIMIT_BYTES, MAX_RATIO * compressed)


def too_large_error(path: Path) -> DataError:
    """Return the error for a file that exceeds this size."""
    return DataError(
        f"{path} decompresses to more than {MAX_RATIO} times its size: if you trust it, store its data uncompressed"
    )


class GzipStream(io.RawIOBase):
    """The decompressed bytes of a gzip file, up to `max_decompressed_bytes`.

    Raises
    ------
    DataError : the file has more bytes.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._file = gzip.open(path)  # noqa: SIM115 - closed by `close`
        self._left = max_decompressed_bytes(path.stat().st_size)

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes."""
        count = self._file.readinto(buffer)
        self._left -= count
        if self._left < 0:
            raise too_large_error(self._path)
        return count

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()
