"""Mean and standard deviation of the curves of several seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chimera.report.curves import Floats, thinned
from chimera.report.run_files import finite

MAX_POINTS = 300
BAND = "one standard deviation over the seeds"
"""The meaning of a band, for captions."""


@dataclass(frozen=True, eq=False)
class MeanCurve:
    """The mean of the curves of some seeds.

    Attributes
    ----------
    x, mean : shape (n,), finite, n at least 1.
    deviation : standard deviation over the seeds (with n - 1), shape (n,); zeros for one seed.
    seeds : number of curves.
    """

    x: Floats
    mean: Floats
    deviation: Floats
    seeds: int


def points(rows: Sequence[Mapping[str, Any]], keys: Sequence[str], metric: str, share: float = 1.0) -> Floats:
    """Return the curve of one run: the sum of ``keys`` divided by ``share``, and the metric; shape (n, 2), with x above 0."""
    pairs = [(sum(finite(row.get(key)) for key in keys) / share, finite(row.get(metric))) for row in rows]
    good = [pair for pair in pairs if np.isfinite(pair).all() and pair[0] > 0]
    return np.array(good, dtype=np.float64).reshape(-1, 2)


def mean_curve(curves: Sequence[Floats]) -> MeanCurve | None:
    """Return the mean of curves of shape (n, 2) with ascending x; None if no curve has a point.

    Between two of its points, a curve is linear. The mean covers the x that all curves with points cover.
    """
    there = [curve for curve in curves if len(curve)]
    if not there:
        return None
    begin, end = max(curve[0, 0] for curve in there), min(curve[-1, 0] for curve in there)
    if len(there) == 1 or end < begin:
        there, begin, end = there[:1], there[0][0, 0], there[0][-1, 0]
    x = np.unique(np.concatenate([curve[:, 0] for curve in there]))
    x, _ = thinned(x[(x >= begin) & (x <= end)], x[(x >= begin) & (x <= end)], MAX_POINTS, average=False)
    values = np.stack([np.interp(x, curve[:, 0], curve[:, 1]) for curve in there])
    deviation = values.std(axis=0, ddof=1) if len(there) > 1 else np.zeros(len(x))
    return MeanCurve(x, values.mean(axis=0), deviation, len(there))
