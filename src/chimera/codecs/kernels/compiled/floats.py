"""Shorter floats, powers of two, and tables of levels."""

from __future__ import annotations

from typing import Any

import numpy as np

from chimera.codecs.kernels.compiled.bits import pack_signs, unpack_signs
from chimera.codecs.kernels.compiled.hashing import state_at, word
from chimera.codecs.kernels.compiled.levels import inverse
from chimera.codecs.kernels.layout import CHUNK
from chimera.core.jit import B, F, H, N, U, as_float, njit

_ROUND = F(12582912.0)  # 1.5 * 2**23: adding and subtracting it rounds to the nearest integer, ties to even
_ONE = U(0x3F800000)  # the bits of 1


@njit
def to_half(x: Any, out: Any) -> Any:
    """Write IEEE half precision, ties to even; larger values become the largest one. Return the largest magnitude."""
    u, top = x.view(U), U(0)
    for i in range(x.size):
        top = max(top, U(u[i] & U(0x7FFFFFFF)))
        magnitude = min(U(u[i] & U(0x7FFFFFFF)), U(0x477FE000))  # 65504
        odd = U(magnitude >> U(13)) & U(1)
        normal = U(U(U(magnitude + U(0xFFF)) + odd) - U(0x38000000)) >> U(13)
        small = U(N(F(F(as_float(magnitude) * F(2.0**24)) + _ROUND) - _ROUND))  # in units of the smallest denormal
        value = small if magnitude < U(0x38800000) else normal
        out[i] = H(U(value) | U(U(u[i] >> U(16)) & U(0x8000)))
    return as_float(top)


@njit
def from_half(halves: Any, out: Any) -> Any:
    """Write the values of `to_half`; return the bits of the largest magnitude found."""
    largest = H(0)
    for i in range(halves.size):
        h = U(halves[i])
        largest = max(largest, H(h & U(0x7FFF)))
        small = as_float(U(U(h & U(0x7FFF)) << U(13)) | U(U(h & U(0x8000)) << U(16)))
        out[i] = small * F(2.0**112)
    return largest


@njit
def to_bfloat(x: Any, out: Any) -> Any:
    """Write bfloat16, ties to even; values that would become infinite become the largest one. Return the largest magnitude."""
    u, top = x.view(U), U(0)
    for i in range(x.size):
        top = max(top, U(u[i] & U(0x7FFFFFFF)))
        magnitude = min(U(u[i] & U(0x7FFFFFFF)), U(0x7F7F0000))
        odd = U(magnitude >> U(16)) & U(1)
        out[i] = H(U(U(U(magnitude + U(0x7FFF)) + odd) >> U(16)) | U(U(u[i] >> U(16)) & U(0x8000)))
    return as_float(top)


@njit
def from_bfloat(halves: Any, out: Any) -> Any:
    """Write the values of `to_bfloat`; return the bits of the largest magnitude found."""
    bits = out.view(U)
    largest = H(0)
    for i in range(halves.size):
        largest = max(largest, H(halves[i] & H(0x7FFF)))
        bits[i] = U(U(halves[i]) << U(16))
    return largest


@njit
def to_exponents(x: Any, first: Any, second: Any, out: Any, signs: Any) -> Any:
    """Round each magnitude at random to one of the nearest powers of two, without bias; write exponents and signs.

    Returns the largest magnitude.
    """
    u, top = x.view(U), U(0)
    for low in range(0, x.size, CHUNK):
        state = state_at(low, first)
        top = max(top, _exponents(u[low : low + CHUNK], state, second, out[low : low + CHUNK]))
        pack_signs(x[low : low + CHUNK], signs[low // 8 :])
    return as_float(top)


@njit
def _exponents(u: Any, state: Any, second: Any, out: Any) -> Any:
    """Write the exponents of a chunk, given as bits; return the bits of the largest magnitude."""
    top = U(0)
    for j in range(u.size):
        magnitude = U(u[j] & U(0x7FFFFFFF))
        top = max(top, magnitude)
        out[j] = B(min(U(U(magnitude + U(word(state, second, j) >> U(9))) >> U(23)), U(254)))
    return top


@njit
def from_exponents(exponents: Any, signs: Any, out: Any) -> Any:
    """Write the values of `to_exponents`; return the largest exponent found."""
    largest = B(0)
    for low in range(0, out.size, CHUNK):
        t, part = out[low : low + CHUNK], exponents[low : low + CHUNK]
        unpack_signs(signs[low // 8 :], F(1), F(-1), t)
        for j in range(t.size):
            largest = max(largest, part[j])
            t[j] *= as_float(U(U(part[j]) << U(23)))
    return largest


@njit
def to_table(x: Any, norm: Any, table: Any, stochastic: Any, first: Any, second: Any, codes: Any) -> None:
    """Write for each element the number of a level of ``table`` (ascending, 0 to 1), plus half the range if it is negative.

    The level is the nearest to ``|x| / norm``, or one of the two nearest at random, without bias.
    """
    lift, factor = inverse(norm, F(1))
    magnitudes, rest = np.empty(CHUNK, F), np.empty(CHUNK, F)
    for low in range(0, x.size, CHUNK):
        part, t = x[low : low + CHUNK], codes[low : low + CHUNK]
        for j in range(part.size):
            magnitudes[j] = min(F(F(abs(part[j]) * lift) * factor), F(1))
            t[j] = table.size if part[j] < 0 else 0
        if stochastic:
            state = state_at(low, first)
            for j in range(part.size):
                rest[j] = F(F(1) - F(as_float(U(U(word(state, second, j) >> U(9)) | _ONE)) - F(1)))
        for k in range(table.size - 1):  # level by level: only then each step is a vector instruction
            lower, gap = F(table[k]), F(table[k + 1] - table[k])
            if stochastic:
                for j in range(part.size):
                    t[j] += B(magnitudes[j] >= F(lower + F(gap * rest[j])))
            else:
                border = F(lower + F(gap * F(0.5)))
                for j in range(part.size):
                    t[j] += B(magnitudes[j] >= border)


@njit
def from_table(codes: Any, values: Any, out: Any) -> None:
    """Write the value of each code."""
    for i in range(out.size):
        out[i] = values[codes[i]]
