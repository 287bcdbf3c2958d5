"""Gossip SGD (Boyd et al. 2006, "Randomized Gossip Algorithms", section II, with the steps of Blot et al. 2016)."""

from __future__ import annotations

from typing import Any

from chimera.strategies.d_psgd import DPSGD
from chimera.strategies.strategy import STRATEGIES
from chimera.strategies.topologies.random_pairs import RandomPairs


@STRATEGIES.register("gossip-sgd")
class GossipSGD(DPSGD):
    """`d-psgd` in random pairs: in each round a worker averages with at most one neighbour (Boyd et al. 2006).

    Parameters
    ----------
    topology : the topology whose neighbours are paired; default ``complete``.
    seed : seed of the pairs; default 0.
    """

    def __init__(self, *, topology: Any = "complete", seed: int = 0) -> None:
        super().__init__(topology=RandomPairs(within=topology, seed=seed))
