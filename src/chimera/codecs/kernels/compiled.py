"""The kernels, compiled by numba: each passes over its vectors once and needs no memory of their size.

They work through a vector `CHUNK` elements at a time, so that what lies between two steps stays in cache. `plain` has the
same functions in NumPy, which give the same bits.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

from chimera.codecs.kernels.layout import BLOCK as _BLOCK
from chimera.codecs.kernels.layout import CHUNK

F, N, U, B, H = np.float32, np.int32, np.uint32, np.uint8, np.uint16
_ROUND = F(12582912.0)  # 1.5 * 2**23: added and taken away again, it rounds to the nearest integer, ties to even
_TINY, _LIFT, _DROP = F(2.0**-60), F(2.0**64), F(2.0**-64)
_HUGE = F(3.4028e38)
_FLT_MAX = 3.4028234663852886e38
_C1, _C2 = U(0x7FEB352D), U(0x846CA68B)
_ONE = U(0x3F800000)  # the bits of 1
_LITTLE = 1e-30
_SMALL, _LARGE = F(2.0**-80), F(2.0**80)  # sums of squares that are as exact as they can be


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


def _lane_sum(term: Any) -> Any:
    """Return an intrinsic that adds a term of each element, i-th in lane i modulo 64, in registers and in this order.

    Without leave to reorder, LLVM keeps sums of floats scalar; with it, the sum would depend on the machine.
    """

    @intrinsic
    def add(typing: Any, x: Any, steps: Any, lanes: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            source, target = (
                context.make_array(signature.args[i])(context, builder, arguments[i]).data for i in (0, 2)
            )
            kind = ir.VectorType(ir.FloatType(), 16)
            zero = ir.Constant(kind, [0.0] * 16)
            totals = [cgutils.alloca_once_value(builder, zero) for _ in range(4)]
            with cgutils.for_range(builder, arguments[1]) as loop:
                for i, total in enumerate(totals):
                    at = builder.add(builder.mul(loop.index, loop.index.type(64)), loop.index.type(16 * i))
                    place = builder.bitcast(builder.gep(source, [at]), kind.as_pointer())
                    value = term(builder, builder.load(place, align=4), kind)
                    builder.store(builder.fadd(builder.load(total), value), total)
            for i, total in enumerate(totals):
                place = builder.gep(target, [ir.IntType(64)(16 * i)])
                builder.store(builder.load(total), builder.bitcast(place, kind.as_pointer()), align=4)
            return context.get_dummy_value()

        return numba.types.void(x, numba.types.intp, lanes), generate

    return add


def _magnitude_of(builder: Any, value: Any, kind: Any) -> Any:
    words = ir.VectorType(ir.IntType(32), 16)
    mask = ir.Constant(words, [0x7FFFFFFF] * 16)
    return builder.bitcast(builder.and_(builder.bitcast(value, words), mask), kind)


def _itself(builder: Any, value: Any, kind: Any) -> Any:
    return value


def _square_of(builder: Any, value: Any, kind: Any) -> Any:
    return builder.fmul(value, value)


_add_plain, _add_squares = _lane_sum(_itself), _lane_sum(_square_of)
_add_magnitudes = _lane_sum(_magnitude_of)


# ---------------------------------------------------------------- random numbers


@njit
def _state(index: Any, first: Any) -> Any:
    """Return the state at an index; that of the next one is larger by `_C1`."""
    return U(U(U(index) * _C1) + first)


@njit
def _random(state: Any, second: Any) -> Any:
    """Return 32 random bits, the upper ones the better: a hash of the state, moved by the second half of the key."""
    x = U(state ^ U(state >> U(15)))
    return U(U(x * _C2) + second)


@njit
def random_bits(first: Any, second: Any, begin: Any, out: Any) -> None:
    """Write the random bits of the indices from ``begin`` on."""
    for j in range(out.size):
        out[j] = _random(_state(begin + j, first), second)


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
def look(x: Any, bounds: Any, backwards: Any, full: Any, signs: Any, table: Any) -> None:
    """Write what is known of each tensor: sums of x, |x| and x squared, largest magnitude, count of sign bits.

    ``bounds`` says where the tensors begin and end, ``table`` has shape (tensors, 5). Sums are added chunk by chunk, within a
    chunk in lanes of float32, and exactly where that was too short. If ``signs`` has room, the sign bits go there too.
    Without ``full`` only the sum of |x| is found.
    """
    table[:] = 0
    lanes = np.empty(64, F)
    chunks = (x.size + CHUNK - 1) // CHUNK
    tensor = bounds.size - 2 if backwards else 0
    for i in range(chunks):
        chunk = chunks - 1 - i if backwards else i
        low, high = chunk * CHUNK, min((chunk + 1) * CHUNK, x.size)
        while backwards and tensor > 0 and bounds[tensor] > low:
            tensor -= 1
        while not backwards and bounds[tensor + 1] <= low:
            tensor += 1
        t = tensor
        while t < bounds.size - 1 and bounds[t] < high:
            piece = x[max(low, bounds[t]) : min(high, bounds[t + 1])]
            if full:
                _look_at(piece, lanes, table[t])
            else:
                _look_briefly(piece, lanes, table[t])
            t += 1
        if signs.size:
            pack_signs(x[low:high], signs[low // 8 :])
    for t in range(bounds.size - 1):
        row, n = table[t], bounds[t + 1] - bounds[t]
        if not np.isfinite(row[1]) or (full and (not np.isfinite(row[2]) or row[2] < _LITTLE * n)):
            _look_exactly(x[bounds[t] : bounds[t + 1]], row)


@njit
def _add_halves(lanes: Any) -> Any:
    """Return the sum of 64 lanes, added by halves; each length is a constant for the compiler."""
    for j in range(32):
        lanes[j] += lanes[j + 32]
    for j in range(16):
        lanes[j] += lanes[j + 16]
    for j in range(8):
        lanes[j] += lanes[j + 8]
    for j in range(4):
        lanes[j] += lanes[j + 4]
    return F(F(lanes[0] + lanes[2]) + F(lanes[1] + lanes[3]))


@njit
def _look_at(x: Any, lanes: Any, row: Any) -> None:
    """Add what is in a piece of a tensor to its row; ``lanes`` is room for 64 sums."""
    steps = x.size // 64
    rest = x[steps * 64 :]
    u = x.view(U)
    top, count = U(0), U(0)
    for i in range(u.size):
        top = max(top, U(u[i] & U(0x7FFFFFFF)))
        count = U(count + U(u[i] >> U(31)))
    _add_plain(x, steps, lanes)
    for j in range(rest.size):
        lanes[j] += rest[j]
    row[0] += _add_halves(lanes)
    _look_briefly(x, lanes, row)
    row[2] += _square_sum(x, lanes)
    row[3] = max(row[3], np.float64(_as_float(top))) if top <= U(0x7F800000) else np.inf
    row[4] += count


@njit
def _look_briefly(x: Any, lanes: Any, row: Any) -> None:
    steps = x.size // 64
    rest = x[steps * 64 :]
    _add_magnitudes(x, steps, lanes)
    for j in range(rest.size):
        lanes[j] += abs(rest[j])
    row[1] += _add_halves(lanes)


@njit
def _square_sum(x: Any, lanes: Any) -> Any:
    steps = x.size // 64
    rest = x[steps * 64 :]
    _add_squares(x, steps, lanes)
    for j in range(rest.size):
        lanes[j] += F(rest[j] * rest[j])
    return _add_halves(lanes)


@njit
def _look_exactly(x: Any, row: Any) -> None:
    row[0], row[1], row[2] = 0, 0, 0
    for i in range(x.size):
        v = np.float64(x[i])
        row[0] += v
        row[1] += abs(v)
        row[2] += v * v


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
def _down(codes: Any, shift: Any, mask: Any, out: Any) -> None:
    """Write ``codes >> shift & mask``; shifts by constants become vector instructions."""
    if shift == 0:
        for j in range(codes.size):
            out[j] = B(codes[j]) & mask
    elif shift == 2:
        for j in range(codes.size):
            out[j] = B(codes[j] >> 2) & mask
    elif shift == 4:
        for j in range(codes.size):
            out[j] = B(codes[j] >> 4) & mask
    elif shift == 6:
        for j in range(codes.size):
            out[j] = B(codes[j] >> 6) & mask
    elif shift == 8:
        for j in range(codes.size):
            out[j] = B(codes[j] >> 8) & mask
    else:
        for j in range(codes.size):
            out[j] = B(codes[j] >> shift) & mask


@njit
def _up(part: Any, shift: Any, codes: Any) -> None:
    """Put ``part << shift`` into the codes."""
    if shift == 0:
        for j in range(codes.size):
            codes[j] = part[j]
    elif shift == 2:
        for j in range(codes.size):
            codes[j] |= part[j] << 2
    elif shift == 4:
        for j in range(codes.size):
            codes[j] |= part[j] << 4
    elif shift == 6:
        for j in range(codes.size):
            codes[j] |= part[j] << 6
    elif shift == 8:
        for j in range(codes.size):
            codes[j] |= part[j] << 8
    else:
        for j in range(codes.size):
            codes[j] |= part[j] << shift


@njit
def _pack(codes: Any, width: Any, plane: Any, out: Any) -> Any:
    """Pack the codes of a chunk, plane by plane; return how many bytes that makes. ``plane`` is room for a chunk of bytes."""
    n, at, shift = codes.size, 0, 0
    t = plane[:n]
    while width > 0:
        p = 8 if width >= 8 else (4 if width >= 4 else (2 if width >= 2 else 1))
        nbytes = (n * p + 7) // 8
        part = out[at : at + nbytes]
        _down(codes, shift, B((1 << p) - 1), part if p == 8 else t)
        if p == 4:
            _pack_fours(t, part)
        elif p == 2:
            _pack_twos(t, part)
        elif p == 1:
            _pack_ones(t, part)
        at, shift, width = at + nbytes, shift + p, width - p
    return at


@njit
def _unpack(packed: Any, width: Any, plane: Any, codes: Any) -> Any:
    """Undo `_pack`; return how many bytes that took."""
    n, at, shift = codes.size, 0, 0
    if width == 0:
        codes[:] = 0
    while width > 0:
        p = 8 if width >= 8 else (4 if width >= 4 else (2 if width >= 2 else 1))
        h = (n * p + 7) // 8
        part = packed[at : at + h]
        if p == 8:
            _up(part, shift, codes)
        else:
            t = plane[:n]
            if n * p == 8 * h:
                _unpack_full(part, p, t)
            else:
                mask = (1 << p) - 1
                for i in range(n):
                    t[i] = (part[i % h] >> (i // h * p)) & mask
            _up(t, shift, codes)
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
    plane, at = np.empty(CHUNK, B), 0
    for begin in range(0, codes.size, CHUNK):
        at += _unpack(packed[at:], width, plane, codes[begin : begin + CHUNK])


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
    """Write the nearest level: a sum with 1.5 * 2**23 is rounded to an integer, and holds it in its lowest bits."""
    lift, factor = _inverse(norm, F(levels))
    shift = F(_ROUND + F(levels))
    if lift == 1:
        for j in range(x.size):
            codes[j] = _as_bits(F(F(x[j] * factor) + shift))
    else:
        for j in range(x.size):
            codes[j] = _as_bits(F(F(F(x[j] * lift) * factor) + shift))


@njit
def _stochastic(x: Any, norm: Any, levels: Any, first: Any, second: Any, begin: Any, codes: Any) -> None:
    """Write ``floor(x / step + u)``, plus the levels, u being uniform in [0, 1) with 24 bits, or 16 for many levels."""
    lift, factor = _inverse(norm, F(levels))
    state = _state(begin, first)
    if levels > 127:
        factor, top, offset = F(factor * F(2.0**16)), F(levels << 16), U(levels << 16)
        for j in range(x.size):
            fixed = U(N(min(max(F(F(x[j] * lift) * factor), -top), top)))
            codes[j] = U(fixed + U(offset + U(_random(state, second) >> U(16)))) >> U(16)
            state = U(state + _C1)
        return
    factor, top, offset = F(factor * F(2.0**24)), F(levels << 24), U(levels << 24)
    if lift == 1:
        for j in range(x.size):
            fixed = U(N(min(max(F(x[j] * factor), -top), top)))
            codes[j] = U(fixed + U(offset + U(_random(state, second) >> U(8)))) >> U(24)
            state = U(state + _C1)
    else:
        for j in range(x.size):
            fixed = U(N(min(max(F(F(x[j] * lift) * factor), -top), top)))
            codes[j] = U(fixed + U(offset + U(_random(state, second) >> U(8)))) >> U(24)
            state = U(state + _C1)


@njit
def _norm(x: Any, euclidean: Any, lanes: Any, room: Any) -> Any:
    """Return the largest magnitude, or the Euclidean norm, of a block."""
    if not euclidean:
        return _as_float(_largest_bits(x))
    total = _square_sum(x, lanes)
    if _SMALL < total < _LARGE:
        return np.sqrt(total)
    top = _as_float(_largest_bits(x))
    if top == 0 or not top <= _HUGE:
        return top
    scale = _LIFT if top < F(1) else _DROP
    for j in range(x.size):
        room[j] = F(x[j] * scale)
    norm = np.float64(np.sqrt(_square_sum(room[: x.size], lanes))) / np.float64(scale)
    return F(min(max(norm, np.float64(top)), _FLT_MAX))


@njit
def quantize(
    x: Any, norms: Any, block: Any, find: Any, euclidean: Any, levels: Any, width: Any, stochastic: Any,
    first: Any, second: Any, begin: Any, codes: Any, out: Any,
) -> None:  # fmt: skip
    """Write the nearest or a neighbouring level of each element, -levels to levels, as packed codes.

    ``norms`` holds the value of the outermost level of each block; with ``find`` it is found here. ``codes`` is room for a
    chunk.
    """
    plane, lanes, room = np.empty(CHUNK, B), np.empty(64, F), np.empty(CHUNK, F)
    length = min(block, CHUNK)
    for low in range(0, x.size, CHUNK):
        high = min(low + CHUNK, x.size)
        if find:
            for b in range(low, high, length):
                norms[b // block] = _norm(x[b : min(b + length, high)], euclidean, lanes, room)
        if width == 8:
            _levels(x, norms, low, high, length, block, levels, stochastic, first, second, begin, out[low:high])
        else:
            t = codes[: high - low]
            _levels(x, norms, low, high, length, block, levels, stochastic, first, second, begin, t)
            _pack(t, width, plane, out[low * width // 8 :])


@njit
def _levels(
    x: Any, norms: Any, low: Any, high: Any, length: Any, block: Any, levels: Any, stochastic: Any,
    first: Any, second: Any, begin: Any, codes: Any,
) -> None:  # fmt: skip
    """Write the codes of a chunk, block by block."""
    for b in range(low, high, length):
        e = min(b + length, high)
        norm, part = norms[b // block], codes[b - low : e - low]
        if stochastic:
            _stochastic(x[b:e], norm, levels, first, second, begin + b, part)
        else:
            _nearest(x[b:e], norm, levels, part)


@njit
def dequantize(packed: Any, norms: Any, block: Any, levels: Any, width: Any, codes: Any, out: Any) -> Any:
    """Undo `quantize`; return the largest code that was met."""
    at, largest, plane = 0, codes.dtype.type(0), np.empty(CHUNK, B)
    for low in range(0, out.size, CHUNK):
        high = min(low + CHUNK, out.size)
        t = codes[: high - low]
        at += _unpack(packed[at:], width, plane, t)
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
        t, part, state = u[low : low + CHUNK], out[low : low + CHUNK], _state(low, first)
        for j in range(t.size):
            magnitude = U(t[j] & U(0x7FFFFFFF))
            top = max(top, magnitude)
            part[j] = B(min(U(U(magnitude + U(_random(state, second) >> U(9))) >> U(23)), U(254)))
            state = U(state + _C1)
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
    state = _state(0, first)
    for i in range(x.size):
        a = min(F(F(abs(x[i]) * lift) * factor), F(1))
        u = F(_as_float(U(U(_random(state, second) >> U(9)) | _ONE)) - F(1)) if stochastic else F(0.5)
        state = U(state + _C1)
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


@intrinsic
def _above(typing: Any, words: Any, index: Any, bits: Any) -> Any:
    """Return 16 bits: which of the 16 magnitudes from an index on are at least that of ``bits``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        kind = ir.VectorType(ir.IntType(32), 16)
        place = builder.bitcast(builder.gep(data, [arguments[1]]), kind.as_pointer())
        magnitudes = builder.and_(builder.load(place, align=4), ir.Constant(kind, [0x7FFFFFFF] * 16))
        border = ir.Constant(kind, ir.Undefined)
        for i in range(16):
            border = builder.insert_element(border, arguments[2], ir.IntType(32)(i))
        found = builder.icmp_unsigned(">=", magnitudes, border)
        return builder.zext(builder.bitcast(found, ir.IntType(16)), ir.IntType(32))

    return numba.types.uint32(words, numba.types.intp, numba.types.uint32), generate


