"""The ring."""

from __future__ import annotations

from collections.abc import Sequence

from chimera.strategies.topologies.mixing import Mixing, metropolis
from chimera.strategies.topologies.topology import TOPOLOGIES, Topology


@TOPOLOGIES.register("ring")
class Ring(Topology):
    """A ring of living workers, in rank order (Lian et al. 2017); its spectral gap shrinks with the square of their number."""

    def mixing(self, ranks: Sequence[int], round_: int) -> Mixing:  # noqa: ARG002 - always the same
        """Return 1/3 for each worker itself and for its two neighbours."""
        return metropolis(len(ranks), ((i, (i + 1) % len(ranks)) for i in range(len(ranks))))
