"""Largest magnitudes and sums of a vector, in one pass."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.kernels.layout import LANES, SQUARE, SUMMED_ELEMENTS, blocks_backwards
from chimera.codecs.kernels.plain.base import F, U, magnitudes, pieces
from chimera.codecs.kernels.plain.bits import pack_signs


def abs_max(x: NDArray[np.float32]) -> np.float32:
    top = max((magnitudes(x[piece]).max() for piece in pieces(x.size)), default=U(0))
    return np.array([top], U).view(F)[0]  # type: ignore[no-any-return]


def moments(x: Any, bounds: Any, backwards: bool, columns: int, signs: Any, table: Any) -> None:
    table[:] = 0
    blocks = list(blocks_backwards(x.size))
    if not backwards:
        blocks.reverse()
    with np.errstate(
        over="ignore", invalid="ignore"
    ):  # of nonfinite or very large values, which are computed exactly below
        for low, high in (
            (low, min(low + SUMMED_ELEMENTS, end))
            for begin, end in blocks
            for low in range(begin, end, SUMMED_ELEMENTS)
        ):
            first, last = np.searchsorted(bounds, [low, high - 1], side="right") - 1
            for t in range(first, last + 1):
                _add_moments(x[max(low, bounds[t]) : min(high, bounds[t + 1])], table[t])
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


def _add_moments(x: NDArray[np.float32], row: NDArray[np.float64]) -> None:
    steps, rest = divmod(x.size, LANES)
    rows = np.zeros((-(-x.size // LANES), LANES), F)
    rows[:steps] = x[: x.size - rest].reshape(4, steps, LANES // 4).swapaxes(0, 1).reshape(steps, LANES)
    rows[steps:].reshape(-1)[:rest] = x[x.size - rest :]
    for i, values in enumerate((rows, np.abs(rows), rows * rows)):
        lanes = np.add.accumulate(np.vstack([np.zeros((1, LANES), F), values]), axis=0)[-1]
        while lanes.size > 1:
            lanes = lanes[: lanes.size // 2] + lanes[lanes.size // 2 :]
        row[i] += lanes[0]
    top = abs_max(x)
    row[3] = max(row[3], top) if top <= np.inf else np.inf
    row[4] += np.count_nonzero(np.signbit(x))
