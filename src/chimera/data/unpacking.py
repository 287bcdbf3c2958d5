"""Limits on the decompressed size of files: an untrusted file may be a decompression bomb."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

from chimera.core.errors import DataError

ALWAYS_BYTES = 64 << 20
RATIO = 100
"""A file may decompress to `ALWAYS_BYTES`, or to this multiple of its size, whichever is larger."""


def most_bytes(packed: int) -> int:
    """Return the largest decompressed size of a file of ``packed`` bytes."""
    return max(ALWAYS_BYTES, RATIO * packed)


def too_much(path: Path) -> DataError:
    """Return the error for a file that exceeds this size."""
    return DataError(
        f"{path} decompresses to more than {RATIO} times its size: if you trust the file, store its data without compression"
    )


class GzipStream(io.RawIOBase):
    """The decompressed bytes of a gzip file, up to `most_bytes`.

    Raises
    ------
    DataError : the file has more bytes.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._file = gzip.open(path)  # noqa: SIM115 - closed by `close`
        self._left = most_bytes(path.stat().st_size)

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes."""
        count = self._file.readinto(buffer)
        self._left -= count
        if self._left < 0:
            raise too_much(self._path)
        return count

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()
