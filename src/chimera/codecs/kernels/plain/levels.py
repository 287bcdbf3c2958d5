"""Uniform levels: rounding to the nearest, or at random."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.kernels.layout import CHUNK, LANES, SPAN
from chimera.codecs.kernels.plain.base import F, N, U, magnitudes
from chimera.codecs.kernels.plain.bits import pack, unpack_chunk
from chimera.codecs.kernels.plain.hashing import random_words

_ROUND = F(12582912.0)
_TINY, _LIFT, _DROP = F(2.0**-60), F(2.0**64), F(2.0**-64)
_SMALL, _LARGE, _HUGE = F(2.0**-80), F(2.0**80), F(3.4028e38)
_FLT_MAX = 3.4028234663852886e38


def inverse(norms: NDArray[np.float32], levels: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    lift = np.where(norms < _TINY, _LIFT, F(1))
    m = norms * lift
    return lift, np.divide(F(levels), m, out=np.zeros_like(m), where=m > 0)


def _step(norms: NDArray[np.float32], levels: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    small = norms < _TINY
    step = np.where(small, norms * np.where(small, _LIFT, F(1)), np.minimum(norms, _HUGE)) / F(levels)
    return step.astype(F), np.where(small, _DROP, F(1))


def _norms(rows: NDArray[np.float32], euclidean: bool) -> NDArray[np.float32]:
    """Return the norm of each row, shape (blocks, block); rows are padded with zeros."""
    top = magnitudes(rows).max(axis=1).view(F)
    if not euclidean:
        return np.asarray(top)
    with np.errstate(over="ignore", invalid="ignore"):  # such norms are computed again with another scale
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
    with np.errstate(invalid="ignore"):  # of values that are not finite: callers detect them by the norm
        return values.astype(N)


def quantize(
    x: Any, norms: Any, block: int, find: bool, euclidean: bool, levels: int, width: int, stochastic: bool,
    first: Any, second: Any, begin: int, codes: Any, out: Any,
) -> None:  # fmt: skip
    for low in range(0, x.size, SPAN):
        piece = x[low : low + SPAN]
        length = min(block, SPAN)
        rows = np.zeros((-(-piece.size // length), length), F)
        rows.reshape(-1)[: piece.size] = piece
        which = slice(low // block, low // block + len(rows))
        if find:
            norms[which] = _norms(rows, euclidean)
        lift, factor = (each[:, None] for each in inverse(norms[which], levels))
        scaled = rows * lift * factor
        if stochastic:
            bits = 24 if levels <= 127 else 16
            one = F(1 << bits)
            fixed = _as_integers(np.clip(scaled * one, -levels * one, levels * one))
            noise = random_words(begin + low, rows.size, first, second).reshape(rows.shape) >> U(32 - bits)
            chosen = ((fixed + noise.astype(N)) >> N(bits)) + N(levels)
        else:
            chosen = (scaled + F(_ROUND + F(levels))).view(U)
        pack(chosen.reshape(-1)[: piece.size].astype(codes.dtype), width, out[low * width // 8 :])


def dequantize(packed: Any, norms: Any, block: int, levels: int, width: int, codes: Any, out: Any) -> int:
    largest = 0
    for low in range(0, out.size, CHUNK):
        t = codes[: min(CHUNK, out.size - low)]
        unpack_chunk(packed[low * width // 8 :], width, t)
        largest = max(largest, int(t.max()))
        where = np.arange(low, low + t.size) // block
        step, drop = _step(norms[where[0] : where[-1] + 1], levels)
        values = (t.astype(N) - N(levels)).astype(F) * step[where - where[0]]
        np.multiply(values, drop[where - where[0]], out=out[low : low + t.size])
    return largest