@intrinsic
def _lowest(typing: Any, bits: Any) -> Any:
    """Return the place of the lowest bit that is set; one must be."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.zext(builder.cttz(arguments[0], ir.IntType(1)(1)), ir.IntType(64))

    return numba.types.intp(numba.types.uint32), generate


@njit
def select(x: Any, bits: Any, ties: Any, places: Any, values: Any) -> Any:
    """Write places and values of the elements above a magnitude, given by its bits, and of the first ``ties`` that equal it.

    Returns how many there are; what has no room is counted and not written.
    """
    u, count, room = x.view(U), 0, places.size
    whole = u.size // 16 * 16
    for low in range(0, u.size, 16):
        if low < whole:
            hits = _above(u, low, bits)
        else:
            hits = U(0)
            for i in range(u.size - whole):
                hits |= U(U(u[whole + i] & U(0x7FFFFFFF)) >= bits) << U(i)
        while hits:
            i = low + _lowest(hits)
            hits = U(hits & U(hits - U(1)))
            if U(u[i] & U(0x7FFFFFFF)) == bits:
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
        byte = U(bitmap[j])
        while byte:
            if count < places.size:
                places[count] = 8 * j + _lowest(byte)
            count += 1
            byte = U(byte & U(byte - U(1)))
    return count
