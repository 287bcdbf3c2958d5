"""Random regular graphs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from chimera.core.errors import ConfigurationError
from chimera.strategies.topologies.mixing import Mixing, connected, metropolis
from chimera.strategies.topologies.topology import TOPOLOGIES, Topology, complete

_TRIES = 100


@TOPOLOGIES.register("random-regular", requires="networkx", extra="train")
class RandomRegular(Topology):
    """A random connected graph in which every worker has ``degree`` neighbours: good mixing with few edges.

    Parameters
    ----------
    degree : number of neighbours; default 3. If a loss leaves a number of workers without such a graph, the graph is complete.
    seed : seed of the draw; default 0.
    """

    def __init__(self, *, degree: int = 3, seed: int = 0) -> None:
        if degree < 2:
            raise ConfigurationError(f"degree must be at least 2, not {degree}")
        self._degree, self._seed = degree, seed
        self._drawn = cache(self._draw)

    def mixing(self, ranks: Sequence[int], round_: int) -> Mixing:  # noqa: ARG002 - always the same
        """Return 1/(degree + 1) for each worker itself and each neighbour."""
        return self._drawn(len(ranks))

    def fits(self, size: int) -> None:
        """Raise ConfigurationError unless such a graph exists."""
        if size > 1 and not self._possible(size):
            message = f"no graph of {size} workers gives each {self._degree} neighbours"
            raise ConfigurationError(f"{message}: degree must be below their number, and one of the two even")

    def _possible(self, size: int) -> bool:
        return self._degree < size and size * self._degree % 2 == 0

    def _draw(self, size: int) -> Mixing:
        import networkx

        if not self._possible(size):
            return complete(size)
        for attempt in range(_TRIES):
            graph = networkx.random_regular_graph(self._degree, size, seed=self._seed * _TRIES + attempt)
            mixing = metropolis(size, graph.edges)
            if connected([mixing]):
                return mixing
        raise ConfigurationError(f"none of {_TRIES} random graphs with degree {self._degree} was connected: raise it")
