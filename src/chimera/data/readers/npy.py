"""Reading of .npy and .npz files from untrusted sources: stated sizes are checked, and no code in a file is run."""

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
from chimera.data.readers.decompression import max_decompressed_bytes, too_large_error

_MAX_HEADER_BYTES = 10_000  # the limit of NumPy, which checks it only after it has read the header
_METHODS = (
    zipfile.ZIP_STORED,
    zipfile.ZIP_DEFLATED,
)  # those that NumPy writes; others may decompress to any multiple of their size
_ENCRYPTED = 1
_ZIP_MAGIC = b"PK\3\4", b"PK\5\6"
"""First bytes of the members that NumPy and SciPy read as archives, whatever their names."""
_VERSIONS: dict[bytes, tuple[str, Callable[[Any], Any]]] = {
    b"\1\0": ("<H", np.lib.format.read_array_header_1_0),
    b"\2\0": ("<I", np.lib.format.read_array_header_2_0),
}


class Header(NamedTuple):
    """The header of an array in a file."""

    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """The size of the elements, in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(file: IO[bytes]) -> Header:
    """Read the header of an array, without allocating memory for the array.

    Raises
    ------
    ValueError : the header is invalid, or the array has a shape or type that cannot be read.
    """
    begin = file.read(8)
    if len(begin) < 8 or begin[:6] != np.lib.format.MAGIC_PREFIX:
        raise ValueError(f"it begins with {begin[:6]!r}, not {np.lib.format.MAGIC_PREFIX!r}")
    if begin[6:] not in _VERSIONS:
        raise ValueError(f"version {tuple(begin[6:])} of the format is unknown")
    form, parse = _VERSIONS[begin[6:]]
    length = file.read(struct.calcsize(form))
    stated = int.from_bytes(length, "little")
    if stated > _MAX_HEADER_BYTES:
        raise ValueError(f"its header states {stated} bytes; at most {_MAX_HEADER_BYTES} are read")
    try:
        shape, fortran_order, dtype = parse(io.BytesIO(length + file.read(stated)))
    # NumPy does not catch the exceptions of Python's parser. MemoryError means that the nesting is too deep.
    except (ValueError, TypeError, LookupError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError) as error:
        raise ValueError(f"its header is damaged ({type(error).__name__})") from error
    if not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError(f"its header states the shape {shape}")
    if dtype.hasobject:
        raise ValueError(f"it holds {dtype}: only arrays of numbers, Booleans or texts are read")
    return Header(shape, fortran_order, dtype)


class Archive:
    """An open .npz file, or another zip file that holds arrays.

    Attributes
    ----------
    names : names of the arrays.
    """

    def __init__(self, path: Path, file: zipfile.ZipFile, bytes_left: int, *, nested: bool = False) -> None:
        self._path, self._file, self._bytes_left, self._nested = path, file, bytes_left, nested
        self._members = {info.filename.removesuffix(".npy"): info for info in file.infolist()}
        self.names = tuple(self._members)

    def read(self, name: str) -> NDArray[Any]:
        """Return an array. Its stated size is compared with the size of the zip member before memory is allocated."""
        info = self._members[name]
        self._check(info)
        with self._file.open(info) as member:
            array: NDArray[Any] = np.lib.format.read_array(member, allow_pickle=False)
        return array

    def check(self) -> None:
        """Check all members, before another library reads them; also the members of archives in it, such as sparse matrices."""
        for info in self._file.infolist():
            self._check(info)

    def _check(self, info: zipfile.ZipInfo) -> None:
        if info.compress_type not in _METHODS or info.flag_bits & _ENCRYPTED:
            raise ValueError(
                f"its member {info.filename!r} is encrypted, or compressed by a method that NumPy does not use"
            )
        if info.file_size > self._bytes_left:
            raise too_large_error(self._path)
        self._bytes_left -= info.file_size
        with self._file.open(info) as member:
            begin = member.read(8)
            member.seek(0)
            if begin.startswith(_ZIP_MAGIC):
                self._check_nested(info.filename, member)
            elif begin.startswith(np.lib.format.MAGIC_PREFIX) or info.filename.endswith(".npy"):
                header = read_header(member)
                if header.nbytes != info.file_size - member.tell():
                    raise ValueError(f"its member {info.filename!r} does not hold the bytes that its header states")

    def _check_nested(self, name: str, member: IO[bytes]) -> None:
        if self._nested:
            raise ValueError(f"its member {name!r} is an archive in an archive in an archive")
        with zipfile.ZipFile(io.BytesIO(member.read())) as file:  # in memory: to seek in a member decompresses it again
            inner = Archive(self._path, file, self._bytes_left, nested=True)
            inner.check()
        self._bytes_left = inner._bytes_left


@contextmanager
def open_archive(path: Path, what: str = ".npz") -> Iterator[Archive]:
    """Open an .npz file, or another zip file with arrays, which error messages call ``what``.

    Raises
    ------
    DataError : the file, or a member that the block reads, is damaged or cannot be read; one line with the file's name.
    """
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            yield Archive(path, archive, max_decompressed_bytes(os.fstat(file.fileno()).st_size))
    except DataError:
        raise
    # NotImplementedError: a version of the zip format that Python does not support
    except (OSError, ValueError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} cannot be read as {what}: {' '.join(str(error).split())}") from error
