"""The mean with equal weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chimera.core.parameters import Flat, reduce_in_order
from chimera.core.rows import RowLayout, SparseRows
from chimera.training.aggregation.aggregation import AGGREGATIONS, Aggregation
from chimera.training.aggregation.sum import added_rows


@AGGREGATIONS.register("mean")
class Mean(Aggregation):
    """The mean of all vectors; a single attacker can choose the result (Blanchard et al. 2017, lemma 1)."""

    linear, by_rows = True, True

    def dense(self, vectors: Sequence[Flat], out: Flat, rows: RowLayout) -> Flat:  # noqa: ARG002
        """See `Aggregation.dense`."""
        return reduce_in_order(vectors, out, 1 / len(vectors))

    def sparse(self, parts: Sequence[SparseRows], rows: RowLayout) -> SparseRows:
        """See `Aggregation.sparse`."""
        total, _ = added_rows(parts, rows)
        with np.errstate(invalid="ignore"):
            total.values[:] *= np.float32(1 / len(parts))
        return total
