"""Fitting levels of a table to elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from chimera.codecs.kernels.compiled.levels import inverse
from chimera.codecs.kernels.layout import CHUNK
from chimera.core.jit import F, inlined, njit


@njit
def fit_table(x: Any, d: Any, norm: Any, table: Any) -> Any:
    """Return the sums of d l |x| and of d l l, l being the level of ``table`` that an element's magnitude is nearest to.

    Magnitudes are in units of ``norm``, and levels are chosen as `to_table` chooses them. An empty ``d`` stands for ones. Sums
    are added chunk by chunk, and within a chunk in 16 lanes, so that they are the same on any machine.
    """
    magnitudes, levels, lanes = np.empty(CHUNK, F), np.empty(CHUNK, F), np.empty((2, 16))
    above, below = 0.0, 0.0
    for low in range(0, x.size, CHUNK):
        part, weights = x[low : low + CHUNK], d[low : low + CHUNK]
        _choose(part, norm, table, magnitudes, levels)
        lanes[:] = 0
        for b in range(0, part.size, 16):
            _add(part[b : b + 16], levels[b : b + 16], weights[b : b + 16], lanes)
        for half in (8, 4, 2, 1):
            for j in range(half):
                lanes[0, j] += lanes[0, j + half]
                lanes[1, j] += lanes[1, j + half]
        above += lanes[0, 0]
        below += lanes[1, 0]
    return above, below


@inlined
def _choose(x: Any, norm: Any, table: Any, magnitudes: Any, levels: Any) -> None:
    lift, factor = inverse(norm, F(1))
    for j in range(x.size):
        magnitudes[j] = min(F(F(abs(x[j]) * lift) * factor), F(1))
        levels[j] = table[0]
    for k in range(table.size - 1):  # level by level, for only so is there a vector instruction for each step
        upper, border = table[k + 1], F(table[k] + F(F(table[k + 1] - table[k]) * F(0.5)))
        for j in range(x.size):
            levels[j] = upper if magnitudes[j] >= border else levels[j]


@inlined
def _add(x: Any, levels: Any, weights: Any, lanes: Any) -> None:
    if weights.size == 16:
        for j in range(16):
            level = np.float64(levels[j])
            weighted = level * np.float64(weights[j])
            lanes[0, j] += weighted * abs(np.float64(x[j]))
            lanes[1, j] += weighted * level
    elif x.size == 16 and not weights.size:
        for j in range(16):
            level = np.float64(levels[j])
            lanes[0, j] += level * abs(np.float64(x[j]))
            lanes[1, j] += level * level
    else:
        for j in range(x.size):
            level = np.float64(levels[j])
            weighted = level * np.float64(weights[j]) if weights.size else level
            lanes[0, j] += weighted * abs(np.float64(x[j]))
            lanes[1, j] += weighted * level
