"""Uniform levels: rounding to the nearest, or at random."""

from __future__ import annotations

from typing import Any

import numpy as np

from chimera.codecs.kernels.compiled.bits import pack_chunk, unpack_chunk
from chimera.codecs.kernels.compiled.hashing import EARLY, LATE, STEP, mixed, state_at
from chimera.codecs.kernels.compiled.lanes import settle, to_line
from chimera.codecs.kernels.compiled.moments import largest_bits, largest_of, square_sum, sum_of_squares
from chimera.codecs.kernels.compiled.rounding import draw_2, draw_4, draw_8, draw_8_past, round_past
from chimera.codecs.kernels.layout import CHUNK, HALF, STREAMED
from chimera.core.jit import B, F, N, U, as_bits, as_float, inlined, njit

_ROUND = F(12582912.0)  # 1.5 * 2**23: added and taken away again, it rounds to the nearest integer, ties to even
_TINY, _LIFT, _DROP = F(2.0**-60), F(2.0**64), F(2.0**-64)
_HUGE = F(3.4028e38)
_FLT_MAX = 3.4028234663852886e38
_SMALL, _LARGE = F(2.0**-80), F(2.0**80)  # sums of squares that are as exact as they can be


@inlined
def inverse(norm: Any, levels: Any) -> Any:
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


@inlined
def _nearest(x: Any, norm: Any, levels: Any, codes: Any) -> None:
    """Write the nearest level: a sum with 1.5 * 2**23 is rounded to an integer, and holds it in its lowest bits."""
    lift, factor = inverse(norm, F(levels))
    shift = F(_ROUND + F(levels))
    if lift == 1:
        for j in range(x.size):
            codes[j] = as_bits(F(F(x[j] * factor) + shift))
    else:
        for j in range(x.size):
            codes[j] = as_bits(F(F(F(x[j] * lift) * factor) + shift))


@inlined
def _fixed(scaled: Any, top: Any) -> Any:
    """Return a clipped number as an integer."""
    return N(min(max(scaled, -top), top))


@njit
def _stochastic(x: Any, norm: Any, levels: Any, state: Any, second: Any, half: Any, codes: Any) -> None:
    """Write ``floor(x / step + u)``, plus the levels, u being uniform in [0, 1) with 24 bits, or 16 for many levels.

    The elements lie in one half of a chunk; ``state`` is that of the first.
    """
    lift, factor = inverse(norm, F(levels))
    multiplier = LATE if half else EARLY
    if levels > 127:
        factor, top = F(factor * F(2.0**16)), F(levels << 16)
        for j in range(x.size):
            noise = N(U(mixed(state, second) * multiplier) >> U(16))
            codes[j] = N(N(N(_fixed(F(F(x[j] * lift) * factor), top) + noise) >> N(16)) + N(levels))
            state = U(state + STEP)
        return
    factor, top = F(factor * F(2.0**24)), F(levels << 24)
    for j in range(x.size):
        noise = N(U(mixed(state, second) * multiplier) >> U(8))
        codes[j] = N(N(N(_fixed(F(F(x[j] * lift) * factor), top) + noise) >> N(24)) + N(levels))
        state = U(state + STEP)


@njit
def _draw_chunk(
    x: Any, norms: Any, low: Any, block: Any, levels: Any, width: Any, state: Any, second: Any, past: Any, out: Any
) -> None:
    """Write the packed codes of 8, 4 or 2 bits of the full chunk from ``low`` on, no norm being tiny: of streams at once."""
    apart = HALF if width > 2 else HALF // 2  # elements between streams
    length = min(block, apart)
    for b in range(0, apart, length):
        f0 = _scale(norms, low + b, block, levels)
        f1 = _scale(norms, low + apart + b, block, levels)
        own, lines, part = U(state + U(U(b) * STEP)), length // 64, out[b:]
        if width == 2:
            f2 = _scale(norms, low + 2 * apart + b, block, levels)
            f3 = _scale(norms, low + 3 * apart + b, block, levels)
            draw_2(x, low + b, lines, f0, f1, f2, f3, N(levels), own, second, part)
        elif width == 4:
            draw_4(x, low + b, lines, f0, f1, f0, f1, N(levels), own, second, part)
        elif past:
            draw_8_past(x, low + b, lines, f0, f1, f0, f1, N(levels), own, second, part)
        else:
            draw_8(x, low + b, lines, f0, f1, f0, f1, N(levels), own, second, part)


