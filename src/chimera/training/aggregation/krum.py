"""Krum (Blanchard et al. 2017, "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent")."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chimera.core.errors import ConfigurationError
from chimera.core.parameters import Flat, reduce_in_order
from chimera.core.rows import RowLayout
from chimera.training.aggregation.aggregation import AGGREGATIONS, Aggregation, at_least, centred_gram


@AGGREGATIONS.register("krum")
class Krum(Aggregation):
    """Krum (Blanchard et al. 2017, "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent").

    The score of a vector is the sum of its squared distances to its n - f - 2 nearest neighbours. The vector with the lowest
    score is selected; the first one of equal scores. Krum needs n > 2 f + 2 vectors, and a single server.

    Parameters
    ----------
    attackers : number of attackers that the rule tolerates, f.
    select : number m of vectors with the lowest scores, which are averaged; Multi-Krum if m is above 1.
    """

    whole = True

    def __init__(self, *, attackers: int = 1, select: int = 1) -> None:
        at_least("krum", "attackers", attackers, 0)
        at_least("krum", "select", select, 1)
        self._attackers, self._select = attackers, select

    def check(self, contributors: int) -> None:
        """Raise ConfigurationError if there are too few vectors for the number of attackers, or to select from."""
        if contributors <= 2 * self._attackers + 2:
            raise ConfigurationError(
                f"aggregation 'krum' with attackers = {self._attackers} needs at least {2 * self._attackers + 3} vectors, but "
                f"a round has {contributors}: set fewer attackers, or use more workers"
            )
        if self._select > contributors - self._attackers:
            raise ConfigurationError(
                f"aggregation 'krum' cannot select {self._select} of {contributors} vectors without one of {self._attackers} "
                f"attackers: set select to at most {contributors - self._attackers}"
            )

    def dense(self, vectors: Sequence[Flat], out: Flat, rows: RowLayout) -> Flat:  # noqa: ARG002
        """See `Aggregation.dense`."""
        chosen = self.chosen(vectors)
        return reduce_in_order([vectors[i] for i in chosen], out, 1 / len(chosen))

    def chosen(self, vectors: Sequence[Flat]) -> list[int]:
        """Return the indices of the vectors with the lowest scores, ascending."""
        gram = centred_gram(vectors)
        squares = gram.diagonal()
        distances = squares[:, None] + squares[None, :] - 2 * gram
        np.fill_diagonal(distances, np.inf)  # no vector is its own neighbour
        distances.sort(axis=1)
        scores = distances[:, : len(vectors) - self._attackers - 2].sum(axis=1)
        return sorted(np.argsort(scores, kind="stable")[: self._select].tolist())
