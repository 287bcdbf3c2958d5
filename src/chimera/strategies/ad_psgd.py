"""AD-PSGD (Lian et al. 2018, "Asynchronous Decentralized Parallel Stochastic Gradient Descent", algorithm 1)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np

from chimera.core.errors import ConfigurationError
from chimera.strategies.decentralised import Decentralised
from chimera.strategies.strategy import STRATEGIES, Cluster, Round


@STRATEGIES.register("ad-psgd")
class ADPSGD(Decentralised):
    """Asynchronous, no centre: who has a gradient steps, and averages with a random neighbour (Lian et al. 2018).

    The averaging goes on while the next gradient is computed, as in the paper; a neighbour answers once its own is computed. A
    round is one gradient applied.

    Parameters
    ----------
    topology : among whom the neighbour is drawn.
    seed : of the draws.
    """

    def __init__(self, *, topology: Any = "ring", seed: int = 0) -> None:
        super().__init__(topology=topology)
        if seed < 0:
            raise ConfigurationError(f"seed must be at least 0, not {seed}")
        self.seed = seed

    def rounds(self, cluster: Cluster) -> Iterator[Round]:
        """Yield one gradient a round."""
        workers, mixing = cluster.workers, self.among(cluster)
        places = {worker.name: place for place, worker in enumerate(workers)}
        asked = {worker.name: worker.compute() for worker in workers}
        for round_ in count(cluster.round):
            name = cluster.first(asked)
            worker, neighbours = workers[places[name]], mixing(round_).rows[places[name]][1:]
            own, done = worker.step_computed(returns=2)
            asked[name] = worker.compute()
            if neighbours:
                drawn = int(np.random.default_rng([self.seed, round_]).integers(len(neighbours)))
                other = workers[neighbours[drawn][0]]
                theirs = other.message()
                worker.approach(own, theirs)
                other.approach(theirs, own)
            yield Round([done])

    def batches_per_round(self, workers: int) -> int:  # noqa: ARG002 - whatever their number
        """Return 1."""
        return 1
