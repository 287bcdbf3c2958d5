"""The distribution of the factors by which single calls take longer than the median call."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from chimera.calibration.measured_run import Floats

BINS = 64
_LEAST = 8 * BINS
_BETTER = 0.8
"""The empirical distribution is used if its distance to unseen calls is below this part of that of the log-normal one."""


@dataclass(frozen=True, eq=False)
class Stragglers:
    """Stragglers of a calibration.

    Attributes
    ----------
    spread : sigma of the log-normal distribution.
    factors : equally likely factors, ascending; empty if the log-normal distribution fits as well.
    distances : Wasserstein distances of the log-normal and the empirical distribution to held-out logarithms of factors.
    """

    spread: float
    factors: tuple[float, ...]
    distances: tuple[float, float]


def fit_stragglers(factors: Floats) -> Stragglers:
    """Fit both distributions to half of the factors, compare them on the other half, and return the better one's fit to all."""
    logs = np.log(factors)
    spread = float(np.std(logs))
    if len(factors) < _LEAST or spread == 0:
        return Stragglers(spread, (), (0.0, 0.0))
    seen, unseen = logs[::2], logs[1::2]
    grid = stats.norm.ppf((np.arange(1000) + 0.5) / 1000) * np.std(seen)
    distances = (
        float(stats.wasserstein_distance(unseen, grid)),
        float(stats.wasserstein_distance(unseen, np.log(binned(np.exp(seen))))),
    )
    better = distances[1] < _BETTER * distances[0]
    return Stragglers(spread, tuple(binned(factors).tolist()) if better else (), distances)


def moments(factors: tuple[float, ...], spread: float) -> tuple[float, float]:
    """Return mean and standard deviation of the factors, or of the log-normal distribution if there are none."""
    if factors:
        return float(np.mean(factors)), float(np.std(factors))
    mean = math.exp(spread**2 / 2)
    return mean, mean * math.sqrt(math.expm1(spread**2))


def binned(factors: Floats) -> Floats:
    """Return the means of `BINS` bins with equally many factors, so that the mean of all is kept."""
    return np.array([part.mean() for part in np.array_split(np.sort(factors), BINS)])
