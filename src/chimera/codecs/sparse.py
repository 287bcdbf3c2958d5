"""A few elements of a vector and their places: the common part of `top-k`, `threshold` and `dgc`."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.fields import array, count_arrays, finite, packable, whole
from chimera.codecs.kernels import kernels
from chimera.codecs.kernels.layout import packed_size
from chimera.codecs.pieces import Target
from chimera.core.device import beside, copy_of, empty, to_host
from chimera.core.errors import CodecError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat

_MAX_LOW = 24


def encode_places(name: str, size: int, places: NDArray[np.int64], values: Flat) -> Encoded:
    """Encode values and their ascending places; see `pack_places`."""
    packed, meta = pack_places(places, size)
    values = to_host(values)
    packable(values)
    return Encoded(name, size, (values, *packed), meta)


def decode_places(encoded: Encoded, target: Target) -> Iterator[tuple[slice, Flat]]:
    """Decode a message of `encode_places`, piece by piece: a vector with zeros elsewhere."""
    count_arrays(encoded, 2, 3)
    values = finite(encoded, array(encoded, 0, np.float32), "values")
    if values.size > encoded.size:
        raise CodecError(f"{values.size} values of a {encoded.codec} message do not fit {encoded.size} elements")
    places = empty(values.size, "int64", target.memory)
    unpack_places(encoded, 1, encoded.size, places)
    own, spans = beside(values, places), list(target.cut(0, encoded.size))
    ends = [0, len(places)] if len(spans) < 2 else np.searchsorted(places, [0, *(high for _, high in spans)]).tolist()
    for (low, high), first, last in zip(spans, ends, ends[1:], strict=False):
        out = target.place(low, high)
        out[:] = 0
        out[places[first:last] - low] = own[first:last]
        yield slice(low, high), out


def pack_places(places: NDArray[np.int64], size: int) -> tuple[tuple[NDArray[np.uint8], ...], dict[str, float]]:
    """Encode ascending places below ``size`` as a bitmap or as a Rice code of the gaps, whichever is smaller.

    The low bits of a gap have fixed width. The rest goes to a second stream, as that number of zeros followed by a one. Returns
    one array, or two and their meta data.
    """
    k = kernels(places)
    gaps = copy_of(places)
    gaps[1:] -= places[:-1] + 1
    low, code_bytes = _shortest(gaps)
    if code_bytes >= -(-size // 8):
        bitmap = np.empty(-(-size // 8), np.uint8)
        k.mark(places, bitmap)
        return (bitmap,), {}
    rest = np.empty(packed_size(len(gaps), low), np.uint8)
    k.pack(gaps, low, rest)
    ones = ((gaps >> low) + 1).cumsum(0) - 1
    unary = np.empty(int(ones[-1]) // 8 + 1 if len(ones) else 0, np.uint8)
    k.mark(ones, unary)
    return (rest, unary), {"low": low}


def unpack_places(encoded: Encoded, index: int, size: int, places: NDArray[np.int64]) -> None:
    """Decode `pack_places` into ``places``. The arrays are the last of the message, from number ``index`` on."""
    if count_arrays(encoded, index + 1, index + 2) == index + 1:
        bitmap = array(encoded, index, np.uint8, -(-size // 8))
        _check_marks(encoded, kernels(places).marked(bitmap, places), len(places))
    else:
        _read_gaps(encoded, index, size, places)
    if len(places) and int(places[-1]) >= size:
        raise CodecError(f"a place in a {encoded.codec} message is beyond its {size}")


def _read_gaps(encoded: Encoded, index: int, size: int, places: NDArray[np.int64]) -> None:
    k, low = kernels(places), whole(encoded, "low", 0, _MAX_LOW)
    rest = array(encoded, index, np.uint8, packed_size(len(places), low))
    unary = array(encoded, index + 1, np.uint8)
    if unary.size > (size + len(places)) // 8 + 1:
        raise CodecError(f"the places of a {encoded.codec} message take more bits than there are elements")
    _check_marks(encoded, k.marked(unary, places), len(places))
    places[1:] -= places[:-1] + 1
    places <<= low
    codes = empty(len(places), "int64", places)
    k.unpack(rest, low, codes)
    places |= codes
    if len(places) and int(places.max()) >= max(size, 1):
        raise CodecError(f"a place in a {encoded.codec} message is beyond its {size}")
    places += 1
    places[:] = places.cumsum(0)
    places -= 1


def _check_marks(encoded: Encoded, found: int, wanted: int) -> None:
    if found != wanted:
        raise CodecError(f"a {encoded.codec} message has {found} places for {wanted} values")


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
