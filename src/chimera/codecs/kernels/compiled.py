"""The kernels, compiled by numba: each passes over its vectors once and needs no memory of their size.

They work through a vector `CHUNK` elements at a time, so that what lies between two steps stays in cache. `plain` has the
same functions in NumPy, which give the same bits.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

from chimera.codecs.kernels.layout import BLOCK as _BLOCK
from chimera.codecs.kernels.layout import CHUNK, LANES

F, N, U, B, H = np.float32, np.int32, np.uint32, np.uint8, np.uint16
_ROUND = F(12582912.0)  # 1.5 * 2**23: added and taken away again, it rounds to the nearest integer, ties to even
_TINY, _LIFT, _DROP = F(2.0**-60), F(2.0**64), F(2.0**-64)
_HUGE = F(3.4028e38)
_FLT_MAX = 3.4028234663852886e38
_C1, _C2 = U(0x7FEB352D), U(0x846CA68B)
_ONE = U(0x3F800000)  # the bits of 1
_SMALL, _LARGE = F(2.0**-40), F(2.0**40)


def njit(function: Any) -> Any:
    """Compile, once for all runs where the disk takes it."""
    try:
        return numba.njit(nogil=True, cache=True, error_model="numpy")(function)
    except RuntimeError:  # there is no folder to write to
        return numba.njit(nogil=True, error_model="numpy")(function)


@intrinsic
def _as_bits(typing: Any, value: Any) -> Any:
    """Return the bits of a float32 as uint32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return numba.types.uint32(numba.types.float32), generate


