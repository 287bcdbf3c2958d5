"""Arrays of NumPy's formats, .npy and .npz, from anywhere: no size that a file states is believed, and no code in it runs."""

from __future__ import annotations

import io
import math
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import DataError
from chimera.data.unpacking import most_bytes, too_much

_LONGEST_HEADER = 10_000  # NumPy's own limit, which it applies after it has read the header
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # what NumPy writes; others unpack to any multiple of their size
_ENCRYPTED = 1
_VERSIONS: dict[bytes, tuple[str, Callable[[Any], Any]]] = {
    b"\1\0": ("<H", np.lib.format.read_array_header_1_0),
    b"\2\0": ("<I", np.lib.format.read_array_header_2_0),
}


class Header(NamedTuple):
    """What stands before the elements of an array."""

    shape: tuple[int, ...]
    by_columns: bool
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """How many bytes of elements follow."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(file: IO[bytes]) -> Header:
    """Read the header of an array; nothing of the size that it states is allocated.

    Raises
    ------
    ValueError : it is none, or the array has no shape or type that can be read.
    """
    begin = file.read(8)
    if len(begin) < 8 or begin[:6] != np.lib.format.MAGIC_PREFIX:
        raise ValueError(f"it begins with {begin[:6]!r}, not {np.lib.format.MAGIC_PREFIX!r}")
    if begin[6:] not in _VERSIONS:
        raise ValueError(f"version {tuple(begin[6:])} of the format is unknown")
    form, parse = _VERSIONS[begin[6:]]
    length = file.read(struct.calcsize(form))
    stated = int.from_bytes(length, "little")
    if stated > _LONGEST_HEADER:
        raise ValueError(f"its header states {stated} bytes; at most {_LONGEST_HEADER} are read")
    try:
        shape, by_columns, dtype = parse(io.BytesIO(length + file.read(stated)))
    # NumPy lets pass what the parser of Python raises, and MemoryError stands for nesting that is too deep.
    except (ValueError, TypeError, LookupError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError) as error:
        raise ValueError(f"its header is damaged ({type(error).__name__})") from error
    if not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError(f"its header states the shape {shape}")
    if dtype.hasobject:
        raise ValueError(f"it holds {dtype}: only arrays of numbers, truth values or texts are read")
    return Header(shape, by_columns, dtype)


class Archive:
    """An .npz file, or another zip with arrays in it.

    Attributes
    ----------
    names : of its arrays.
    """

    def __init__(self, path: Path, file: zipfile.ZipFile, most: int) -> None:
        self._path, self._file, self._most = path, file, most
        self._members = {info.filename.removesuffix(".npy"): info for info in file.infolist()}
        self.names = tuple(self._members)

    def read(self, name: str) -> NDArray[Any]:
        """Return an array; its size is compared with that of its member of the archive before it is allocated."""
        info = self._members[name]
        self._check(info)
        with self._file.open(info) as member:
            array: NDArray[Any] = np.lib.format.read_array(member, allow_pickle=False)
        return array

    def check(self) -> None:
        """Check all members, for a library that is to read them."""
        for info in self._file.infolist():
            self._check(info)

    def _check(self, info: zipfile.ZipInfo) -> None:
        if info.compress_type not in _METHODS or info.flag_bits & _ENCRYPTED:
            raise ValueError(
                f"its member {info.filename!r} is encrypted, or compressed by a method that NumPy does not use"
            )
        if info.file_size > self._most:
            raise too_much(self._path)
        self._most -= info.file_size
        if not info.filename.endswith(".npy"):
            return
        with self._file.open(info) as member:
            header = read_header(member)
            if header.nbytes != info.file_size - member.tell():
                raise ValueError(f"its member {info.filename!r} does not hold the bytes that its header states")


@contextmanager
def open_archive(path: Path, what: str = ".npz") -> Iterator[Archive]:
    """Open an .npz file, or another zip with arrays in it, which ``what`` names.

    Raises
    ------
    DataError : it cannot be read, is damaged, or what the block reads of it is; in one line that names the file.
    """
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            yield Archive(path, archive, most_bytes(os.fstat(file.fileno()).st_size))
    except DataError:
        raise
    # NotImplementedError: a version of the format of zip that Python does not read
    except (OSError, ValueError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} cannot be read as {what}: {' '.join(str(error).split())}") from error
