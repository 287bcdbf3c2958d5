"""Synchronous parameter server (Li et al. 2014, "Scaling Distributed Machine Learning with the Parameter Server")."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from chimera.core.errors import ConfigurationError
from chimera.core.processes import cores
from chimera.strategies.cluster import Cluster
from chimera.strategies.strategy import STRATEGIES, Aggregated, Round, Strategy


@STRATEGIES.register("parameter-server")
class ParameterServer(Strategy):
    """Workers send the gradients of one batch each, servers step by their mean, and workers receive the new weights.

    Parameters
    ----------
    shards : number of servers over which the parameters are spread; default 1.
    quorum : share of the workers whose gradients suffice for a step; default 1. The other workers are backups, and their late
        gradients are dropped (Chen et al. 2016, "Revisiting Distributed Synchronous SGD").
    timeout_s : seconds that a step waits for its quorum; after that it uses the gradients that have arrived. Default: no limit.
    placement : ``own`` (default): each server has a process of its own. ``with-workers``: the first ``shards`` workers step the
        servers' slices between their gradients. This needs an engine with groups of processes (or ``servers_in_groups``), and
        a round without quorum and time limit; otherwise servers have their own processes. ``auto``: ``with-workers`` if the
        driver's machine has no more cores than there are workers.
    aggregation : rule by which servers combine gradients, a name or a table; default ``mean``. Against attackers: for instance
        ``median`` (docs/explanation/robust.md).
    """

    family = "synchronous"
    worker_extensions = ("server-group", "hosted-servers")

    def __init__(
        self,
        *,
        shards: int = 1,
        quorum: float = 1.0,
        timeout_s: float | None = None,
        placement: Literal["own", "with-workers", "auto"] = "own",
        aggregation: str | Mapping[str, Any] = "mean",
    ) -> None:
        if shards < 1:
            raise ConfigurationError(f"shards must be at least 1, not {shards}")
        if not 0 < quorum <= 1:
            raise ConfigurationError(f"quorum is a share of the workers, above 0 and at most 1, not {quorum}")
        if timeout_s is not None and timeout_s <= 0:
            raise ConfigurationError(f"timeout_s must be above 0, not {timeout_s}")
        if placement not in ("own", "with-workers", "auto"):
            raise ConfigurationError(f"placement is 'own', 'with-workers' or 'auto', not {placement!r}")
        self.shards, self.quorum, self.timeout_s, self.placement = shards, quorum, timeout_s, placement
        self.aggregation = aggregation

    def rounds(self, cluster: Cluster) -> Iterator[Round]:
        """Yield one step of the servers a round, or several steps at a time where servers and workers form a group."""
        servers = cluster.servers(self.shards)
        if self.quorum == 1 and self.timeout_s is None:
            full = self.placement == "auto" and cores() <= len(cluster.workers)
            if (full or self.placement == "with-workers") and (groups := cluster.groups_with_hosted_servers()):
                yield from self._with_workers(cluster, servers, groups)
            if (group := cluster.group_with_servers()) is not None:
                yield from self._in_group(cluster, servers, group)
        for worker in cluster.workers:  # a loss interrupted a round: workers compute its gradients again
            worker.go_to(cluster.round)
        weights = [server.weights() for server in servers]
        while True:
            gradients = cluster.gather(
                lambda worker: worker.gradient(*cluster.addressed(worker, weights), returns=self.shards),  # noqa: B023
                self.quorum,
                self.timeout_s,
            )
            updates = [
                server.update(*piece, aggregation=self.aggregation, returns=2)
                for server, piece in zip(servers, zip(*gradients, strict=True), strict=True)
            ]
            weights, done = [list(refs) for refs in zip(*updates, strict=True)]
            yield Round(done, computed=[pieces[0] for pieces in gradients])

    def _in_group(self, cluster: Cluster, servers: Sequence[Any], group: Any) -> Iterator[Round]:
        """Yield several steps at a time. Servers and workers exchange messages in one call each."""
        first = self._completed(cluster, servers)
        if first > cluster.round:
            yield Round([], first - cluster.round)
        for worker in cluster.workers:
            worker.go_to(first)
        workers, fresh = range(self.shards, group.size), True
        while True:
            count = cluster.horizon
            options = {"first": first, "fresh": fresh, "aggregation": self.aggregation}
            done = [server.serve(count, group, workers, **options) for server in servers]
            done += [worker.train_with_servers(count, group, self.shards) for worker in cluster.workers]
            yield Round(done, count)
            first, fresh = first + count, False

    def _with_workers(self, cluster: Cluster, servers: Sequence[Any], groups: tuple[Any, Any]) -> Iterator[Round]:
        """Yield several steps at a time. Workers step the slices; servers receive them at the end of each call."""
        first = self._completed(cluster, servers)
        if first > cluster.round:
            yield Round([], first - cluster.round)
        pairs = zip(cluster.workers, servers, strict=False)
        hosted = [worker.host(*server.lend(returns=2)) for worker, server in pairs]
        for worker in cluster.workers:
            worker.go_to(first)
        while True:
            count = cluster.horizon
            options = {"shards": self.shards, "first": first, "aggregation": self.aggregation, "returns": 2}
            trained = [
                worker.train_and_serve(count, *groups, rank=rank, **options)
                for rank, worker in enumerate(cluster.workers)
            ]
            kept = [server.restore(state) for server, (_, state) in zip(servers, trained, strict=False)]
            yield Round([*hosted, *(outcome for outcome, _ in trained), *kept], count)
            first, hosted = first + count, []

    def _completed(self, cluster: Cluster, servers: Sequence[Any]) -> int:
        """Return the number of complete rounds: servers of a group may have completed more before a loss interrupted them."""
        served = [
            rounds for rounds in cluster.get([server.rounds_served() for server in servers]) if rounds is not None
        ]
        return max(cluster.round, min(served, default=0))

    def aggregated(self, workers: int) -> Aggregated:
        """Return how servers aggregate the gradients of a quorum."""
        return Aggregated(self.aggregation, max(math.ceil(self.quorum * workers), 1), self.shards)
