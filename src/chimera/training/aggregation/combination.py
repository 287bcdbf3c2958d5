"""A weighted sum of vectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chimera.core.errors import ConfigurationError
from chimera.core.parameters import Flat
from chimera.core.rows import RowLayout
from chimera.training.aggregation.aggregation import AGGREGATIONS, Aggregation


@AGGREGATIONS.register("combination")
class Combination(Aggregation):
    """The sum of the vectors, each times its share: the decoding of `gradient-coding` (Tandon et al. 2017).

    Parameters
    ----------
    shares : the weight of each vector, in order.
    """

    linear = True
    follows = False

    def __init__(self, *, shares: Sequence[float]) -> None:
        if not shares:
            raise ConfigurationError("aggregation 'combination': shares must have a weight for each vector")
        self._shares = shares

    def dense(self, vectors: Sequence[Flat], out: Flat, rows: RowLayout) -> Flat:  # noqa: ARG002
        """See `Aggregation.dense`; if a vector is missing, the result is useless and all NaN."""
        if len(vectors) != len(self._shares):
            out.fill(np.nan)
            return out
        np.multiply(vectors[0], np.float32(self._shares[0]), out=out)
        for vector, share in zip(vectors[1:], self._shares[1:], strict=True):
            out += vector * np.float32(share)
        return out