@inlined
def _scale(norms: Any, at: Any, block: Any, levels: Any) -> Any:
    """Return what scales an element by 2**24 levels."""
    return F(inverse(norms[at // block], F(levels))[1] * F(2.0**24))


@inlined
def _norm(x: Any, begin: Any, end: Any, euclidean: Any, lanes: Any, room: Any) -> Any:
    """Return the largest magnitude, or the Euclidean norm, of a block."""
    steps = (end - begin) // 64
    if 64 * steps == end - begin:
        if not euclidean:
            return as_float(largest_of(x, begin, steps))
        total = sum_of_squares(x, begin, steps)
        if _SMALL < total < _LARGE:
            return np.sqrt(total)
    return _hard_norm(x[begin:end], euclidean, lanes, room)


@njit
def _hard_norm(x: Any, euclidean: Any, lanes: Any, room: Any) -> Any:
    """Return the norm of a short block, or of one whose squares are too large or small."""
    if not euclidean:
        return as_float(largest_bits(x))
    total = square_sum(x, lanes)
    if _SMALL < total < _LARGE:
        return np.sqrt(total)
    top = as_float(largest_bits(x))
    if top == 0 or not top <= _HUGE:
        return top
    scale = _LIFT if top < F(1) else _DROP
    for j in range(x.size):
        room[j] = F(x[j] * scale)
    norm = np.float64(np.sqrt(square_sum(room[: x.size], lanes))) / np.float64(scale)
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
    plane, lanes, room = np.empty(CHUNK, B), np.empty(65, F), np.empty(CHUNK, F)
    length, done = min(block, CHUNK), 0
    if (
        width == 8
        and not stochastic
        and x.size >= STREAMED
        and block >= x.size
        and norms[0] >= _TINY
        and to_line(out) == 0
    ):
        done = x.size // CHUNK * CHUNK
        round_past(x, 0, done // 64, inverse(norms[0], F(levels))[1], F(_ROUND + F(levels)), out)
    for low in range(done, x.size, CHUNK):
        high = min(low + CHUNK, x.size)
        least = _HUGE
        for b in range(low, high, length):
            if find:
                norms[b // block] = _norm(x, b, min(b + length, high), euclidean, lanes, room)
            least = min(least, norms[b // block])
        state, packed = state_at(begin + low, first), out[low * width // 8 :]
        full = high - low == CHUNK and length >= 64 and least >= _TINY and levels <= 127
        past = x.size >= STREAMED and to_line(packed) == 0
        if stochastic and full and (width == 8 or width == 4 or width == 2):
            _draw_chunk(x, norms, low, block, levels, width, state, second, past, packed)
        elif width == 8:
            _codes(x[low:high], norms, low, block, levels, stochastic, state, second, packed)
        else:
            t = codes[: high - low]
            _codes(x[low:high], norms, low, block, levels, stochastic, state, second, t)
            pack_chunk(t, width, plane, packed)
    settle()


@njit
def _codes(
    x: Any, norms: Any, low: Any, block: Any, levels: Any, stochastic: Any, state: Any, second: Any, codes: Any
) -> None:
    """Write the codes of a chunk, block by block."""
    length = min(block, HALF)
    for b in range(0, x.size, length):
        e = min(b + length, x.size)
        norm, half = norms[(low + b) // block], b // HALF
        if stochastic:
            own = U(state + U(U(b - half * HALF) * STEP))
            _stochastic(x[b:e], norm, levels, own, second, half, codes[b:e])
        else:
            _nearest(x[b:e], norm, levels, codes[b:e])


@njit
def dequantize(packed: Any, norms: Any, block: Any, levels: Any, width: Any, codes: Any, out: Any) -> Any:
    """Undo `quantize`; return the largest code that was met."""
    at, largest, plane = 0, codes.dtype.type(0), np.empty(CHUNK, B)
    for low in range(0, out.size, CHUNK):
        high = min(low + CHUNK, out.size)
        t = codes[: high - low]
        at += unpack_chunk(packed[at:], width, plane, t)
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
