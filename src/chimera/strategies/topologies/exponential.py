"""Neighbours at distances 1, 2, 4, ..."""

from __future__ import annotations

from collections.abc import Sequence

from chimera.strategies.topologies.mixing import Mixing, circulant
from chimera.strategies.topologies.topology import TOPOLOGIES, Topology


@TOPOLOGIES.register("exponential")
class Exponential(Topology):
    """Everyone hears those 1, 2, 4, ... places before it (Ying et al. 2021, "Exponential Graph is Provably Efficient ...").

    Parameters
    ----------
    one_peer : one of these distances a round, in turn. Of 2^k workers, k rounds are an exact mean.
    """

    def __init__(self, *, one_peer: bool = False) -> None:
        self._one_peer = one_peer

    def mixing(self, ranks: Sequence[int], round_: int) -> Mixing:
        """Return equal weights for oneself and for all heard in this round."""
        hops = [1 << k for k in range((len(ranks) - 1).bit_length())]
        return circulant(len(ranks), hops[round_ % len(hops) :][:1] if self._one_peer and hops else hops)

    def period(self, size: int) -> int:
        """Return how many distances there are, if they are taken in turn."""
        return max((size - 1).bit_length(), 1) if self._one_peer else 1
