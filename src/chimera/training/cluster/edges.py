"""The edge servers of a run, see `chimera.strategies.hierarchy`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Edges:
    """The part of a `TrainingCluster` that starts and replaces edge servers.

    An edge server holds nothing between two rounds of the cloud. So checkpoints do not contain it, and a lost one is replaced
    when the strategy starts again.

    Attributes
    ----------
    edge_servers : the living edge servers, by number.
    edge_names : the names of all edge servers that the run has had.
    """

    edge_servers: dict[int, Any]
    edge_names: set[str]
    _actors: Any

    def edges(self, count: int) -> Sequence[Any]:
        """Return the edge servers; start those that are missing."""
        for number in range(count):
            if number not in self.edge_servers:
                self.edge_servers[number] = self._actors.edge(number)
                self.edge_names.add(self.edge_servers[number].name)
        return [self.edge_servers[number] for number in range(count)]

    def drop_lost_edges(self, dead: set[str]) -> list[str]:
        """Remove the edge servers with these names; return the names of those removed."""
        lost = {number: edge.name for number, edge in self.edge_servers.items() if edge.name in dead}
        for number in lost:
            del self.edge_servers[number]
        return list(lost.values())
