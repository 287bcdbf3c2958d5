"""The sum, which applies the change of each worker in full."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from chimera.core.parameters import Flat, reduce_in_order
from chimera.core.rows import RowLayout, SparseRows
from chimera.training.aggregation.aggregation import AGGREGATIONS, Aggregation


@AGGREGATIONS.register("sum")
class Sum(Aggregation):
    """The sum of all vectors, for workers that change different rows."""

    linear, by_rows, follows = True, True, False

    def dense(self, vectors: Sequence[Flat], out: Flat, rows: RowLayout) -> Flat:  # noqa: ARG002
        """See `Aggregation.dense`."""
        return reduce_in_order(vectors, out)

    def sparse(self, parts: Sequence[SparseRows], rows: RowLayout) -> SparseRows:
        """See `Aggregation.sparse`."""
        return added_rows(parts, rows)[0]


def added_rows(parts: Sequence[SparseRows], rows: RowLayout) -> tuple[SparseRows, NDArray[np.uint32]]:
    """Return the sum of sparse rows, and the number of senders of each row."""
    numbers = parts[0].numbers if len(parts) == 1 else np.unique(np.concatenate([part.numbers for part in parts]))
    layout = rows.only(numbers)
    total, contributors = np.zeros(layout.size, np.float32), np.zeros(numbers.size, np.uint32)
    with np.errstate(over="ignore", invalid="ignore"):  # the caller checks the result
        for part in parts:
            places = np.searchsorted(numbers, part.numbers)
            layout.add(SparseRows(places, part.values), total)
            contributors[places] += 1
    return SparseRows(numbers, total), contributors
