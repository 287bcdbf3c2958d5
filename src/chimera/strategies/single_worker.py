"""One worker and nothing to communicate: the baseline that every other strategy is compared with (from no paper)."""

from __future__ import annotations

from collections.abc import Iterator

from chimera.strategies.cluster import Cluster
from chimera.strategies.strategy import STRATEGIES, Round, Strategy


@STRATEGIES.register("single-worker")
class SingleWorker(Strategy):
    """Plain stochastic gradient descent on one worker, whatever number the user asked for."""

    family = "single"
    sends = "nothing"

    def rounds(self, cluster: Cluster) -> Iterator[Round]:
        """Yield several steps at a time."""
        worker = cluster.workers[0]
        while True:
            count = cluster.horizon
            yield Round([worker.train(count)], count)

    def world_size(self, workers: int) -> int:  # noqa: ARG002 - always one
        """Return 1."""
        return 1
