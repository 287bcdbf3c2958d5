"""Text files of any size, plain or gzip, as one stream of bytes with random access."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import os
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from chimera.core.errors import DataError
from chimera.data.text.reading.seekable_gzip import SeekableGzip

Paths: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

SUFFIXES = (".txt", ".gz")
"""Endings of the files of a folder that are read."""

_PROBE_BYTES = 1 << 16
_MAX_CONTROL = 0.02  # share of the bytes: 0.11 in random bytes, about 0.5 in UTF-16, almost 0 in text
_CONTROL = bytes({*range(32), 127} - set(b"\t\n\v\f\r"))


@dataclass(frozen=True)
class TextFile:
    """One file.

    Attributes
    ----------
    path : its path.
    bytes : its size in bytes, decompressed.
    gzipped : whether it is a gzip file, by its ending.
    """

    path: str
    bytes: int
    gzipped: bool


@dataclass(frozen=True)
class Source:
    """Concatenated files with a line end after each. Positions count decompressed bytes.

    A seek in a plain file is fast. A gzip file is decompressed from its start, or from an earlier position that was read.
    """

    files: tuple[TextFile, ...]

    @classmethod
    def of(cls, paths: Paths) -> Source:
        """Inspect files, and all .txt and .gz files below folders in order of their names.

        The length of a gzip file is known only after it is decompressed once, which this function does.

        Raises
        ------
        DataError : a file is missing, not text or not gzip; a folder has no texts; all files are empty.
        """
        given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
        found = list(itertools.chain.from_iterable(_files(Path(path).expanduser()) for path in given))
        files = tuple(_inspected(path) for path in found)
        empty = [file.path for file in files if not file.bytes]
        if len(empty) == len(files):
            raise DataError(f"{', '.join(empty) or 'the list of texts'} is empty: give a file with text")
        for path in empty:
            warnings.warn(f"{path} is empty", RuntimeWarning, stacklevel=3)
        return cls(tuple(file for file in files if file.bytes))

    @cached_property
    def starts(self) -> list[int]:
        """The position of the start of each file."""
        return [0, *itertools.accumulate(file.bytes + 1 for file in self.files[:-1])]

    @cached_property
    def size(self) -> int:
        """The size of all files in bytes, including the line ends after them."""
        return sum(file.bytes + 1 for file in self.files)

    @property
    def name(self) -> str:
        """The name in messages."""
        more = f" and {len(self.files) - 1} more" if len(self.files) > 1 else ""
        return Path(self.files[0].path).name + more


class Reader:
    """A reader of a source, fastest in ascending order.

    It caches the last bytes read, so that a read that starts a little before their end reads no byte twice.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._position, self._kept = 0, b""
        self._open: tuple[int, SeekableGzip] | None = None  # gzip files only: a seek after reopening would be slow

    def read(self, begin: int, end: int) -> bytes:
        """Return the bytes from ``begin`` to ``end``, or to the end of the source."""
        end = min(end, self._source.size)
        known = (
            self._kept[begin - self._position :] if self._position <= begin <= self._position + len(self._kept) else b""
        )
        pieces, at = [known], begin + len(known)
        while at < end:
            pieces.append(self._piece(at, end))
            at += len(pieces[-1])
        self._position, self._kept = begin, b"".join(pieces)
        return self._kept[: end - begin]

    def _piece(self, begin: int, end: int) -> bytes:
        """Return bytes of the file that contains ``begin``, or only the line end after that file."""
        index = bisect.bisect_right(self._source.starts, begin) - 1
        file = self._source.files[index]
        place = begin - self._source.starts[index]
        if place == file.bytes:
            return b"\n"
        size = min(end - begin, file.bytes - place)
        try:
            data = self._read_gzip(index, place, size) if file.gzipped else _read_plain(file.path, place, size)
        except (OSError, EOFError, zlib.error) as error:
            raise _unreadable(file.path, error) from error
        if len(data) < size:
            raise DataError(f"{file.path} became shorter while it was read: start again")
        return data

    def _read_gzip(self, index: int, place: int, size: int) -> bytes:
        if self._open is None or self._open[0] != index:
            self.close()
            self._open = index, SeekableGzip(self._source.files[index].path)
        return self._open[1].read(place, size)

    def close(self) -> None:
        """Close the open file, if any."""
        if self._open is not None:
            self._open[1].close()
            self._open = None


def _read_plain(path: str, place: int, size: int) -> bytes:
    with Path(path).open(
        "rb", buffering=0
    ) as file:  # opened each time: thousands of simulated workers would exceed the limit on open files
        file.seek(place)
        pieces = []
        while size and (piece := file.read(size)):
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file())
    if not found:
        raise DataError(f"the folder {str(path)!r} has no text: none of its files ends in {' or '.join(SUFFIXES)}")
    return found


def _inspected(path: Path) -> TextFile:
    gzipped = path.suffix == ".gz"
    try:
        if not path.is_file():
            raise DataError(f"there is no text file {str(path)!r}")
        size = path.stat().st_size
        if gzipped:
            with contextlib.closing(SeekableGzip(str(path))) as file:
                begin, size = file.read(0, _PROBE_BYTES), file.size()
        else:
            begin = _read_plain(str(path), 0, _PROBE_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(str(path), error) from error
    control = len(begin) - len(begin.translate(None, _CONTROL))
    if control > _MAX_CONTROL * len(begin):
        raise DataError(
            f"{path} is not text: {control} of its first {len(begin)} bytes are control characters; give UTF-8 or ASCII"
        )
    return TextFile(str(path), size, gzipped)


def _unreadable(path: str, error: Exception) -> DataError:
    if isinstance(error, EOFError | zlib.error):
        return DataError(f"{path} is not a complete gzip file: {error}")
    return DataError(f"{path} cannot be read: {error}")
