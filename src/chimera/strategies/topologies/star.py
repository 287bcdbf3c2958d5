"""Everyone talks to one."""

from __future__ import annotations

from collections.abc import Sequence

from chimera.strategies.topologies.mixing import Mixing, metropolis
from chimera.strategies.topologies.topology import TOPOLOGIES, Topology


@TOPOLOGIES.register("star")
class Star(Topology):
    """The first of the living in the middle, who talks to all others: a parameter server's graph, by gossip."""

    def mixing(self, ranks: Sequence[int], round_: int) -> Mixing:  # noqa: ARG002 - always the same
        """Return 1/n for each pair with the middle."""
        return metropolis(len(ranks), ((0, i) for i in range(1, len(ranks))))
