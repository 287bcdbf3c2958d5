"""The mean of each row over the workers that sent it. If each worker changes a few rows, the mean over all is near zero."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.rows import nonzero_rows
from chimera.core.parameters import Flat, reduce_in_order
from chimera.core.rows import RowLayout, SparseRows
from chimera.training.aggregation.aggregation import AGGREGATIONS, Aggregation
from chimera.training.aggregation.sum import added_rows


@AGGREGATIONS.register("touched")
class Touched(Aggregation):
    """For each row of a table, the mean over the vectors in which the row is not all zero."""

    linear, by_rows, follows = True, True, False

    def dense(self, vectors: Sequence[Flat], out: Flat, rows: RowLayout) -> Flat:
        """See `Aggregation.dense`."""
        reduce_in_order(vectors, out)
        if len(vectors) > 1:
            contributors, flags = np.zeros(rows.rows, np.uint32), np.empty(rows.rows, np.uint8)
            for vector in vectors:
                contributors += nonzero_rows(vector, rows, flags)
            rows.multiply(out, _shares(contributors))
        return out

    def sparse(self, parts: Sequence[SparseRows], rows: RowLayout) -> SparseRows:
        """See `Aggregation.sparse`."""
        total, contributors = added_rows(parts, rows)
        with np.errstate(invalid="ignore"):
            rows.only(total.numbers).multiply(total.values, _shares(contributors))
        return total


def _shares(contributors: NDArray[np.uint32]) -> NDArray[np.float32]:
    return np.reciprocal(np.maximum(contributors, 1), dtype=np.float32)
