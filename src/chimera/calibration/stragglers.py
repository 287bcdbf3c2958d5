"""The distribution of the factors by which single calls take longer than the median call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from chimera.calibration.measured_run import Floats

BINS = 64
_MIN_FACTORS = 8 * BINS
_MAX_CORRELATION = 0.99
_BETTER = 0.8
"""The empirical distribution is used if its distance to unseen calls is below this share of the log-normal distance."""


@dataclass(frozen=True, eq=False)
class Stragglers:
    """Stragglers of a calibration.

    Attributes
    ----------
    spread : sigma of the log-normal distribution.
    factors : equally likely factors, ascending; empty if the log-normal distribution fits as well.
    distances : Wasserstein distances of the log-normal and the empirical distribution to held-out logarithms of factors.
    correlation : correlation of the workers' calls of a round, see `correlation_of`.
    """

    spread: float
    factors: tuple[float, ...]
    distances: tuple[float, float]
    correlation: float = 0.0

    def drawn(self, rng: np.random.Generator, rounds: int, workers: int) -> Floats:
        """Draw the factors of the workers in each round as the simulated engine does, shape (rounds, workers)."""
        own, shared = rng.normal(size=(rounds, workers)), rng.normal(size=(rounds, 1))
        normal = math.sqrt(1 - self.correlation) * own + math.sqrt(self.correlation) * shared
        if not self.factors:
            return np.asarray(np.exp(self.spread * normal))
        places = (special.ndtr(normal) * len(self.factors)).astype(int)
        return np.asarray(np.array(self.factors)[np.minimum(places, len(self.factors) - 1)])


def fit_stragglers(factors: Floats, rounds: Sequence[Floats] = ()) -> Stragglers:
    """Fit both distributions to half of the factors, compare them on the other half, and return the better one's fit to all.

    Parameters
    ----------
    rounds : see `correlation_of`.
    """
    logs = np.log(factors)
    spread = float(np.std(logs))
    if len(factors) < _MIN_FACTORS or spread == 0:
        return Stragglers(spread, (), (0.0, 0.0), correlation_of(rounds))
    seen, unseen = logs[::2], logs[1::2]
    grid = stats.norm.ppf((np.arange(1000) + 0.5) / 1000) * np.std(seen)
    distances = (
        float(stats.wasserstein_distance(unseen, grid)),
        float(stats.wasserstein_distance(unseen, np.log(binned(np.exp(seen))))),
    )
    better = distances[1] < _BETTER * distances[0]
    return Stragglers(spread, tuple(binned(factors).tolist()) if better else (), distances, correlation_of(rounds))


def correlation_of(rounds: Sequence[Floats]) -> float:
    """Return the correlation of the workers' times within rounds: the mean over pairs of workers and over runs.

    Times are replaced by the normal quantiles of their ranks, so that a few long calls do not determine it.

    Parameters
    ----------
    rounds : for each run, the seconds of the calls, shape (rounds, workers).
    """
    found: list[float] = []
    for seconds in (each for each in rounds if each.shape[1] > 1):
        scores = stats.norm.ppf((stats.rankdata(seconds, axis=0) - 0.5) / len(seconds))
        with np.errstate(invalid="ignore"):  # of workers whose calls all take the same time
            pairs: NDArray[np.float64] = np.corrcoef(scores.T)
        found += pairs[np.triu_indices(seconds.shape[1], 1)].tolist()
    known = [each for each in found if math.isfinite(each)]
    return min(max(float(np.mean(known)), 0.0), _MAX_CORRELATION) if known else 0.0


def moments(factors: tuple[float, ...], spread: float) -> tuple[float, float]:
    """Return mean and standard deviation of the factors, or of the log-normal distribution if there are no factors."""
    if factors:
        return float(np.mean(factors)), float(np.std(factors))
    mean = math.exp(spread**2 / 2)
    return mean, mean * math.sqrt(math.expm1(spread**2))


def binned(factors: Floats) -> Floats:
    """Return the means of `BINS` bins with equally many factors, so that the mean of all is kept."""
    return np.array([part.mean() for part in np.array_split(np.sort(factors), BINS)])
