"""Fitting levels of a table to elements."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from chimera.codecs.kernels.layout import RUN
from chimera.codecs.kernels.plain.base import F
from chimera.codecs.kernels.plain.levels import inverse


def fit_table(x: Any, d: Any, norm: Any, table: Any) -> tuple[float, float]:
    lift, factor = (each[0] for each in inverse(np.array([norm], F), 1))
    sums = np.zeros(2)
    for low in range(0, x.size, RUN):
        part = x[low : low + RUN]
        magnitudes = np.minimum(np.abs(part) * lift * factor, F(1))
        place = np.zeros(part.size, np.intp)
        for lower, upper in itertools.pairwise(table):
            place += magnitudes >= F(lower + F(F(upper - lower) * F(0.5)))
        levels = table[place].astype(np.float64)
        weighted = levels * d[low : low + RUN] if d.size else levels
        rows = np.zeros((2, RUN))
        rows[:, : part.size] = weighted * np.abs(part), weighted * levels
        while rows.shape[1] > 1:
            half = rows.shape[1] // 2
            rows = rows[:, :half] + rows[:, half:]
        sums += rows[:, 0]
    return float(sums[0]), float(sums[1])
