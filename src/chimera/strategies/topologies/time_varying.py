"""Topologies that alternate by round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.strategies.topologies.mixing import Mixing
from chimera.strategies.topologies.topology import TOPOLOGIES, Topology, topology_of


@TOPOLOGIES.register("time-varying")
class TimeVarying(Topology):
    """Several topologies in turn, one a round (Nedic and Olshevsky 2015). A single one need not connect all workers.

    Parameters
    ----------
    topologies : names, tables or, from Python, topology objects and networkx graphs.
    """

    def __init__(self, *, topologies: Sequence[Any]) -> None:
        if not topologies:
            raise ConfigurationError("a time-varying topology needs at least one topology")
        self._topologies = [topology_of(each) for each in topologies]

    def mixing(self, ranks: Sequence[int], round_: int) -> Mixing:
        """Return the weights of this round's topology."""
        turn, which = divmod(round_, len(self._topologies))
        return self._topologies[which].mixing(ranks, turn)

    def period(self, size: int) -> int:
        """Return the number of rounds after which all topologies repeat."""
        return len(self._topologies) * math.lcm(*(each.period(size) for each in self._topologies))

    def check(self, size: int) -> None:
        """Raise ConfigurationError unless the topologies together connect ``size`` workers."""
        for each in self._topologies:
            each.fits(size)
        super().check(size)
