"""FedBuff (Nguyen et al. 2022, "Federated Learning with Buffered Asynchronous Aggregation")."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.strategies.cluster import Cluster
from chimera.strategies.local_steps import LocalSteps
from chimera.strategies.strategy import STRATEGIES, Round


@STRATEGIES.register("fed-buff")
class FedBuff(LocalSteps):
    """Workers train on their own data at their own pace; servers step by the mean of every ``buffer`` results.

    A result is the change of the weights by local steps with the experiment's optimizer. A round is one step of the servers.

    Parameters
    ----------
    buffer : number of results in a step; default 2.
    local_steps : batches that a worker trains on between reading the weights and sending its result; default 4.
    server_optimizer : the servers' optimizer; default ``sgd`` with learning rate 1, which applies the mean change. See
        `LocalSteps`.
    shards : number of servers over which the parameters are spread; default 1.
    """

    family = "federated"

    def __init__(self, *, buffer: int = 2, local_steps: int = 4, server_optimizer: Any = None, shards: int = 1) -> None:
        super().__init__(server_optimizer=server_optimizer)
        for key, value in (("buffer", buffer), ("local_steps", local_steps), ("shards", shards)):
            if value < 1:
                raise ConfigurationError(f"{key} must be at least 1, not {value}")
        self.buffer, self.shards, self.local_steps = buffer, shards, local_steps

    def rounds(self, cluster: Cluster) -> Iterator[Round]:
        """Yield one step of the servers a round."""
        servers = cluster.servers(self.shards)
        weights = [server.weights() for server in servers]
        version = 0
        pending: dict[str, list[Any]] = {}
        read: dict[str, int] = {}
        options = {"steps": self.local_steps, "returns": self.shards}
        while True:
            deltas: list[Any] = []
            staleness: list[int] = []
            while len(deltas) < self.buffer:
                for worker in cluster.workers:
                    if worker.name not in pending:
                        own = cluster.addressed(worker, weights, self.local_steps)
                        pending[worker.name], read[worker.name] = worker.delta(*own, **options), version
                name = cluster.first(pending)
                deltas.append(pending.pop(name))
                staleness.append(version - read.pop(name))
            updates = [
                server.update(*piece, returns=2)
                for server, piece in zip(servers, zip(*deltas, strict=True), strict=True)
            ]
            weights, done = [list(refs) for refs in zip(*updates, strict=True)]
            yield Round(done, staleness=staleness)
            version += 1

    def worker_steps(self, rounds: int, workers: int) -> int:
        """Return the mean number of steps of a worker; faster workers take more."""
        return math.ceil(rounds * self.batches_per_round(workers) / workers)

    def batches_per_round(self, workers: int) -> int:  # noqa: ARG002 - whatever their number
        """Return the number of batches in the results of one step."""
        return self.buffer * self.local_steps
