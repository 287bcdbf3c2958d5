"""What strategies without a centre share: each worker's own copy of the model, and neighbours in a topology."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from chimera.strategies.strategy import Cluster, Strategy
from chimera.strategies.topologies.mixing import Mixing, Row
from chimera.strategies.topologies.topology import topology_of


class Decentralised(Strategy):
    """Workers that each step a model of their own, and mix it with their neighbours'. The model that is looked at is the mean.

    Parameters
    ----------
    topology : who is whose neighbour: a name, a table, or, from Python, a graph of networkx, or a list to be taken in turn.
    """

    family = "decentralised"
    sends = "peers"
    replicas = "own"
    worker_extensions = ("gossip",)

    def __init__(self, *, topology: Any = "ring") -> None:
        self.topology = topology_of(topology)
        self._size = 1

    def world_size(self, workers: int) -> int:
        """Return ``workers``, if the topology is for so many."""
        self.topology.check(workers)
        self._size = workers
        return workers

    def model(self, cluster: Cluster) -> Sequence[Any]:
        """Return the mean of all copies, which one of the workers takes."""
        return [cluster.workers[0].mean(*[worker.weights() for worker in cluster.workers])]

    def measures(self, cluster: Cluster) -> Mapping[str, Any]:
        """Return how far the copies are apart: the root of the mean of ||x_i - mean||^2."""
        weights = [worker.weights() for worker in cluster.workers]
        return {"consensus_distance": cluster.workers[0].consensus_distance(*weights)}

    def figures(self) -> Mapping[str, Any]:
        """Return the spectral gap of the topology among all workers that were asked for."""
        gap = self.topology.spectral_gap(self._size)
        return {} if gap is None else {"spectral_gap": gap}

    def among(self, cluster: Cluster) -> Callable[[int], Mixing]:
        """Return what gives the mixing weights of a round among the living."""
        return self.topology.among(tuple(cluster.ranks))

    def standing(self, cluster: Cluster) -> Literal["new", "same", "changed"]:
        """Return whether what workers hold of one another has not begun, goes on, or does not fit together any more.

        The latter after a loss, or with a newcomer.
        """
        known = [(tuple(members), step) for members, step in cluster.get([w.known() for w in cluster.workers])]
        if all(each == ((), 0) for each in known):
            return "new"
        return "same" if all(each == (tuple(cluster.ranks), cluster.round) for each in known) else "changed"

    def align(self, cluster: Cluster) -> None:
        """Let all go on with the round the run is in: a loss may have cut one short."""
        for worker in cluster.workers:
            worker.go_to(cluster.round)


def heard(row: Row, messages: Sequence[Any]) -> list[Any]:
    """Return the messages of a row's neighbours, in its order."""
    return [messages[place] for place, _ in row[1:]]
