"""IDX files, the format of MNIST: a magic number, the lengths of the axes, then bytes; gzipped or not."""

from __future__ import annotations

import math
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import DataError
from chimera.data.readers.decompression import max_decompressed_bytes, too_large_error

_UNSIGNED_BYTE = 0x08


def read_idx(path: Path, ndim: int) -> NDArray[np.uint8]:
    """Return the bytes of an IDX file as a read-only array of ``ndim`` axes.

    The header is compared with the size of the file before memory is allocated.

    Raises
    ------
    DataError : the file is missing, truncated, too long, or not an IDX file of unsigned bytes with ``ndim`` axes.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    zipped = content[:2] == b"\x1f\x8b"
    length = 4 + 4 * ndim
    try:
        unpacker = zlib.decompressobj(wbits=31)  # 31: a gzip header and checksum around the stream
        header = unpacker.decompress(content, length) if zipped else content[:length]
        shape = _shape(path, header, ndim)
        size = math.prod(shape)
        if not zipped and size != len(content) - length:
            raise _wrong_length(path, shape)
        if size > max_decompressed_bytes(len(content)):
            raise too_large_error(path)
        body = unpacker.decompress(unpacker.unconsumed_tail, size + 1) if zipped else content[length:]
    except zlib.error as error:
        raise DataError(f"{path} is damaged: {error}") from error
    if len(body) != size or (zipped and not unpacker.eof):
        raise _wrong_length(path, shape)
    return np.frombuffer(body, np.uint8).reshape(shape)


def _shape(path: Path, header: bytes, ndim: int) -> tuple[int, ...]:
    if len(header) < 4 + 4 * ndim or header[:4] != bytes((0, 0, _UNSIGNED_BYTE, ndim)):
        raise DataError(
            f"{path} is not an IDX file of unsigned bytes with {ndim} axes: it begins with {header[:4].hex() or 'nothing'}, "
            f"not 0000{_UNSIGNED_BYTE:02x}{ndim:02x}"
        )
    return struct.unpack(f">{ndim}I", header[4:])


def _wrong_length(path: Path, shape: tuple[int, ...]) -> DataError:
    return DataError(
        f"{path} does not hold the {' x '.join(map(str, shape))} bytes that its header states: download it again"
    )
