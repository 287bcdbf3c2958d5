"""The common part of decentralised strategies: one copy of the model a worker, and neighbours in a topology."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from chimera.strategies.cluster import Cluster
from chimera.strategies.strategy import Strategy
from chimera.strategies.topologies.mixing import Mixing, Row
from chimera.strategies.topologies.topology import topology_of


class Decentralised(Strategy):
    """Workers that step their own copies of the model and mix them with their neighbours'. The mean copy is evaluated.

    Parameters
    ----------
    topology : the neighbours of each worker: a name, a table, or, from Python, a networkx graph or a list of topologies to use
        in turn; default ``ring``.
    """

    family = "decentralised"
    sends = "peers"
    replicas = "own"
    worker_extensions = ("gossip",)

    def __init__(self, *, topology: Any = "ring") -> None:
        self.topology = topology_of(topology)
        self._size = 1

    def world_size(self, workers: int) -> int:
        """Return ``workers``, if the topology fits this number."""
        self.topology.check(workers)
        self._size = workers
        return workers

    def model(self, cluster: Cluster) -> Sequence[Any]:
        """Return the mean of all copies, computed by one of the workers."""
        return [cluster.workers[0].mean(*[worker.weights() for worker in cluster.workers])]

    def measures(self, cluster: Cluster) -> Mapping[str, Any]:
        """Return the consensus distance of the copies: the root of the mean of ||x_i - mean||^2."""
        weights = [worker.weights() for worker in cluster.workers]
        return {"consensus_distance": cluster.workers[0].consensus_distance(*weights)}

    def figures(self) -> Mapping[str, Any]:
        """Return the spectral gap of the topology among all workers that the user asked for."""
        gap = self.topology.spectral_gap(self._size)
        return {} if gap is None else {"spectral_gap": gap}

    def among(self, cluster: Cluster) -> Callable[[int], Mixing]:
        """Return a function from a round to its mixing weights among the living workers."""
        return self.topology.among(tuple(cluster.ranks))

    def replica_state(self, cluster: Cluster) -> Literal["new", "same", "changed"]:
        """Return whether the workers' state about their neighbours is not started, consistent, or no longer consistent.

        The state is no longer consistent after a loss, or with a new worker.
        """
        known = [(tuple(members), step) for members, step in cluster.get([w.known() for w in cluster.workers])]
        if all(each == ((), 0) for each in known):
            return "new"
        return "same" if all(each == (tuple(cluster.ranks), cluster.round) for each in known) else "changed"

    def align(self, cluster: Cluster) -> None:
        """Set all workers to the current round of the run: a loss may have interrupted one."""
        for worker in cluster.workers:
            worker.go_to(cluster.round)


def from_neighbours(row: Row, messages: Sequence[Any]) -> list[Any]:
    """Return the messages of a row's neighbours, in the order of the row."""
    return [messages[place] for place, _ in row[1:]]
