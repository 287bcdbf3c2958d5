"""A few elements of a vector and their indices: the common part of `top-k`, `threshold` and `dgc`."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.fields import array, check_finite, count_arrays, finite, integer
from chimera.codecs.kernels import kernels
from chimera.codecs.kernels.layout import packed_size
from chimera.codecs.piecewise import DecodeBuffer
from chimera.core.device import copy_of, empty, to_device_of, to_host
from chimera.core.errors import CodecError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat

_MAX_LOW = 24


def encode_indices(name: str, size: int, indices: NDArray[np.int64], values: Flat) -> Encoded:
    """Encode values and their ascending indices; see `pack_indices`."""
    packed, meta = pack_indices(indices, size)
    values = to_host(values)
    check_finite(values)
    return Encoded(name, size, (values, *packed), meta)


def decode_indices(encoded: Encoded, buffer: DecodeBuffer) -> Iterator[tuple[slice, Flat]]:
    """Decode a message of `encode_indices`, piece by piece: a vector with zeros elsewhere."""
    count_arrays(encoded, 2, 3)
    values = finite(encoded, array(encoded, 0, np.float32), "values")
    if values.size > encoded.size:
        raise CodecError(f"{values.size} values of a {encoded.codec} message do not fit {encoded.size} elements")
    indices = empty(values.size, "int64", buffer.memory)
    unpack_indices(encoded, 1, encoded.size, indices)
    own, spans = to_device_of(values, indices), list(buffer.cut(0, encoded.size))
    ends = [0, len(indices)] if len(spans) < 2 else np.searchsorted(indices, [0, *(high for _, high in spans)]).tolist()
    for (low, high), first, last in zip(spans, ends, ends[1:], strict=False):
        out = buffer.memory_of(low, high)
        out[:] = 0
        out[indices[first:last] - low] = own[first:last]
        yield slice(low, high), out


def pack_indices(indices: NDArray[np.int64], size: int) -> tuple[tuple[NDArray[np.uint8], ...], dict[str, float]]:
    """Encode ascending indices below ``size`` as a bitmap or as a Rice code of the gaps, whichever is smaller.

    The low bits of a gap have fixed width. The rest goes to a second stream, as that number of zeros followed by a one. Returns
    one array, or two and their meta data.
    """
    k = kernels(indices)
    gaps = copy_of(indices)
    gaps[1:] -= indices[:-1] + 1
    low, code_bytes = _shortest(gaps)
    if code_bytes >= -(-size // 8):
        bitmap = np.empty(-(-size // 8), np.uint8)
        k.to_bitmap(indices, bitmap)
        return (bitmap,), {}
    rest = np.empty(packed_size(len(gaps), low), np.uint8)
    k.pack(gaps, low, rest)
    ones = ((gaps >> low) + 1).cumsum(0) - 1
    unary = np.empty(int(ones[-1]) // 8 + 1 if len(ones) else 0, np.uint8)
    k.to_bitmap(ones, unary)
    return (rest, unary), {"low": low}


def unpack_indices(encoded: Encoded, index: int, size: int, indices: NDArray[np.int64]) -> None:
    """Decode `pack_indices` into ``indices``. The arrays are the last of the message, from number ``index`` on."""
    if count_arrays(encoded, index + 1, index + 2) == index + 1:
        bitmap = array(encoded, index, np.uint8, -(-size // 8))
        _check_count(encoded, kernels(indices).from_bitmap(bitmap, indices), len(indices))
    else:
        _read_gaps(encoded, index, size, indices)
    if len(indices) and int(indices[-1]) >= size:
        raise CodecError(f"a index in a {encoded.codec} message is beyond its {size}")


def _read_gaps(encoded: Encoded, index: int, size: int, indices: NDArray[np.int64]) -> None:
    k, low = kernels(indices), integer(encoded, "low", 0, _MAX_LOW)
    rest = array(encoded, index, np.uint8, packed_size(len(indices), low))
    unary = array(encoded, index + 1, np.uint8)
    if unary.size > (size + len(indices)) // 8 + 1:
        raise CodecError(f"the indices of a {encoded.codec} message take more bits than there are elements")
    _check_count(encoded, k.from_bitmap(unary, indices), len(indices))
    indices[1:] -= indices[:-1] + 1
    indices <<= low
    codes = empty(len(indices), "int64", indices)
    k.unpack(rest, low, codes)
    indices |= codes
    if len(indices) and int(indices.max()) >= max(size, 1):
        raise CodecError(f"a index in a {encoded.codec} message is beyond its {size}")
    indices += 1
    indices[:] = indices.cumsum(0)
    indices -= 1


def _check_count(encoded: Encoded, found: int, wanted: int) -> None:
    if found != wanted:
        raise CodecError(f"a {encoded.codec} message has {found} indices for {wanted} values")


def _shortest(gaps: NDArray[np.int64]) -> tuple[int, int]:
    """Return the number of low bits that gives the shortest Rice code, and its length in bytes."""
    size = len(gaps)
    if not size:
        return 0, 0
    about = max(int(math.log2(max(int(gaps.sum()) / size, 1.0) * 0.7 + 1)), 0)
    sizes = {}
    for low in range(max(about - 1, 0), min(about + 1, _MAX_LOW) + 1):
        sizes[low] = packed_size(size, low) + (int((gaps >> low).sum()) + size + 7) // 8
    best = min(sizes, key=lambda low: sizes[low])
    return best, sizes[best]
