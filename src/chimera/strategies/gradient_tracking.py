"""Gradient tracking, DIGing (Nedic, Olshevsky and Shi 2017, "Achieving Geometric Convergence ...", algorithm 1)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from chimera.strategies.cluster import Cluster
from chimera.strategies.decentralised import Decentralised, from_neighbours
from chimera.strategies.strategy import STRATEGIES, Round


@STRATEGIES.register("gradient-tracking")
class GradientTracking(Decentralised):
    """`d-psgd` with steps by an estimate of the mean gradient: exact also if data differ between workers (Nedic et al. 2017).

    y_i <- sum_j W_ij y_j + gradient now - gradient before, and x_i <- sum_j W_ij x_j - step by y_i. Workers send x_i and y_i.
    The mean of all y_i equals the mean of the gradients. After a loss each y_i restarts from the worker's own gradient, so that
    this holds among the living workers.

    Parameters
    ----------
    topology : the neighbours of each worker; default ``ring``.
    """

    def rounds(self, cluster: Cluster) -> Iterator[Round]:
        """Yield one step of all workers a round."""
        workers, mixing = cluster.workers, self.among(cluster)
        if self.replica_state(cluster) != "same":
            for worker in workers:
                worker.track(cluster.ranks)
        self.align(cluster)
        models, trackers = zip(*[worker.tracked_messages(returns=2) for worker in workers], strict=True)
        for round_ in count(cluster.round):
            calls = [
                worker.track_and_step(row, *from_neighbours(row, models), *from_neighbours(row, trackers), returns=3)
                for worker, row in zip(workers, mixing(round_).rows, strict=True)
            ]
            models, trackers, done = zip(*calls, strict=True)
            yield Round(done)
