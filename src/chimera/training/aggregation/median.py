"""Coordinate-wise median (Yin et al. 2018, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates")."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chimera.core.parameters import Flat
from chimera.core.rows import RowLayout
from chimera.training.aggregation.aggregation import AGGREGATIONS, Aggregation, blocks


@AGGREGATIONS.register("median")
class Median(Aggregation):
    """Coordinate-wise median (Yin et al. 2018, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates").

    Each element lies within the range of the honest vectors if these are more than half. For an even number of vectors it is
    the mean of the two middle values.
    """

    def dense(self, vectors: Sequence[Flat], out: Flat, rows: RowLayout) -> Flat:  # noqa: ARG002
        """See `Aggregation.dense`."""
        for place, block in blocks(vectors):
            np.median(block, axis=0, out=out[place], overwrite_input=True)
        return out
