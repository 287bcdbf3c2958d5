"""Uniform levels: rounding to the nearest, or at random."""

from __future__ import annotations

from typing import Any

import numpy as np

from chimera.codecs.kernels.compiled.bits import pack_chunk, unpack_chunk
from chimera.codecs.kernels.compiled.hashing import STEP, state_at, word
from chimera.codecs.kernels.compiled.lanes import settle, to_line
from chimera.codecs.kernels.compiled.moments import largest_bits, largest_of, square_sum, sum_of_squares
from chimera.codecs.kernels.compiled.rounding import draw, pack_fours, pack_twos, round_past
from chimera.codecs.kernels.layout import CHUNK, SPAN, STREAMED
from chimera.core.jit import B, F, N, U, as_bits, as_float, inlined, njit

_ROUND = F(12582912.0)  # 1.5 * 2**23: adding and subtracting it rounds to the nearest integer, ties to even
_TINY, _LIFT, _DROP = F(2.0**-60), F(2.0**64), F(2.0**-64)
_HUGE = F(3.4028e38)
_FLT_MAX = 3.4028234663852886e38
_SMALL, _LARGE = F(2.0**-80), F(2.0**80)  # sums of squares within these limits are accurate in float32


@inlined
def inverse(norm: Any, levels: Any) -> Any:
    """Return (lift, factor): ``x * lift * factor`` is x in units of a level, even if the norm is denormal."""
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
    """Write the nearest level: adding 1.5 * 2**23 rounds to an integer, which is then in the lowest bits."""
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
def _stochastic(x: Any, norm: Any, levels: Any, state: Any, second: Any, begin: Any, codes: Any) -> None:
    """Write ``floor(x / step + u)`` plus the levels, with u uniform in [0, 1) of 24 bits, or of 16 bits for many levels.

    The elements are those of a chunk from ``begin`` on, and ``state`` is the state of the chunk.
    """
    lift, factor = inverse(norm, F(levels))
    if levels > 127:
        factor, top = F(factor * F(2.0**16)), F(levels << 16)
        for j in range(x.size):
            u = N(word(state, second, begin + j) >> U(16))
            codes[j] = N(N(N(_fixed(F(F(x[j] * lift) * factor), top) + u) >> N(16)) + N(levels))
        return
    factor, top = F(factor * F(2.0**24)), F(levels << 24)
    for j in range(x.size):
        u = N(word(state, second, begin + j) >> U(8))
        codes[j] = N(N(N(_fixed(F(F(x[j] * lift) * factor), top) + u) >> N(24)) + N(levels))


