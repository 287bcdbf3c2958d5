"""Shorter floats, powers of two, and tables of levels."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.kernels.plain.base import F, H, N, U, magnitudes, pieces
from chimera.codecs.kernels.plain.bits import pack_signs, unpack_signs
from chimera.codecs.kernels.plain.hashing import random_words, unit
from chimera.codecs.kernels.plain.levels import inverse
from chimera.codecs.kernels.plain.moments import abs_max


def to_half(x: NDArray[np.float32], out: NDArray[np.uint16]) -> np.float32:
    for piece in pieces(x.size):
        with np.errstate(invalid="ignore"):
            out[piece] = np.clip(x[piece], F(-65504), F(65504)).astype(np.float16).view(H)
    return abs_max(x)


def from_half(halves: NDArray[np.uint16], out: NDArray[np.float32]) -> int:
    largest = 0
    for piece in pieces(out.size):
        h = halves[piece].astype(U)
        largest = max(largest, int((h & U(0x7FFF)).max()))
        small = ((h & U(0x7FFF)) << U(13)) | ((h & U(0x8000)) << U(16))
        np.multiply(small.view(F), F(2.0**112), out=out[piece])
    return largest


def to_bfloat(x: NDArray[np.float32], out: NDArray[np.uint16]) -> np.float32:
    for piece in pieces(x.size):
        magnitude = np.minimum(magnitudes(x[piece]), U(0x7F7F0000))
        rounded = (magnitude + U(0x7FFF) + ((magnitude >> U(16)) & U(1))) >> U(16)
        out[piece] = rounded | (x[piece].view(U) >> U(16)) & U(0x8000)
    return abs_max(x)


def from_bfloat(halves: NDArray[np.uint16], out: NDArray[np.float32]) -> int:
    np.left_shift(halves, U(16), out=out.view(U), dtype=U)
    return max((int((halves[piece] & H(0x7FFF)).max()) for piece in pieces(out.size)), default=0)


def to_exponents(x: Any, first: Any, second: Any, out: Any, signs: Any) -> np.float32:
    for piece in pieces(x.size):
        moved = magnitudes(x[piece]) + (random_words(piece.start, piece.stop - piece.start, first, second) >> U(9))
        out[piece] = np.minimum(moved >> U(23), U(254))
    pack_signs(x, signs)
    return abs_max(x)


def from_exponents(exponents: Any, signs: Any, out: Any) -> int:
    unpack_signs(signs, F(1), F(-1), out)
    for piece in pieces(out.size):
        out[piece] *= (exponents[piece].astype(U) << U(23)).view(F)
    return int(exponents.max(initial=0))


def to_table(x: Any, norm: Any, table: Any, stochastic: bool, first: Any, second: Any, codes: Any) -> None:
    lift, factor = (each[0] for each in inverse(np.array([norm], F), 1))
    for piece in pieces(x.size):
        size = piece.stop - piece.start
        a = np.minimum(np.abs(x[piece]) * lift * factor, F(1))
        u = unit(piece.start, size, first, second) - F(1) if stochastic else F(0.5)
        place = np.zeros(size, N)
        for low, high in itertools.pairwise(table):
            place += a >= F(low) + F(high - low) * (F(1) - u)
        codes[piece] = place + np.where(x[piece] < 0, table.size, 0)


def from_table(codes: Any, values: Any, out: Any) -> None:
    np.take(values, codes, out=out, mode="clip")
