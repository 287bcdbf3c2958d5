"""Fitting levels of a table to elements."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from chimera.codecs.kernels.layout import CHUNK
from chimera.codecs.kernels.plain.base import F
from chimera.codecs.kernels.plain.levels import inverse


def fit_table(x: Any, d: Any, norm: Any, table: Any) -> tuple[float, float]:
    lift, factor = (each[0] for each in inverse(np.array([norm], F), 1))
    sums = np.zeros(2)
    for low in range(0, x.size, CHUNK):
        part = x[low : low + CHUNK]
        magnitudes = np.minimum(np.abs(part) * lift * factor, F(1))
        place = np.zeros(part.size, np.intp)
        for lower, upper in itertools.pairwise(table):
            place += magnitudes >= F(lower + F(F(upper - lower) * F(0.5)))
        levels = table[place].astype(np.float64)
        weighted = levels * d[low : low + CHUNK] if d.size else levels
        rows = np.zeros((2, 1 + -(-part.size // 16), 16))
        rows.reshape(2, -1)[:, 16 : 16 + part.size] = weighted * np.abs(part), weighted * levels
        lanes = np.add.accumulate(rows, axis=1)[:, -1]
        while lanes.shape[1] > 1:
            lanes = lanes[:, : lanes.shape[1] // 2] + lanes[:, lanes.shape[1] // 2 :]
        sums += lanes[:, 0]
    return float(sums[0]), float(sums[1])
