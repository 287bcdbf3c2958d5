"""Asynchronous parameter server (Dean et al. 2012, "Large Scale Distributed Deep Networks"; Recht et al. 2011, "Hogwild!")."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.strategies.cluster import Cluster
from chimera.strategies.strategy import STRATEGIES, Round, Strategy


@STRATEGIES.register("async-parameter-server")
class AsyncParameterServer(Strategy):
    """Each worker pulls weights, computes and pushes a gradient at its own pace; servers step by each gradient on arrival.

    A round is one applied gradient. Its staleness is the number of gradients applied since its worker read the weights. The
    staleness is about the number of workers minus one. Many workers therefore need a smaller learning rate.

    Parameters
    ----------
    shards : number of servers over which the parameters are spread; default 1.
    """

    family = "asynchronous"
    worker_extensions = ("server-group",)

    def __init__(self, *, shards: int = 1) -> None:
        if shards < 1:
            raise ConfigurationError(f"shards must be at least 1, not {shards}")
        self.shards = shards

    def rounds(self, cluster: Cluster) -> Iterator[Round]:
        """Yield one gradient a round, or several at a time where one server and the workers form a group."""
        servers = cluster.servers(self.shards)
        group = None if self._decides() or self.shards > 1 else cluster.group_with_servers()
        if group is not None:
            yield from self._in_group(cluster, servers[0], group)
        weights = [server.weights() for server in servers]
        version = 0
        pending: dict[str, list[Any]] = {}
        read: dict[str, tuple[int, list[Any]]] = {}  # by busy worker: version and refs of its weights
        while True:
            for worker in cluster.workers:
                if worker.name not in pending and self.may_begin(worker.name, cluster):
                    own = list(cluster.addressed(worker, weights))
                    pending[worker.name] = worker.gradient(*own, returns=self.shards)
                    read[worker.name] = version, own
            name = cluster.first(pending)
            gradient, (then, old_weights) = pending.pop(name), read.pop(name)
            self.check(name, cluster)
            updates = [self.update(*each) for each in zip(servers, gradient, old_weights, strict=True)]
            weights, done = [list(refs) for refs in zip(*updates, strict=True)]
            yield Round(done, staleness=[version - then])
            version += 1

    def _decides(self) -> bool:
        """Return whether a derived strategy decides on each gradient, which needs the driver."""
        own = type(self)
        return any(
            getattr(own, hook) is not getattr(AsyncParameterServer, hook) for hook in ("may_begin", "check", "update")
        )

    def _in_group(self, cluster: Cluster, server: Any, group: Any) -> Iterator[Round]:
        """Yield several gradients at a time. The server and the workers exchange messages in one call each."""
        first, fresh = cluster.round, True
        served = cluster.get(server.rounds_served())
        if served is not None and served > first:  # a loss interrupted a call
            first = served
            yield Round([], first - cluster.round)
        while True:
            count = cluster.horizon
            done = [server.serve_each(count, group, range(1, group.size), first=first, fresh=fresh)]
            done += [worker.train_with_servers(count + 1, group, 1) for worker in cluster.workers]
            yield Round(done, count)
            first, fresh = first + count, False

    def batches_per_round(self, workers: int) -> int:  # noqa: ARG002 - whatever their number
        """Return 1."""
        return 1

    def may_begin(self, worker: str, cluster: Cluster) -> bool:  # noqa: ARG002 - no worker waits for another
        """Return whether a free worker may compute its next gradient now."""
        return True

    def check(self, worker: str, cluster: Cluster) -> None:
        """Record that a gradient of ``worker`` is about to be applied."""

    def update(self, server: Any, gradient: Any, old_weights: Any) -> Sequence[Any]:  # noqa: ARG002 - for others
        """Apply a gradient on one server; return refs of the new weights and of a small value."""
        return server.update(gradient, returns=2)  # type: ignore[no-any-return]
