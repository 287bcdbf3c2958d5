"""Uniform levels: rounding to the nearest, or at random."""

from __future__ import annotations

from typing import Any

import numpy as np

from chimera.codecs.kernels.compiled.base import B, F, N, U, as_bits, as_float, njit
from chimera.codecs.kernels.compiled.bits import pack_chunk, unpack_chunk
from chimera.codecs.kernels.compiled.hashing import random_word, state_at
from chimera.codecs.kernels.compiled.moments import largest_bits, square_sum
from chimera.codecs.kernels.layout import CHUNK

_ROUND = F(12582912.0)  # 1.5 * 2**23: added and taken away again, it rounds to the nearest integer, ties to even
_TINY, _LIFT, _DROP = F(2.0**-60), F(2.0**64), F(2.0**-64)
_HUGE = F(3.4028e38)
_FLT_MAX = 3.4028234663852886e38
_C1, _C2 = U(0x7FEB352D), U(0x846CA68B)
_SMALL, _LARGE = F(2.0**-80), F(2.0**80)  # sums of squares that are as exact as they can be


@njit
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


@njit
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


@njit
def _stochastic(x: Any, norm: Any, levels: Any, first: Any, second: Any, begin: Any, codes: Any) -> None:
    """Write ``floor(x / step + u)``, plus the levels, u being uniform in [0, 1) with 24 bits, or 16 for many levels."""
    lift, factor = inverse(norm, F(levels))
    state = state_at(begin, first)
    if levels > 127:
        factor, top, offset = F(factor * F(2.0**16)), F(levels << 16), U(levels << 16)
        for j in range(x.size):
            fixed = U(N(min(max(F(F(x[j] * lift) * factor), -top), top)))
            codes[j] = U(fixed + U(offset + U(random_word(state, second) >> U(16)))) >> U(16)
            state = U(state + _C1)
        return
    factor, top, offset = F(factor * F(2.0**24)), F(levels << 24), U(levels << 24)
    if lift == 1:
        for j in range(x.size):
            fixed = U(N(min(max(F(x[j] * factor), -top), top)))
            codes[j] = U(fixed + U(offset + U(random_word(state, second) >> U(8)))) >> U(24)
            state = U(state + _C1)
    else:
        for j in range(x.size):
            fixed = U(N(min(max(F(F(x[j] * lift) * factor), -top), top)))
            codes[j] = U(fixed + U(offset + U(random_word(state, second) >> U(8)))) >> U(24)
            state = U(state + _C1)


@njit
def _norm(x: Any, euclidean: Any, lanes: Any, room: Any) -> Any:
    """Return the largest magnitude, or the Euclidean norm, of a block."""
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
        if find:
            for b in range(low, high, length):
                norms[b // block] = _norm(x[b : min(b + length, high)], euclidean, lanes, room)
        if width == 8:
            _levels(x, norms, low, high, length, block, levels, stochastic, first, second, begin, out[low:high])
        else:
            t = codes[: high - low]
            _levels(x, norms, low, high, length, block, levels, stochastic, first, second, begin, t)
            pack_chunk(t, width, plane, out[low * width // 8 :])


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
