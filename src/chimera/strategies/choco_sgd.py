"""CHOCO-SGD (Koloskova et al. 2019, "Decentralized Stochastic Optimization and Gossip Algorithms ...", algorithm 2)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.strategies.decentralised import Decentralised, heard
from chimera.strategies.strategy import STRATEGIES, Cluster, Round


@STRATEGIES.register("choco-sgd")
class ChocoSGD(Decentralised):
    """Compressed gossip that comes to one model: each sends how it has moved, packed by the codec (Koloskova et al. 2019).

    Everyone keeps the public copies x^ of itself and its neighbours, and moves them by what is sent: q_i = codec(x_i - x^_i),
    and x_i <- x_i + gamma sum_j W_ij (x^_j - x^_i). The codec has no error feedback: what it leaves out is in the
    next difference.

    Parameters
    ----------
    topology : who is whose neighbour; it must stay.
    gamma : how far to go towards the neighbours. Without a codec 1 is right, and it is `d-psgd` with the step before the
        mixing; the more a codec leaves out, the smaller it must be (0.1 for 1 %).
    """

    carries = True

    def __init__(self, *, topology: Any = "ring", gamma: float = 0.1) -> None:
        super().__init__(topology=topology)
        if not 0 < gamma <= 1:
            raise ConfigurationError(f"gamma must be above 0 and at most 1, not {gamma}")
        self.gamma = gamma

    def world_size(self, workers: int) -> int:
        """Return ``workers``, if the topology is for so many, and stays."""
        if self.topology.period(workers) != 1:
            raise ConfigurationError("choco-sgd keeps copies of its neighbours: its topology cannot vary in time")
        return super().world_size(workers)

    def rounds(self, cluster: Cluster) -> Iterator[Round]:
        """Yield one step of all workers a round."""
        workers, rows = cluster.workers, self.among(cluster)(0).rows
        own = [tuple((cluster.ranks[place], weight) for place, weight in row) for row in rows]
        if (standing := self.standing(cluster)) != "same":
            # At the very beginning all models are equal, and nothing needs to be sent.
            whole = [] if standing == "new" else [worker.weights() for worker in workers]
            for worker, row in zip(workers, rows, strict=True):
                worker.know(cluster.ranks, [cluster.ranks[j] for j, _ in row], *(heard(row, whole) if whole else []))
        self.align(cluster)
        messages = [worker.difference() for worker in workers]
        for _ in count():
            calls = [
                worker.move_and_step(weights, self.gamma, *heard(row, messages), returns=2)
                for worker, weights, row in zip(workers, own, rows, strict=True)
            ]
            messages, done = [list(refs) for refs in zip(*calls, strict=True)]
            yield Round(done)