@intrinsic
def _as_float(typing: Any, value: Any) -> Any:
    """Return the float32 that has these bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return numba.types.float32(numba.types.uint32), generate


# ---------------------------------------------------------------- random numbers


@njit
def _random(index: Any, first: Any, second: Any) -> Any:
    """Return 32 random bits, the upper ones the better: a hash of the index and of the two halves of a key."""
    x = U(U(index ^ first) * _C1)
    x = U(x ^ U(x >> U(15)))
    return U(U(x * _C2) + second)


@njit
def random_bits(first: Any, second: Any, begin: Any, out: Any) -> None:
    """Write the random bits of the indices from ``begin`` on."""
    for j in range(out.size):
        out[j] = _random(U(begin + j), first, second)


# ---------------------------------------------------------------- what is known of a vector


@njit
def _largest_bits(x: Any) -> Any:
    u = x.view(U)
    top = U(0)
    for i in range(u.size):
        top = max(top, U(u[i] & U(0x7FFFFFFF)))
    return top


@njit
def abs_max(x: Any) -> Any:
    """Return the largest magnitude; what is not finite counts as larger than all numbers.

    It begins with the last block, so that the first is in the cache for the pass that comes next.
    """
    top = U(0)
    for block in range((x.size + _BLOCK - 1) // _BLOCK - 1, -1, -1):
        top = max(top, _largest_bits(x[block * _BLOCK : (block + 1) * _BLOCK]))
    return _as_float(top)


@njit
def sums(x: Any) -> Any:
    """Return the sums of x, |x| and x squared, float64, added lane by lane (see `layout.LANES`), and the largest magnitude."""
    lanes, out, top = np.zeros((3, LANES)), np.zeros(4), U(0)
    for block in range((x.size + _BLOCK - 1) // _BLOCK - 1, -1, -1):
        piece = x[block * _BLOCK : (block + 1) * _BLOCK]
        _add_lanes(piece, lanes[0], lanes[1], lanes[2])
        top = max(top, _largest_bits(piece))
    for j in range(LANES):
        for i in range(3):
            out[i] += lanes[i, j]
    out[3] = _as_float(top)
    return out


@njit
def abs_sum(x: Any) -> Any:
    """Return the second of `sums` alone, by the same additions."""
    lanes, total = np.zeros(LANES), 0.0
    for block in range((x.size + _BLOCK - 1) // _BLOCK - 1, -1, -1):
        _add_magnitudes(x[block * _BLOCK : (block + 1) * _BLOCK], lanes)
    for j in range(LANES):
        total += lanes[j]
    return total


@njit
def _add_magnitudes(x: Any, lanes: Any) -> None:
    whole = x.size // LANES * LANES
    for i in range(0, whole, LANES):
        for j in range(LANES):
            lanes[j] += abs(np.float64(x[i + j]))
    for j in range(x.size - whole):
        lanes[j] += abs(np.float64(x[whole + j]))


@njit
def _add_lanes(x: Any, plain: Any, absolute: Any, square: Any) -> None:
    whole = x.size // LANES * LANES
    for i in range(0, whole, LANES):
        for j in range(LANES):
            v = np.float64(x[i + j])
            plain[j] += v
            absolute[j] += abs(v)
            square[j] += v * v
    for j in range(x.size - whole):
        v = np.float64(x[whole + j])
        plain[j] += v
        absolute[j] += abs(v)
        square[j] += v * v


# ---------------------------------------------------------------- bits


@njit
def _pack_ones(t: Any, out: Any) -> None:
    h = out.size
    if t.size == 8 * h:
        for j in range(h):
            low = t[j] | B(t[j + h] << 1) | B(t[j + 2 * h] << 2) | B(t[j + 3 * h] << 3)
            high = B(t[j + 4 * h] << 4) | B(t[j + 5 * h] << 5) | B(t[j + 6 * h] << 6) | B(t[j + 7 * h] << 7)
            out[j] = low | high
    else:
        _pack_tail(t, 1, out)


@njit
def _pack_twos(t: Any, out: Any) -> None:
    h = out.size
    if t.size == 4 * h:
        for j in range(h):
            out[j] = t[j] | B(t[j + h] << 2) | B(t[j + 2 * h] << 4) | B(t[j + 3 * h] << 6)
    else:
        _pack_tail(t, 2, out)


@njit
def _pack_fours(t: Any, out: Any) -> None:
    h = out.size
    if t.size == 2 * h:
        for j in range(h):
            out[j] = t[j] | B(t[j + h] << 4)
    else:
        _pack_tail(t, 4, out)


@njit
def _pack_tail(t: Any, width: Any, out: Any) -> None:
    h = out.size
    out[:] = 0
    for i in range(t.size):
        out[i % h] |= B(t[i] << (i // h * width))


@njit
def _pack(codes: Any, width: Any, plane: Any, out: Any) -> Any:
    """Pack the codes of a chunk, plane by plane; return how many bytes that makes."""
    n, at, shift = codes.size, 0, 0
    t = plane[:n]
    while width > 0:
        p = 8 if width >= 8 else (4 if width >= 4 else (2 if width >= 2 else 1))
        nbytes = (n * p + 7) // 8
        part = out[at : at + nbytes]
        if p == 8:
            t = part
        mask = B((1 << p) - 1)
        if shift == 0:
            for j in range(n):
                t[j] = B(codes[j]) & mask
        else:
            for j in range(n):
                t[j] = B(codes[j] >> shift) & mask
        if p == 4:
            _pack_fours(t, part)
        elif p == 2:
            _pack_twos(t, part)
        elif p == 1:
            _pack_ones(t, part)
        t = plane[:n]
        at, shift, width = at + nbytes, shift + p, width - p
    return at


@njit
def _unpack(packed: Any, width: Any, codes: Any) -> Any:
    """Undo `_pack`; return how many bytes that took."""
    n, at, shift = codes.size, 0, 0
    codes[:] = 0
    while width > 0:
        p = 8 if width >= 8 else (4 if width >= 4 else (2 if width >= 2 else 1))
        h = (n * p + 7) // 8
        part = packed[at : at + h]
        if p == 8 and shift == 0:
            for j in range(h):
                codes[j] = part[j]
        elif p == 8:
            for j in range(h):
                codes[j] |= part[j] << shift
        elif n * p == 8 * h and shift == 0:
            _unpack_full(part, p, codes)
        else:
            mask = (1 << p) - 1
            for k in range(8 // p):
                for j in range(min(h, n - k * h)):
                    codes[k * h + j] |= ((part[j] >> (k * p)) & mask) << shift
        at, shift, width = at + h, shift + p, width - p
    return at


@njit
def _unpack_full(part: Any, p: Any, codes: Any) -> None:
    h = part.size
    if p == 4:
        for j in range(h):
            codes[j] = part[j] & B(15)
            codes[j + h] = B(part[j] >> B(4))
    elif p == 2:
        for j in range(h):
            codes[j] = part[j] & B(3)
            codes[j + h] = B(part[j] >> B(2)) & B(3)
            codes[j + 2 * h] = B(part[j] >> B(4)) & B(3)
            codes[j + 3 * h] = B(part[j] >> B(6))
    else:
        for j in range(h):
            codes[j] = part[j] & B(1)
            codes[j + h] = B(part[j] >> B(1)) & B(1)
            codes[j + 2 * h] = B(part[j] >> B(2)) & B(1)
            codes[j + 3 * h] = B(part[j] >> B(3)) & B(1)
            codes[j + 4 * h] = B(part[j] >> B(4)) & B(1)
            codes[j + 5 * h] = B(part[j] >> B(5)) & B(1)
            codes[j + 6 * h] = B(part[j] >> B(6)) & B(1)
            codes[j + 7 * h] = B(part[j] >> B(7))


@njit
def pack(codes: Any, width: Any, out: Any) -> None:
    """Pack unsigned codes of ``width`` bits."""
    plane, at = np.empty(CHUNK, B), 0
    for begin in range(0, codes.size, CHUNK):
        at += _pack(codes[begin : begin + CHUNK], width, plane, out[at:])


@njit
def unpack(packed: Any, width: Any, codes: Any) -> None:
    """Undo `pack`."""
    at = 0
    for begin in range(0, codes.size, CHUNK):
        at += _unpack(packed[at:], width, codes[begin : begin + CHUNK])


# ---------------------------------------------------------------- uniform levels


@njit
def _inverse(norm: Any, levels: Any) -> Any:
    """Return (lift, factor): ``x * lift * factor`` is x in units of a level, also where the norm is denormal."""
    lift = _LIFT if norm < _TINY else F(1)
    m = F(norm * lift)
    return lift, (F(levels / m) if m > 0 else F(0))


@njit
def _step(norm: Any, levels: Any) -> Any:
    """Return (step, drop): ``level * step * drop`` is the value of a level, never infinite."""
    if norm < _TINY:
        return F(F(norm * _LIFT) / levels), _DROP
    return F(min(norm, _HUGE) / levels), F(1)


@njit
def _nearest(x: Any, norm: Any, levels: Any, codes: Any) -> None:
    lift, factor = _inverse(norm, F(levels))
    top = N(levels)
    for j in range(x.size):
        level = F(F(F(F(x[j] * lift) * factor) + _ROUND) - _ROUND)
        codes[j] = N(N(level) + top)


@njit
def _stochastic(x: Any, norm: Any, levels: Any, first: Any, second: Any, begin: Any, codes: Any) -> None:
    """Write ``floor(x / step + levels + u)``, u being uniform in [0, 1), and so fine that the sum is exact where x is 0."""
    lift, factor = _inverse(norm, F(levels))
    top, less = F(2 * levels), F(levels - 1)
    mask = U(0x7FFFFF)
    while levels > 1:
        mask, levels = U(mask & U(mask << U(1))), levels // 2
    index = U(begin)
    if lift == 1:
        for j in range(x.size):
            u = F(_as_float(U(U(U(_random(index, first, second) >> U(9)) & mask) | _ONE)) + less)
            codes[j] = N(min(max(F(F(x[j] * factor) + u), F(0)), top))
            index = U(index + U(1))
    else:
        for j in range(x.size):
            u = F(_as_float(U(U(U(_random(index, first, second) >> U(9)) & mask) | _ONE)) + less)
            codes[j] = N(min(max(F(F(F(x[j] * lift) * factor) + u), F(0)), top))
            index = U(index + U(1))


@njit
def _norm(x: Any, euclidean: Any, lanes: Any) -> Any:
    """Return the largest magnitude, or the Euclidean norm, added in the lanes and then by halves."""
    top = _as_float(_largest_bits(x))
    if not euclidean or top == 0 or not top <= _HUGE:
        return top
    scale = F(1) if _SMALL < top < _LARGE else (_LIFT if top <= _SMALL else _DROP)
    lanes[:] = 0
    whole = x.size // 64 * 64
    for i in range(0, whole, 64):
        for j in range(64):
            v = F(x[i + j] * scale)
            lanes[j] += F(v * v)
    for j in range(x.size - whole):
        v = F(x[whole + j] * scale)
        lanes[j] += F(v * v)
    half = 32
    while half:
        for j in range(half):
            lanes[j] += lanes[j + half]
        half //= 2
    return F(min(max(np.float64(np.sqrt(lanes[0])) / np.float64(scale), np.float64(top)), _FLT_MAX))


@njit
def quantize(
    x: Any, norms: Any, block: Any, find: Any, euclidean: Any, levels: Any, width: Any, stochastic: Any,
    first: Any, second: Any, begin: Any, codes: Any, out: Any,
) -> None:  # fmt: skip
    """Write the nearest or a neighbouring level of each element, -levels to levels, as packed codes.

    ``norms`` holds the value of the outermost level of each block; with ``find`` it is found here. ``codes`` is room for a
    chunk.
    """
    plane, lanes = np.empty(CHUNK, B), np.empty(64, F)
    chunks = (x.size + CHUNK - 1) // CHUNK
    chunk_bytes = CHUNK * width // 8
    for c in range(chunks):
        low, high = c * CHUNK, min((c + 1) * CHUNK, x.size)
        for b in range(low, high, min(block, CHUNK)):
            e = min(b + min(block, CHUNK), high)
            piece = x[b:e]
            if find:
                norms[b // block] = _norm(piece, euclidean, lanes)
            norm = norms[b // block]
            if stochastic:
                _stochastic(piece, norm, levels, first, second, begin + b, codes[b - low : e - low])
            else:
                _nearest(piece, norm, levels, codes[b - low : e - low])
        _pack(codes[: high - low], width, plane, out[c * chunk_bytes :])


@njit
def dequantize(packed: Any, norms: Any, block: Any, levels: Any, width: Any, codes: Any, out: Any) -> Any:
    """Undo `quantize`; return the largest code that was met."""
    at, largest = 0, codes.dtype.type(0)
    for low in range(0, out.size, CHUNK):
        high = min(low + CHUNK, out.size)
        t = codes[: high - low]
        at += _unpack(packed[at:], width, t)
        for j in range(t.size):
            largest = max(largest, t[j])
        for b in range(low, high, min(block, CHUNK)):
            e = min(b + min(block, CHUNK), high)
            step, drop = _step(norms[b // block], F(levels))
            _values(t[b - low : e - low], N(levels), step, drop, out[b:e])
    return largest


@njit
def _values(codes: Any, levels: Any, step: Any, drop: Any, out: Any) -> None:
    if drop == 1:
        for j in range(out.size):
            out[j] = F(N(N(codes[j]) - levels)) * step
    else:
        for j in range(out.size):
            out[j] = F(F(N(N(codes[j]) - levels)) * step) * drop


# ---------------------------------------------------------------- signs


@njit
def pack_signs(x: Any, out: Any) -> None:
    """Pack the sign bits, set where an element is negative."""
    u, at = x.view(U), 0
    for low in range(0, x.size, CHUNK):
        t = u[low : low + CHUNK]
        h = (t.size + 7) // 8
        part = out[at : at + h]
        if t.size == 8 * h:
            for j in range(h):
                a = U(t[j] >> U(31)) | U(U(t[j + h] >> U(31)) << U(1))
                b = U(U(t[j + 2 * h] >> U(31)) << U(2)) | U(U(t[j + 3 * h] >> U(31)) << U(3))
                c = U(U(t[j + 4 * h] >> U(31)) << U(4)) | U(U(t[j + 5 * h] >> U(31)) << U(5))
                d = U(U(t[j + 6 * h] >> U(31)) << U(6)) | U(U(t[j + 7 * h] >> U(31)) << U(7))
                part[j] = B(a | b | c | d)
        else:
            part[:] = 0
            for i in range(t.size):
                part[i % h] |= B((t[i] >> U(31)) << U(i // h))
        at += h


@njit
def unpack_signs(packed: Any, plus: Any, minus: Any, out: Any) -> None:
    """Write ``minus`` where a bit is set, else ``plus``."""
    at = 0
    for low in range(0, out.size, CHUNK):
        t = out[low : low + CHUNK]
        h = (t.size + 7) // 8
        part = packed[at : at + h]
        for k in range(8):
            bit = B(1 << k)
            piece = t[k * h : (k + 1) * h]
            for j in range(piece.size):
                piece[j] = minus if part[j] & bit else plus
        at += h


# ---------------------------------------------------------------- shorter floats


@njit
def to_half(x: Any, out: Any) -> Any:
    """Write IEEE half precision, ties to even; what is too large for it becomes the largest. Returns the largest magnitude."""
    u, top = x.view(U), U(0)
    for i in range(x.size):
        top = max(top, U(u[i] & U(0x7FFFFFFF)))
        magnitude = min(U(u[i] & U(0x7FFFFFFF)), U(0x477FE000))  # 65504
        odd = U(magnitude >> U(13)) & U(1)
        normal = U(U(U(magnitude + U(0xFFF)) + odd) - U(0x38000000)) >> U(13)
        small = U(N(F(F(_as_float(magnitude) * F(2.0**24)) + _ROUND) - _ROUND))  # in units of the smallest denormal
        value = small if magnitude < U(0x38800000) else normal
        out[i] = H(U(value) | U(U(u[i] >> U(16)) & U(0x8000)))
    return _as_float(top)


@njit
def from_half(halves: Any, out: Any) -> Any:
    """Undo `to_half`; return the largest magnitude's bits that were met."""
    largest = H(0)
    for i in range(halves.size):
        h = U(halves[i])
        largest = max(largest, H(h & U(0x7FFF)))
        small = _as_float(U(U(h & U(0x7FFF)) << U(13)) | U(U(h & U(0x8000)) << U(16)))
        out[i] = small * F(2.0**112)
    return largest