@njit
def _draw(
    x: Any, norms: Any, low: Any, size: Any, block: Any, levels: Any, width: Any, state: Any, second: Any, past: Any,
    ahead: Any, codes: Any, out: Any,
) -> None:  # fmt: skip
    """Write the packed codes of 8, 4 or 2 bits of whole chunks from ``low`` on; no norm may be tiny.

    ``state`` belongs to the first element. ``codes`` is scratch memory for a chunk, for codes of fewer than 8 bits.
    """
    length = min(block, size if width == 8 else CHUNK)
    for at in range(low, low + size, length):
        factor = F(inverse(norms[at // block], F(levels))[1] * F(2.0**24))  # to units of 2**-24 levels
        here, own, lines = at - low, U(state + U(U(at - low) * STEP)), length // 64
        if width == 8:
            draw(x, at, lines, ahead, factor, N(levels), own, second, past, out, here)
            continue
        draw(x, at, lines, ahead, factor, N(levels), own, second, False, codes, here % CHUNK)
        if (here + length) % CHUNK:
            continue
        packed = out[here // CHUNK * CHUNK * width // 8 :]
        if width == 4:
            pack_fours(codes, past, packed)
        else:
            pack_twos(codes, past, packed)


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

    ``norms`` holds the value of the outermost level of each block; with ``find`` this function computes it. ``codes`` is
    scratch memory for a chunk.
    """
    plane, lanes, room = np.empty(CHUNK + 64, B), np.empty(65, F), np.empty(SPAN, F)
    plane = plane[to_line(plane) :]
    drawn = stochastic and levels <= 127 and block >= 64 and (width == 8 or width == 4 or width == 2)
    past, done = x.size >= STREAMED and to_line(out) == 0, 0
    if not find and block >= x.size >= CHUNK and norms[0] >= _TINY:
        if drawn:
            done = x.size // CHUNK * CHUNK
            state = state_at(begin, first)
            _draw(x, norms, 0, done, block, levels, width, state, second, past, CHUNK, plane, out)
        elif past and width == 8 and not stochastic:
            done = x.size // CHUNK * CHUNK
            round_past(x, 0, done // 64, inverse(norms[0], F(levels))[1], F(_ROUND + F(levels)), out)
    for low in range(done, x.size, SPAN):
        high, least = min(low + SPAN, x.size), _HUGE
        for b in range(low, high, min(block, SPAN)):
            if find:
                norms[b // block] = _norm(x, b, min(b + block, high), euclidean, lanes, room)
            least = min(least, norms[b // block])
        if drawn and high - low == SPAN and least >= _TINY:
            state, packed = state_at(begin + low, first), out[low * width // 8 :]
            _draw(x, norms, low, SPAN, block, levels, width, state, second, past, SPAN, plane, packed)
            continue
        for at in range(low, high, CHUNK):
            part, packed, state = x[at : min(at + CHUNK, high)], out[at * width // 8 :], state_at(begin + at, first)
            if width == 8:
                _codes(part, norms, at, block, levels, stochastic, state, second, packed)
            else:
                t = codes[: part.size]
                _codes(part, norms, at, block, levels, stochastic, state, second, t)
                pack_chunk(t, width, plane, packed)
    settle()


@njit
def _codes(
    x: Any, norms: Any, low: Any, block: Any, levels: Any, stochastic: Any, state: Any, second: Any, codes: Any
) -> None:
    """Write the codes of a chunk, block by block."""
    for b in range(0, x.size, block):
        e, norm = min(b + block, x.size), norms[(low + b) // block]
        if stochastic:
            _stochastic(x[b:e], norm, levels, state, second, b, codes[b:e])
        else:
            _nearest(x[b:e], norm, levels, codes[b:e])


@njit
def dequantize(packed: Any, norms: Any, block: Any, levels: Any, width: Any, codes: Any, out: Any) -> Any:
    """Write the values of the codes of `quantize`; return the largest code found."""
    at, largest, plane = 0, 0, np.empty(CHUNK, B)
    if width == 8:  # codes of 8 bits need no packing
        for low in range(0, out.size, SPAN):
            high = min(low + SPAN, out.size)
            largest = max(largest, _spread(packed[low:high], norms, low, block, levels, out))
        return largest
    for low in range(0, out.size, CHUNK):
        t = codes[: min(CHUNK, out.size - low)]
        at += unpack_chunk(packed[at:], width, plane, t)
        largest = max(largest, _spread(t, norms, low, block, levels, out))
    return largest


@njit
def _spread(codes: Any, norms: Any, low: Any, block: Any, levels: Any, out: Any) -> Any:
    """Write the values of codes from ``low`` on, block by block; return the largest code."""
    largest = codes.dtype.type(0)
    for j in range(codes.size):
        largest = max(largest, codes[j])
    for b in range(0, codes.size, block):
        e = min(b + block, codes.size)
        step, drop = _step(norms[(low + b) // block], F(levels))
        _values(codes[b:e], N(levels), step, drop, out[low + b : low + e])
    return int(largest)


@njit
def _values(codes: Any, levels: Any, step: Any, drop: Any, out: Any) -> None:
    if drop == 1:
        for j in range(out.size):
            out[j] = F(N(N(codes[j]) - levels)) * step
    else:
        for j in range(out.size):
            out[j] = F(F(N(N(codes[j]) - levels)) * step) * drop
