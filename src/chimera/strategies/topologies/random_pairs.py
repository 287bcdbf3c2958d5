"""Random pairs in each round."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from chimera.core.errors import ConfigurationError
from chimera.strategies.topologies.mixing import Mixing
from chimera.strategies.topologies.topology import TOPOLOGIES, Topology, topology_of


@TOPOLOGIES.register("random-pairs")
class RandomPairs(Topology):
    """Random pairs, drawn again each round, take their mean (Boyd et al. 2006, "Randomized Gossip Algorithms").

    Parameters
    ----------
    within : the topology whose neighbours are paired; default ``complete``.
    seed : seed of the draws; default 0.
    """

    def __init__(self, *, within: Any = "complete", seed: int = 0) -> None:
        if seed < 0:
            raise ConfigurationError(f"seed must be at least 0, not {seed}")
        self._within, self._seed = topology_of(within), seed
        self._among = cache(self._within.among)

    def mixing(self, ranks: Sequence[int], round_: int) -> Mixing:
        """Return 1/2 for each worker of a pair; a worker without a free neighbour keeps its copy."""
        rng = np.random.default_rng([self._seed, round_])
        neighbours = self._among(tuple(ranks))(round_).neighbours
        free = np.ones(len(ranks), bool)
        weights: list[dict[int, float]] = [{} for _ in ranks]
        for i in rng.permutation(len(ranks)).tolist():
            if free[i] and len(others := neighbours[i][free[neighbours[i]]]):
                j = int(others[rng.integers(len(others))])
                free[[i, j]] = False
                weights[i], weights[j] = {j: 0.5}, {i: 0.5}
        return Mixing.of(weights)

    def period(self, size: int) -> int:  # noqa: ARG002 - of any number
        """Return 0: pairs never repeat."""
        return 0

    def fits(self, size: int) -> None:
        """Raise ConfigurationError unless the topology ``within`` is for ``size`` workers."""
        self._within.fits(size)

    def check(self, size: int) -> None:
        """Raise ConfigurationError unless the topology ``within`` connects ``size`` workers."""
        self._within.check(size)

    def _connects(self, ranks: Sequence[int]) -> bool:  # noqa: ARG002 - those within are asked for it
        return True
