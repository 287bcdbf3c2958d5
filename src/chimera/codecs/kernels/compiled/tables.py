"""Fitting levels of a table to elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from chimera.codecs.kernels.compiled.levels import inverse
from chimera.codecs.kernels.layout import RUN
from chimera.core.jit import F, inlined, njit


@njit
def fit_table(x: Any, d: Any, norm: Any, table: Any) -> Any:
    """Return the sums of d l |x| and of d l l, where l is the level of ``table`` nearest to an element's magnitude.

    Magnitudes are in units of ``norm``, and levels are chosen as in `to_table`. An empty ``d`` means ones. Sums are added run
    by run, and within a run by halves, so that they are the same on any machine.
    """
    magnitudes, levels = np.empty(RUN, F), np.empty(RUN, F)
    products, squares = np.zeros(RUN), np.zeros(RUN)
    above, below = 0.0, 0.0
    for low in range(0, x.size, RUN):
        part = x[low : low + RUN]
        _choose(part, norm, table, magnitudes, levels)
        _multiply(part, levels, d[low : low + RUN], products, squares)
        above += _by_halves(products)
        below += _by_halves(squares)
    return above, below


@njit
def _choose(x: Any, norm: Any, table: Any, magnitudes: Any, levels: Any) -> None:
    lift, factor = inverse(norm, F(1))
    for j in range(x.size):
        magnitudes[j] = min(F(F(abs(x[j]) * lift) * factor), F(1))
        levels[j] = F(0)
    for k in range(table.size - 1):  # level by level: only then each step is a vector instruction
        upper, border = table[k + 1], F(table[k] + F(F(table[k + 1] - table[k]) * F(0.5)))
        for j in range(x.size):
            levels[j] = upper if magnitudes[j] >= border else levels[j]


@njit
def _multiply(x: Any, levels: Any, weights: Any, products: Any, squares: Any) -> None:
    if weights.size:
        for j in range(x.size):
            weighted = np.float64(levels[j]) * np.float64(weights[j])
            products[j] = weighted * abs(np.float64(x[j]))
            squares[j] = weighted * np.float64(levels[j])
    else:
        for j in range(x.size):
            level = np.float64(levels[j])
            products[j] = level * abs(np.float64(x[j]))
            squares[j] = level * level
    products[x.size :] = 0
    squares[x.size :] = 0


@inlined
def _by_halves(values: Any) -> Any:
    half = values.size // 2
    while half:
        lower, upper = values[:half], values[half : 2 * half]
        for j in range(half):
            lower[j] += upper[j]
        half //= 2
    return values[0]
