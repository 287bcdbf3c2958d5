"""The kernels in NumPy, for where numba does not work: the same functions as in `compiled`, with the same bits, and slower."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.kernels.layout import CHUNK, HALF, LANES, SQUARE, blocks_backwards, planes

F, N, U, B, H = np.float32, np.int32, np.uint32, np.uint8, np.uint16
_ROUND = F(12582912.0)
_EARLY, _LATE = U(0x846CA68B), U(0x846CA68B * 0xADB4A92D & 0xFFFFFFFF)
_TINY, _LIFT, _DROP = F(2.0**-60), F(2.0**64), F(2.0**-64)
_SMALL, _LARGE, _HUGE = F(2.0**-80), F(2.0**80), F(3.4028e38)
_FLT_MAX = 3.4028234663852886e38
_PIECE = 64 * CHUNK  # elements at a time, so that no temporary is of the full size


def _pieces(size: int) -> Iterator[slice]:
    for low in range(0, size, _PIECE):
        yield slice(low, min(low + _PIECE, size))


def _random(begin: int, size: int, first: Any, second: Any) -> NDArray[np.uint32]:
    """Return the random bits of the elements from the beginning of a chunk on, number ``begin`` of all."""
    place = np.arange(size, dtype=np.int64)
    late = place % CHUNK >= HALF
    x = (begin + place - np.where(late, HALF, 0)).astype(U) * U(0x7FEB352D) + U(first)
    return (x ^ (x >> U(15)) ^ U(second)) * np.where(late, _LATE, _EARLY)


def _unit(begin: int, size: int, first: Any, second: Any, mask: int = 0x7FFFFF) -> NDArray[np.float32]:
    """Return random numbers in [1, 2)."""
    return ((_random(begin, size, first, second) >> U(9)) & U(mask) | U(0x3F800000)).view(F)


def random_bits(first: Any, second: Any, begin: int, out: NDArray[np.uint32]) -> None:
    """See `compiled`, here and below."""
    np.copyto(out, _random(begin, out.size, first, second))


def _magnitudes(x: NDArray[np.float32]) -> NDArray[np.uint32]:
    return x.view(U) & U(0x7FFFFFFF)


def abs_max(x: NDArray[np.float32]) -> np.float32:
    top = max((_magnitudes(x[piece]).max() for piece in _pieces(x.size)), default=U(0))
    return np.array([top], U).view(F)[0]  # type: ignore[no-any-return]


def look(x: Any, bounds: Any, backwards: bool, columns: int, signs: Any, table: Any) -> None:
    table[:] = 0
    blocks = list(blocks_backwards(x.size))
    if not backwards:
        blocks.reverse()
    with np.errstate(over="ignore", invalid="ignore"):  # of what is not finite, or huge: it is looked at exactly below
        for low, high in ((low, min(low + CHUNK, end)) for begin, end in blocks for low in range(begin, end, CHUNK)):
            first, last = np.searchsorted(bounds, [low, high - 1], side="right") - 1
            for t in range(first, last + 1):
                _look_at(x[max(low, bounds[t]) : min(high, bounds[t + 1])], table[t])
    if signs.size:
        pack_signs(x, signs)
    with np.errstate(invalid="ignore"):
        for t, row in enumerate(table):
            unwanted = [j for j in range(5) if not columns & 1 << j]
            row[unwanted] = 0
            short = columns & SQUARE and not row[2] >= 1e-30 * (bounds[t + 1] - bounds[t])
            if short or not np.isfinite(row[:3].sum()):
                v = x[bounds[t] : bounds[t + 1]].astype(np.float64)
                row[:3] = [np.add.accumulate(each)[-1] for each in (v, np.abs(v), v * v)]
                row[unwanted] = 0


def _look_at(x: NDArray[np.float32], row: NDArray[np.float64]) -> None:
    rows = np.zeros((-(-x.size // LANES), LANES), F)
    rows.reshape(-1)[: x.size] = x
    for i, values in enumerate((rows, np.abs(rows), rows * rows)):
        lanes = np.add.accumulate(np.vstack([np.zeros((1, LANES), F), values]), axis=0)[-1]
        while lanes.size > 1:
            lanes = lanes[: lanes.size // 2] + lanes[lanes.size // 2 :]
        row[i] += lanes[0]
    top = abs_max(x)
    row[3] = max(row[3], top) if top <= np.inf else np.inf
    row[4] += np.count_nonzero(np.signbit(x))


def _pack(codes: NDArray[Any], width: int, out: NDArray[np.uint8]) -> int:
    at = shift = 0
    for plane in planes(width):
        h = -(-codes.size * plane // 8)
        rows = np.zeros((8 // plane, h), B)
        rows.reshape(-1)[: codes.size] = (codes >> shift) & ((1 << plane) - 1)
        rows <<= (np.arange(8 // plane, dtype=B) * B(plane))[:, None]
        np.bitwise_or.reduce(rows, axis=0, out=out[at : at + h])
        at, shift = at + h, shift + plane
    return at


def _unpack(packed: NDArray[np.uint8], width: int, codes: NDArray[Any]) -> int:
    at = shift = 0
    codes[:] = 0
    for plane in planes(width):
        h = -(-codes.size * plane // 8)
        shifts = (np.arange(8 // plane, dtype=B) * B(plane))[:, None]
        rows = (packed[at : at + h] >> shifts) & B((1 << plane) - 1)
        codes |= rows.reshape(-1)[: codes.size].astype(codes.dtype) << shift
        at, shift = at + h, shift + plane
    return at


def pack(codes: NDArray[Any], width: int, out: NDArray[np.uint8]) -> None:
    at = 0
    for low in range(0, codes.size, CHUNK):
        at += _pack(codes[low : low + CHUNK], width, out[at:])


def unpack(packed: NDArray[np.uint8], width: int, codes: NDArray[Any]) -> None:
    at = 0
    for low in range(0, codes.size, CHUNK):
        at += _unpack(packed[at:], width, codes[low : low + CHUNK])


def _inverse(norms: NDArray[np.float32], levels: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    lift = np.where(norms < _TINY, _LIFT, F(1))
    m = norms * lift
    return lift, np.divide(F(levels), m, out=np.zeros_like(m), where=m > 0)


def _step(norms: NDArray[np.float32], levels: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    small = norms < _TINY
    step = np.where(small, norms * np.where(small, _LIFT, F(1)), np.minimum(norms, _HUGE)) / F(levels)
    return step.astype(F), np.where(small, _DROP, F(1))


def _norms(rows: NDArray[np.float32], euclidean: bool) -> NDArray[np.float32]:
    """Return the norm of each row, shape (blocks, block); rows are padded with zeros."""
    top = _magnitudes(rows).max(axis=1).view(F)
    if not euclidean:
        return np.asarray(top)
    with np.errstate(over="ignore", invalid="ignore"):  # those are found again with another scale
        total = _square_sums(rows, np.ones(len(rows), F))
        scale = np.where(top < F(1), _LIFT, _DROP)
        norm = np.sqrt(_square_sums(rows, scale)).astype(np.float64) / scale.astype(np.float64)
        found = np.minimum(np.maximum(norm, top.astype(np.float64)), _FLT_MAX).astype(F)
        found = np.where((top == 0) | ~(top <= _HUGE), top, found)
        return np.asarray(np.where((total > _SMALL) & (total < _LARGE), np.sqrt(total), found))


def _square_sums(rows: NDArray[np.float32], scale: NDArray[np.float32]) -> NDArray[np.float32]:
    scaled = np.zeros((len(rows), -(-rows.shape[1] // LANES) * LANES), F)
    np.multiply(rows, scale[:, None], out=scaled[:, : rows.shape[1]])
    squares = (scaled * scaled).reshape(len(rows), -1, LANES)
    lanes = np.add.accumulate(squares, axis=1)[:, -1]
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    return lanes[:, 0]


def _as_integers(values: NDArray[np.float32]) -> NDArray[np.int32]:
    with np.errstate(invalid="ignore"):  # of what is not finite: callers see that by the norm
        return values.astype(N)


def quantize(
    x: Any, norms: Any, block: int, find: bool, euclidean: bool, levels: int, width: int, stochastic: bool,
    first: Any, second: Any, begin: int, codes: Any, out: Any,
) -> None:  # fmt: skip
    for low in range(0, x.size, CHUNK):
        piece = x[low : low + CHUNK]
        length = min(block, CHUNK)
        rows = np.zeros((-(-piece.size // length), length), F)
        rows.reshape(-1)[: piece.size] = piece
        which = slice(low // block, low // block + len(rows))
        if find:
            norms[which] = _norms(rows, euclidean)
        lift, factor = (each[:, None] for each in _inverse(norms[which], levels))
        scaled = rows * lift * factor
        if stochastic:
            bits = 24 if levels <= 127 else 16
            one = F(1 << bits)
            fixed = _as_integers(np.clip(scaled * one, -levels * one, levels * one))
            noise = _random(begin + low, rows.size, first, second).reshape(rows.shape) >> U(32 - bits)
            chosen = ((fixed + noise.astype(N)) >> N(bits)) + N(levels)
        else:
            chosen = (scaled + F(_ROUND + F(levels))).view(U)
        _pack(chosen.reshape(-1)[: piece.size].astype(codes.dtype), width, out[low * width // 8 :])


def dequantize(packed: Any, norms: Any, block: int, levels: int, width: int, codes: Any, out: Any) -> int:
    largest = 0
    for low in range(0, out.size, CHUNK):
        t = codes[: min(CHUNK, out.size - low)]
        _unpack(packed[low * width // 8 :], width, t)
        largest = max(largest, int(t.max()))
        where = np.arange(low, low + t.size) // block
        step, drop = _step(norms[where[0] : where[-1] + 1], levels)
        values = (t.astype(N) - N(levels)).astype(F) * step[where - where[0]]
        np.multiply(values, drop[where - where[0]], out=out[low : low + t.size])
    return largest


def pack_signs(x: NDArray[np.float32], out: NDArray[np.uint8]) -> None:
    at = 0
    for low in range(0, x.size, CHUNK):
        at += _pack((x[low : low + CHUNK].view(U) >> U(31)).astype(B), 1, out[at:])


def unpack_signs(packed: NDArray[np.uint8], plus: Any, minus: Any, out: NDArray[np.float32]) -> None:
    at, bits = 0, np.empty(CHUNK, B)
    for low in range(0, out.size, CHUNK):
        t = out[low : low + CHUNK]
        at += _unpack(packed[at:], 1, bits[: t.size])
        t[:] = np.where(bits[: t.size] != 0, F(minus), F(plus))


def to_half(x: NDArray[np.float32], out: NDArray[np.uint16]) -> np.float32:
    for piece in _pieces(x.size):
        with np.errstate(invalid="ignore"):
            out[piece] = np.clip(x[piece], F(-65504), F(65504)).astype(np.float16).view(H)
    return abs_max(x)


def from_half(halves: NDArray[np.uint16], out: NDArray[np.float32]) -> int:
    largest = 0
    for piece in _pieces(out.size):
        h = halves[piece].astype(U)
        largest = max(largest, int((h & U(0x7FFF)).max()))
        small = ((h & U(0x7FFF)) << U(13)) | ((h & U(0x8000)) << U(16))
        np.multiply(small.view(F), F(2.0**112), out=out[piece])
    return largest


def to_bfloat(x: NDArray[np.float32], out: NDArray[np.uint16]) -> np.float32:
    for piece in _pieces(x.size):
        magnitude = np.minimum(_magnitudes(x[piece]), U(0x7F7F0000))
        rounded = (magnitude + U(0x7FFF) + ((magnitude >> U(16)) & U(1))) >> U(16)
        out[piece] = rounded | (x[piece].view(U) >> U(16)) & U(0x8000)
    return abs_max(x)


def from_bfloat(halves: NDArray[np.uint16], out: NDArray[np.float32]) -> int:
    np.left_shift(halves, U(16), out=out.view(U), dtype=U)
    return max((int((halves[piece] & H(0x7FFF)).max()) for piece in _pieces(out.size)), default=0)


def to_exponents(x: Any, first: Any, second: Any, out: Any, signs: Any) -> np.float32:
    for piece in _pieces(x.size):
        moved = _magnitudes(x[piece]) + (_random(piece.start, piece.stop - piece.start, first, second) >> U(9))
        out[piece] = np.minimum(moved >> U(23), U(254))
    pack_signs(x, signs)
    return abs_max(x)


def from_exponents(exponents: Any, signs: Any, out: Any) -> int:
    unpack_signs(signs, F(1), F(-1), out)
    for piece in _pieces(out.size):
        out[piece] *= (exponents[piece].astype(U) << U(23)).view(F)
    return int(exponents.max(initial=0))


def to_table(x: Any, norm: Any, table: Any, stochastic: bool, first: Any, second: Any, codes: Any) -> None:
    lift, factor = (each[0] for each in _inverse(np.array([norm], F), 1))
    for piece in _pieces(x.size):
        size = piece.stop - piece.start
        a = np.minimum(np.abs(x[piece]) * lift * factor, F(1))
        u = _unit(piece.start, size, first, second) - F(1) if stochastic else F(0.5)
        place = np.zeros(size, N)
        for low, high in itertools.pairwise(table):
            place += a >= F(low) + F(high - low) * (F(1) - u)
        codes[piece] = place + np.where(x[piece] < 0, table.size, 0)


def from_table(codes: Any, values: Any, out: Any) -> None:
    np.take(values, codes, out=out, mode="clip")


def histogram(x: Any, shift: Any, prefix: Any, prefix_shift: Any, counts: Any) -> None:
    for piece in _pieces(x.size):
        magnitude = _magnitudes(x[piece])
        magnitude = magnitude[(magnitude >> U(prefix_shift)) == prefix]
        bins = (magnitude >> U(shift)) & U(counts.shape[1] - 1)
        counts[0] += np.bincount(bins, minlength=counts.shape[1])


def select(x: Any, bits: Any, ties: int, places: Any, values: Any) -> int:
    count = 0
    for piece in _pieces(x.size):
        magnitude = _magnitudes(x[piece])
        hit = magnitude > bits
        equal = np.flatnonzero(magnitude == bits)[:ties]
        hit[equal] = True
        ties -= equal.size
        found = np.flatnonzero(hit)[: max(places.size - count, 0)] + piece.start
        places[count : count + found.size], values[count : count + found.size] = found, x[found]
        count += int(hit.sum())
    return count


def mark(places: Any, bitmap: Any) -> None:
    bitmap[:] = 0
    np.bitwise_or.at(bitmap, places >> 3, (1 << (places & 7)).astype(B))


def marked(bitmap: Any, places: Any) -> int:
    count = 0
    for low in range(0, bitmap.size, CHUNK):
        found = np.flatnonzero(np.unpackbits(bitmap[low : low + CHUNK], bitorder="little")) + 8 * low
        room = found[: max(places.size - count, 0)]
        places[count : count + room.size] = room
        count += found.size
    return count


def nonzero_rows(x: Any, width: int, flags: Any) -> None:
    step = max(_PIECE // width, 1)
    for low in range(0, flags.size, step):
        rows = flags[low : low + step]
        piece = x.view(U)[low * width : (low + rows.size) * width].reshape(rows.size, width)
        np.any(piece, axis=1, out=rows.view(np.bool_))
