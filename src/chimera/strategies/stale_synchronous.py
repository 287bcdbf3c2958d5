"""Stale synchronous parallel, SSP (Ho et al. 2013, "More Effective Distributed ML via a Stale Synchronous ... Server")."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from chimera.core.errors import ConfigurationError, RunError
from chimera.strategies.async_parameter_server import AsyncParameterServer
from chimera.strategies.cluster import Cluster
from chimera.strategies.strategy import STRATEGIES, Round


@STRATEGIES.register("stale-synchronous")
class StaleSynchronous(AsyncParameterServer):
    """Asynchronous, but a worker that is more than ``max_staleness`` clocks ahead of the slowest one waits for it.

    A worker's clock is the number of its applied gradients. The lead of an update is the difference between the clocks of its
    worker and of the slowest living worker. The bound is checked at every update, and the summary has the largest lead.

    Parameters
    ----------
    max_staleness : the bound, in clocks; default 3. With 0, all workers compute their n-th gradient before any computes the
        next.
    shards : number of servers over which the parameters are spread; default 1.
    """

    def __init__(self, *, max_staleness: int = 3, shards: int = 1) -> None:
        super().__init__(shards=shards)
        if max_staleness < 0:
            raise ConfigurationError(f"max_staleness must be at least 0, not {max_staleness}")
        self.max_staleness = max_staleness
        self._clocks: dict[str, int] = {}
        self._largest_lead = 0

    def rounds(self, cluster: Cluster) -> Iterator[Round]:
        """Yield one gradient a round."""
        if cluster.round == 0:
            self._clocks, self._largest_lead = {}, 0
        living = {worker.name for worker in cluster.workers}  # a worker that was away starts again at the slowest clock
        self._clocks = {name: clock for name, clock in self._clocks.items() if name in living}
        slowest = min(self._clocks.values(), default=0)
        for worker in cluster.workers:  # a new worker starts at the slowest clock
            self._clocks.setdefault(worker.name, slowest)
        return super().rounds(cluster)

    def may_begin(self, worker: str, cluster: Cluster) -> bool:
        """Return whether the worker is at most ``max_staleness`` clocks ahead."""
        return self._lead(worker, cluster) <= self.max_staleness

    def check(self, worker: str, cluster: Cluster) -> None:
        """Check the bound, and advance the worker's clock."""
        lead = self._lead(worker, cluster)
        if lead > self.max_staleness:
            raise RunError(f"{worker} was {lead} clocks ahead of the slowest; the bound is {self.max_staleness}")
        self._largest_lead = max(self._largest_lead, lead)
        self._clocks[worker] += 1

    def figures(self) -> Mapping[str, Any]:
        """Return the bound and the largest lead of an update."""
        return {"max_staleness": self.max_staleness, "largest_lead": self._largest_lead}

    def state(self) -> Mapping[str, Any]:
        """Return the clocks and the largest lead."""
        return {"clocks": dict(self._clocks), "largest_lead": self._largest_lead}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the clocks of ``state``."""
        self._clocks, self._largest_lead = dict(state["clocks"]), state["largest_lead"]

    def _lead(self, worker: str, cluster: Cluster) -> int:
        return self._clocks[worker] - min(self._clocks[other.name] for other in cluster.workers)
