"""How many bytes a compressed file may unpack to: files come from anywhere, and a few bytes can stand for all memory."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

from chimera.core.errors import DataError

ALWAYS_BYTES = 64 << 20
RATIO = 100
"""A file may unpack to `ALWAYS_BYTES`, or to this many times its own bytes where that is more."""


def most_bytes(packed: int) -> int:
    """Return how many bytes a file of ``packed`` bytes may unpack to."""
    return max(ALWAYS_BYTES, RATIO * packed)


def too_much(path: Path) -> DataError:
    """Return the error of a file that would unpack to more."""
    return DataError(
        f"{path} unpacks to more than {RATIO} times its own bytes: if you trust the file, store its data without compression"
    )


class GzipStream(io.RawIOBase):
    """The unpacked bytes of a gzip file, up to `most_bytes`.

    Raises
    ------
    DataError : on reading beyond.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._file = gzip.open(path)  # noqa: SIM115 - closed by `close`
        self._left = most_bytes(path.stat().st_size)

    def readable(self) -> bool:
        """Return that it is."""
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
