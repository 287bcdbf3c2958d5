"""D-PSGD (Lian et al. 2017, "Can Decentralized Algorithms Outperform Centralized Algorithms?", algorithm 1)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from chimera.strategies.cluster import Cluster
from chimera.strategies.decentralised import Decentralised, from_neighbours
from chimera.strategies.strategy import STRATEGIES, Round


@STRATEGIES.register("d-psgd")
class DPSGD(Decentralised):
    """No centre: each worker mixes its model with its neighbours', and steps by its own gradient (Lian et al. 2017).

    x_i <- sum_j W_ij x_j - step by the gradient at x_i. Each worker has its own optimizer. With a lossy codec, neighbours
    receive the encoded models (naive compressed gossip). This does not reach consensus; use `choco-sgd` instead.

    Parameters
    ----------
    topology : the neighbours of each worker, such as ``ring`` (default), ``torus`` or ``exponential``; see
        docs/explanation/decentralised.md.
    """

    def rounds(self, cluster: Cluster) -> Iterator[Round]:
        """Yield one step of all workers a round."""
        self.align(cluster)
        workers, mixing = cluster.workers, self.among(cluster)
        messages = [worker.message() for worker in workers]
        for round_ in count(cluster.round):
            rows = mixing(round_).rows
            calls = [
                w.mix_and_step(row, *from_neighbours(row, messages), returns=2)
                for w, row in zip(workers, rows, strict=True)
            ]
            messages, done = [list(refs) for refs in zip(*calls, strict=True)]
            yield Round(done)
