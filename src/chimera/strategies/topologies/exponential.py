"""Graphs with neighbours at distances 1, 2, 4, ..."""

from __future__ import annotations

from collections.abc import Sequence

from chimera.strategies.topologies.mixing import Mixing, circulant
from chimera.strategies.topologies.topology import TOPOLOGIES, Topology


@TOPOLOGIES.register("exponential")
class Exponential(Topology):
    """Neighbours are 1, 2, 4, ... places before the worker (Ying et al. 2021, "Exponential Graph is Provably Efficient ...").

    Parameters
    ----------
    one_peer : whether each round uses one of these distances, in turn; default False. With 2^k workers, k rounds give the exact
        mean.
    """

    def __init__(self, *, one_peer: bool = False) -> None:
        self._one_peer = one_peer

    def mixing(self, ranks: Sequence[int], round_: int) -> Mixing:
        """Return equal weights for the worker itself and for all neighbours of this round."""
        hops = [1 << k for k in range((len(ranks) - 1).bit_length())]
        return circulant(len(ranks), hops[round_ % len(hops) :][:1] if self._one_peer and hops else hops)

    def period(self, size: int) -> int:
        """Return the number of distances, if they are used in turn."""
        return max((size - 1).bit_length(), 1) if self._one_peer else 1
