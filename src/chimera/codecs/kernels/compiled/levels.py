"""Uniform levels: rounding to the nearest, or at random."""

from __future__ import annotations

from typing import Any

import numpy as np

from chimera.codecs.kernels.compiled.bits import pack_chunk, unpack_chunk
from chimera.codecs.kernels.compiled.hashing import EARLY, LATE, STEP, mixed, state_at
from chimera.codecs.kernels.compiled.moments import largest_bits, largest_of, square_sum, sum_of_squares
from chimera.codecs.kernels.layout import CHUNK, HALF
from chimera.core.jit import B, F, N, U, as_bits, as_float, inlined, njit, prefetch

_ROUND = F(12582912.0)  # 1.5 * 2**23: added and taken away again, it rounds to the nearest integer, ties to even
_TINY, _LIFT, _DROP = F(2.0**-60), F(2.0**64), F(2.0**-64)
_HUGE = F(3.4028e38)
_FLT_MAX = 3.4028234663852886e38
_SMALL, _LARGE = F(2.0**-80), F(2.0**80)  # sums of squares that are as exact as they can be
_QUARTER = CHUNK // 4
_RUN = 64  # elements of a stream that are worked on at a time, while as many of the next chunk are fetched


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


@inlined
def _drawn(scaled: Any, top: Any, random: Any) -> Any:
    """Return the level of a number that is scaled by 2**24 levels."""
    return N(N(_fixed(scaled, top) + N(random >> U(8))) >> N(24))


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
    if lift == 1:
        for j in range(x.size):
            codes[j] = N(_drawn(F(x[j] * factor), top, U(mixed(state, second) * multiplier)) + N(levels))
            state = U(state + STEP)
    else:
        for j in range(x.size):
            codes[j] = N(_drawn(F(F(x[j] * lift) * factor), top, U(mixed(state, second) * multiplier)) + N(levels))
            state = U(state + STEP)


@njit
def _fours(
    x: Any, norms: Any, low: Any, block: Any, levels: Any, state: Any, second: Any, ahead: Any, out: Any
) -> None:
    """Write the packed codes of 4 bits of a full chunk, no norm being tiny: of two streams at once, with one state for both."""
    top, middle, length = F(levels << 24), N(17 * levels), min(block, HALF)
    run = min(length, _RUN)
    for b in range(0, HALF, length):
        f0 = F(inverse(norms[(low + b) // block], F(levels))[1] * F(2.0**24))
        f1 = F(inverse(norms[(low + HALF + b) // block], F(levels))[1] * F(2.0**24))
        for r in range(b, b + length, run):
            prefetch(ahead, 2 * r, 2 * run)
            x0, x1, part = x[r : r + run], x[HALF + r : HALF + r + run], out[r : r + run]
            here = U(state + U(U(r) * STEP))
            for j in range(run):
                random = mixed(here, second)
                early = _drawn(F(x0[j] * f0), top, U(random * EARLY))
                late = _drawn(F(x1[j] * f1), top, U(random * LATE))
                part[j] = N(N(early + N(late << N(4))) + middle)
                here = U(here + STEP)


@njit
def _twos(x: Any, norms: Any, low: Any, block: Any, state: Any, second: Any, ahead: Any, out: Any) -> None:
    """Write the packed codes of 2 bits of a full chunk, no norm being tiny: of four streams at once, with two states."""
    top, length = F(1 << 24), min(block, _QUARTER)
    run = min(length, _RUN)
    for b in range(0, _QUARTER, length):
        f0 = F(inverse(norms[(low + b) // block], F(1))[1] * F(2.0**24))
        f1 = F(inverse(norms[(low + _QUARTER + b) // block], F(1))[1] * F(2.0**24))
        f2 = F(inverse(norms[(low + HALF + b) // block], F(1))[1] * F(2.0**24))
        f3 = F(inverse(norms[(low + HALF + _QUARTER + b) // block], F(1))[1] * F(2.0**24))
        for r in range(b, b + length, run):
            prefetch(ahead, 4 * r, 4 * run)
            x0, x1 = x[r : r + run], x[_QUARTER + r : _QUARTER + r + run]
            x2, x3 = x[HALF + r : HALF + r + run], x[HALF + _QUARTER + r : HALF + _QUARTER + r + run]
            part, here = out[r : r + run], U(state + U(U(r) * STEP))
            for j in range(run):
                random, other = mixed(here, second), mixed(U(here + U(U(_QUARTER) * STEP)), second)
                code = N(_drawn(F(x0[j] * f0), top, U(random * EARLY)) + N(85))
                code = N(code + N(_drawn(F(x1[j] * f1), top, U(other * EARLY)) << N(2)))
                code = N(code + N(_drawn(F(x2[j] * f2), top, U(random * LATE)) << N(4)))
                part[j] = N(code + N(_drawn(F(x3[j] * f3), top, U(other * LATE)) << N(6)))
                here = U(here + STEP)


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
    plane, lanes, room = np.empty(CHUNK, B), np.empty(64, F), np.empty(CHUNK, F)
    length = min(block, CHUNK)
    for low in range(0, x.size, CHUNK):
        high = min(low + CHUNK, x.size)
        least = _HUGE
        for b in range(low, high, length):
            if find:
                norms[b // block] = _norm(x, b, min(b + length, high), euclidean, lanes, room)
            least = min(least, norms[b // block])
        state, packed = state_at(begin + low, first), out[low * width // 8 :]
        fused = stochastic and high - low == CHUNK and least >= _TINY and (width == 4 or width == 2)
        # What is read in several places at once is not fetched ahead by itself; what is in cache leaves the memory idle.
        ahead = x[high : min(high + CHUNK, x.size)]
        if fused and width == 4:
            _fours(x[low:high], norms, low, block, levels, state, second, ahead, packed)
        elif fused:
            _twos(x[low:high], norms, low, block, state, second, ahead, packed)
        elif width == 8:
            _codes(x[low:high], norms, low, block, levels, stochastic, state, second, packed)
        else:
            t = codes[: high - low]
            _codes(x[low:high], norms, low, block, levels, stochastic, state, second, t)
            pack_chunk(t, width, plane, packed)


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
