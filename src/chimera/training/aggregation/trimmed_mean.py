"""Trimmed mean (Yin et al. 2018, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates")."""

from __future__ import annotations

import math
from collections.abc import Sequence

from chimera.core.errors import ConfigurationError
from chimera.core.parameters import Flat, reduce_in_order
from chimera.core.rows import RowLayout
from chimera.training.aggregation.aggregation import AGGREGATIONS, Aggregation, blocks


@AGGREGATIONS.register("trimmed-mean")
class TrimmedMean(Aggregation):
    """Trimmed mean (Yin et al. 2018, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates").

    In each coordinate the largest and smallest values are removed, and the rest is averaged. The rule tolerates as many
    attackers as it removes values on each side.

    Parameters
    ----------
    share : share of the vectors left out on each side; the number is rounded up, so it is at least one.
    """

    def __init__(self, *, share: float = 0.2) -> None:
        if not 0 < share < 0.5:
            raise ConfigurationError(f"aggregation 'trimmed-mean': share must be above 0 and below 0.5, not {share}")
        self._share = share

    def check(self, contributors: int) -> None:
        """Raise ConfigurationError if no vector would be left."""
        if 2 * self._trimmed(contributors) >= contributors:
            raise ConfigurationError(
                f"aggregation 'trimmed-mean' removes {self._trimmed(contributors)} of {contributors} vectors on each side, "
                "and none remains: set a smaller share, or use more workers"
            )

    def dense(self, vectors: Sequence[Flat], out: Flat, rows: RowLayout) -> Flat:  # noqa: ARG002
        """See `Aggregation.dense`."""
        trimmed = self._trimmed(len(vectors))
        for place, block in blocks(vectors):
            block.sort(axis=0)
            kept = block[trimmed : len(vectors) - trimmed]
            reduce_in_order(list(kept), out[place], 1 / len(kept))
        return out

    def _trimmed(self, contributors: int) -> int:
        return math.ceil(self._share * contributors - 1e-9)  # 0.1 of 30 is 3: a rounding error must not add one
