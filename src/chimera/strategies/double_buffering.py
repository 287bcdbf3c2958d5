"""Double buffering, or pipelined SGD (Li et al. 2018, "Pipe-SGD: A Decentralized Pipelined SGD Framework")."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.strategies.cluster import Cluster
from chimera.strategies.strategy import STRATEGIES, Round, Strategy


@STRATEGIES.register("double-buffering")
class DoubleBuffering(Strategy):
    """Synchronous, but each step applies the last step's gradients while the workers compute the next ones.

    Communication overlaps with computation. Every gradient, except those of the first step, is one update old.

    Parameters
    ----------
    shards : number of servers over which the parameters are spread; default 1.
    """

    family = "synchronous"

    def __init__(self, *, shards: int = 1) -> None:
        if shards < 1:
            raise ConfigurationError(f"shards must be at least 1, not {shards}")
        self.shards = shards

    def rounds(self, cluster: Cluster) -> Iterator[Round]:
        """Yield one step of the servers a round."""

        def ask(worker: Any, weights: Sequence[Any]) -> Any:
            return worker.gradient(*cluster.addressed(worker, weights), returns=self.shards)

        servers = cluster.servers(self.shards)
        weights = [server.weights() for server in servers]
        staleness = 0
        gradients = [ask(worker, weights) for worker in cluster.workers]
        while True:
            following = [ask(worker, weights) for worker in cluster.workers]
            updates = [
                server.update(*piece, returns=2)
                for server, piece in zip(servers, zip(*gradients, strict=True), strict=True)
            ]
            weights, done = [list(refs) for refs in zip(*updates, strict=True)]
            yield Round(done, staleness=[staleness] * len(gradients))
            gradients, staleness = following, 1
