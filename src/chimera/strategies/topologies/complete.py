"""The complete graph."""

from __future__ import annotations

from collections.abc import Sequence

from chimera.strategies.topologies.mixing import Mixing
from chimera.strategies.topologies.topology import TOPOLOGIES, Topology, complete


@TOPOLOGIES.register("complete")
class Complete(Topology):
    """Every worker is a neighbour of all others. All take the mean, and the spectral gap is 1."""

    def mixing(self, ranks: Sequence[int], round_: int) -> Mixing:  # noqa: ARG002 - always the same
        """Return 1/n for every pair."""
        return complete(len(ranks))
