"""Geometric median (Pillutla et al. 2022, "Robust Aggregation for Federated Learning")."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError
from chimera.core.parameters import Flat
from chimera.core.rows import RowLayout
from chimera.training.aggregation.aggregation import AGGREGATIONS, Aggregation, at_least, blocks, centred_gram

_SMOOTHING = 1e-6  # share of the median distance that is the minimum distance


@AGGREGATIONS.register("geometric-median")
class GeometricMedian(Aggregation):
    """Geometric median (Pillutla et al. 2022, "Robust Aggregation for Federated Learning").

    The vector with the smallest sum of distances to all vectors, by the smoothed Weiszfeld algorithm. The rule tolerates
    attackers if they are fewer than half. The iteration starts at the coordinate-wise median. The rule compares whole vectors,
    so it needs a single server.

    Parameters
    ----------
    iterations : maximum number of iterations. Iterations do not read the vectors again, so many iterations cost little time.
    tolerance : the iteration stops when no vector's share of the result changes by more than this.
    """

    whole = True

    def __init__(self, *, iterations: int = 100, tolerance: float = 1e-6) -> None:
        at_least("geometric-median", "iterations", iterations, 1)
        if not tolerance > 0:
            raise ConfigurationError(f"aggregation 'geometric-median': tolerance must be above 0, not {tolerance}")
        self._iterations, self._tolerance = iterations, tolerance

    def dense(self, vectors: Sequence[Flat], out: Flat, rows: RowLayout) -> Flat:  # noqa: ARG002
        """See `Aggregation.dense`."""
        shares = self._shares(centred_gram(vectors))
        for place, block in blocks(vectors):
            out[place] = shares @ block
        return out

    def _shares(self, gram: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the share of each vector in the geometric median, a weighted mean; scalar products suffice for that."""
        squares = gram.diagonal()
        least = max(_SMOOTHING * float(np.sqrt(np.median(squares))), float(np.finfo(np.float32).tiny))
        shares = _by_distance(squares, least)
        for _ in range(self._iterations):
            seen = gram @ shares
            before, shares = shares, _by_distance(squares - 2 * seen + shares @ seen, least)
            if np.abs(shares - before).max() <= self._tolerance:
                break
        return shares


def _by_distance(squares: NDArray[np.float64], least: float) -> NDArray[np.float64]:
    near = np.reciprocal(np.maximum(np.sqrt(np.maximum(squares, 0)), least))
    near /= near.sum()
    return near