@njit
def to_bfloat(x: Any, out: Any) -> Any:
    """Write bfloat16, ties to even; what would become infinite becomes the largest. Returns the largest magnitude."""
    u, top = x.view(U), U(0)
    for i in range(x.size):
        top = max(top, U(u[i] & U(0x7FFFFFFF)))
        magnitude = min(U(u[i] & U(0x7FFFFFFF)), U(0x7F7F0000))
        odd = U(magnitude >> U(16)) & U(1)
        out[i] = H(U(U(U(magnitude + U(0x7FFF)) + odd) >> U(16)) | U(U(u[i] >> U(16)) & U(0x8000)))
    return _as_float(top)


@njit
def from_bfloat(halves: Any, out: Any) -> Any:
    """Undo `to_bfloat`; return the largest magnitude's bits that were met."""
    bits = out.view(U)
    largest = H(0)
    for i in range(halves.size):
        largest = max(largest, H(halves[i] & H(0x7FFF)))
        bits[i] = U(U(halves[i]) << U(16))
    return largest


# ---------------------------------------------------------------- powers of two


@njit
def to_exponents(x: Any, first: Any, second: Any, out: Any, signs: Any) -> Any:
    """Round each magnitude to a power of two above or below, at random, without bias; write exponents and signs.

    Returns the largest magnitude there was.
    """
    u, top = x.view(U), U(0)
    for low in range(0, x.size, CHUNK):
        t, part, index = u[low : low + CHUNK], out[low : low + CHUNK], U(low)
        for j in range(t.size):
            magnitude = U(t[j] & U(0x7FFFFFFF))
            top = max(top, magnitude)
            part[j] = B(min(U(U(magnitude + U(_random(index, first, second) >> U(9))) >> U(23)), U(254)))
            index = U(index + U(1))
        pack_signs(x[low : low + CHUNK], signs[low // 8 :])
    return _as_float(top)


@njit
def from_exponents(exponents: Any, signs: Any, out: Any) -> Any:
    """Undo `to_exponents`; return the largest exponent that was met."""
    largest = B(0)
    for low in range(0, out.size, CHUNK):
        t, part = out[low : low + CHUNK], exponents[low : low + CHUNK]
        unpack_signs(signs[low // 8 :], F(1), F(-1), t)
        for j in range(t.size):
            largest = max(largest, part[j])
            t[j] *= _as_float(U(U(part[j]) << U(23)))
    return largest


# ---------------------------------------------------------------- tables of levels


@njit
def to_table(x: Any, norm: Any, table: Any, stochastic: Any, first: Any, second: Any, codes: Any) -> None:
    """Write for each element the place of a level of ``table`` (ascending, 0 to 1), plus half the range if it is negative.

    The level is the nearest to ``|x| / norm``, or one of the two around it at random, without bias.
    """
    lift, factor = _inverse(norm, F(1))
    levels = table.size
    index = U(0)
    for i in range(x.size):
        a = min(F(F(abs(x[i]) * lift) * factor), F(1))
        u = F(_as_float(U(U(_random(index, first, second) >> U(9)) | _ONE)) - F(1)) if stochastic else F(0.5)
        index = U(index + U(1))
        place = 0
        for k in range(levels - 1):
            border = F(table[k] + F(F(table[k + 1] - table[k]) * F(F(1) - u)))
            place += 1 if a >= border else 0
        codes[i] = place + (levels if x[i] < 0 else 0)


@njit
def from_table(codes: Any, values: Any, out: Any) -> None:
    """Write the value of each code; there is one for each."""
    for i in range(out.size):
        out[i] = values[codes[i]]


# ---------------------------------------------------------------- the largest elements


@njit
def histogram(x: Any, shift: Any, prefix: Any, prefix_shift: Any, counts: Any) -> None:
    """Count magnitudes by the bits from ``shift`` on, if their upper bits are ``prefix``; counts has shape (4, bins)."""
    u = x.view(U)
    mask = U(counts.shape[1] - 1)
    for i in range(u.size):
        magnitude = U(u[i] & U(0x7FFFFFFF))
        if U(magnitude >> prefix_shift) == prefix:
            counts[i & 3, U(magnitude >> shift) & mask] += 1


@njit
def _any(u: Any, bits: Any) -> Any:
    """Return whether one of 64 magnitudes is at least that of these bits."""
    hit = U(0)
    for j in range(64):
        hit |= U(U(u[j] & U(0x7FFFFFFF)) >= bits)
    return hit != 0


@njit
def select(x: Any, bits: Any, ties: Any, places: Any, values: Any) -> Any:
    """Write places and values of the elements above a magnitude, given by its bits, and of the first ``ties`` that equal it.

    Returns how many there are; what has no room is counted and not written.
    """
    u, count, room = x.view(U), 0, places.size
    for low in range(0, u.size, 64):
        if low + 64 > u.size or _any(u[low : low + 64], bits):
            for i in range(low, min(low + 64, u.size)):
                magnitude = U(u[i] & U(0x7FFFFFFF))
                if magnitude < bits:
                    continue
                if magnitude == bits:
                    if ties == 0:
                        continue
                    ties -= 1
                if count < room:
                    places[count], values[count] = i, x[i]
                count += 1
    return count


@njit
def mark(places: Any, bitmap: Any) -> None:
    """Set the bits of these places."""
    bitmap[:] = 0
    for i in range(places.size):
        bitmap[places[i] >> 3] |= B(1 << (places[i] & 7))


@njit
def marked(bitmap: Any, places: Any) -> Any:
    """Write the places whose bits are set, ascending; return how many there are, also of those that have no room."""
    count = 0
    for j in range(bitmap.size):
        byte = bitmap[j]
        while byte:
            low = byte & B(-byte)
            bit = 0
            while low > 1:
                low, bit = B(low >> 1), bit + 1
            if count < places.size:
                places[count] = 8 * j + bit
            count += 1
            byte = B(byte & B(byte - 1))
    return count
