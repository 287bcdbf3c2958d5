"""The star."""

from __future__ import annotations

from collections.abc import Sequence

from chimera.strategies.topologies.mixing import Mixing, metropolis
from chimera.strategies.topologies.topology import TOPOLOGIES, Topology


@TOPOLOGIES.register("star")
class Star(Topology):
    """The first living worker in the centre, connected to all others: the graph of a parameter server, with gossip."""

    def mixing(self, ranks: Sequence[int], round_: int) -> Mixing:  # noqa: ARG002 - always the same
        """Return 1/n for each pair with the centre."""
        return metropolis(len(ranks), ((0, i) for i in range(1, len(ranks))))
