"""CHOCO-SGD (Koloskova et al. 2019, "Decentralized Stochastic Optimization and Gossip Algorithms ...", algorithm 2)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.strategies.cluster import Cluster
from chimera.strategies.decentralised import Decentralised, from_neighbours
from chimera.strategies.strategy import STRATEGIES, Round


@STRATEGIES.register("choco-sgd")
class ChocoSGD(Decentralised):
    """Compressed gossip that reaches consensus: workers send encoded changes of their models (Koloskova et al. 2019).

    Each worker i keeps public copies x^_j of itself and its neighbours. A step sends q_i = codec(x_i - x^_i), updates
    x^_j <- x^_j + q_j, and mixes x_i <- x_i + gamma sum_j W_ij (x^_j - x^_i). The codec runs without error feedback: its
    error is part of the next difference.

    Parameters
    ----------
    topology : the neighbours of each worker; default ``ring``. The topology must not vary in time.
    gamma : step size of the mixing, above 0 and at most 1; default 0.1. Use 1 without a codec: this equals `d-psgd` with the
        gradient step before the mixing. The more a codec leaves out, the smaller gamma must be (0.1 for a codec that keeps 1
        %).
    """

    carries = True

    def __init__(self, *, topology: Any = "ring", gamma: float = 0.1) -> None:
        super().__init__(topology=topology)
        if not 0 < gamma <= 1:
            raise ConfigurationError(f"gamma must be above 0 and at most 1, not {gamma}")
        self.gamma = gamma

    def world_size(self, workers: int) -> int:
        """Return ``workers``, if the topology fits this number and does not vary in time."""
        if self.topology.period(workers) != 1:
            raise ConfigurationError("choco-sgd keeps copies of its neighbours: its topology cannot vary in time")
        return super().world_size(workers)

    def rounds(self, cluster: Cluster) -> Iterator[Round]:
        """Yield one step of all workers a round."""
        workers, rows = cluster.workers, self.among(cluster)(0).rows
        own = [tuple((cluster.ranks[place], weight) for place, weight in row) for row in rows]
        if (replica_state := self.replica_state(cluster)) != "same":
            # At the start of a run all models are equal, and nothing needs to be sent.
            whole = [] if replica_state == "new" else [worker.weights() for worker in workers]
            for worker, row in zip(workers, rows, strict=True):
                worker.know(
                    cluster.ranks, [cluster.ranks[j] for j, _ in row], *(from_neighbours(row, whole) if whole else [])
                )
        self.align(cluster)
        messages = [worker.difference() for worker in workers]
        for _ in count():
            calls = [
                worker.move_and_step(weights, self.gamma, *from_neighbours(row, messages), returns=2)
                for worker, weights, row in zip(workers, own, rows, strict=True)
            ]
            messages, done = [list(refs) for refs in zip(*calls, strict=True)]
            yield Round(done)
