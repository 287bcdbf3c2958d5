"""Several topologies in turn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.strategies.topologies.mixing import Mixing
from chimera.strategies.topologies.topology import TOPOLOGIES, Topology, topology_of


@TOPOLOGIES.register("time-varying")
class TimeVarying(Topology):
    """Several topologies in turn, one a round (Nedic and Olshevsky 2015). None of them alone needs to connect all.

    Parameters
    ----------
    topologies : names, tables or, from Python, objects and graphs of networkx.
    """

    def __init__(self, *, topologies: Sequence[Any]) -> None:
        if not topologies:
            raise ConfigurationError("a time-varying topology needs at least one topology")
        self._topologies = [topology_of(each) for each in topologies]

    def mixing(self, ranks: Sequence[int], round_: int) -> Mixing:
        """Return the weights of the topology whose turn it is."""
        turn, which = divmod(round_, len(self._topologies))
        return self._topologies[which].mixing(ranks, turn)

    def period(self, size: int) -> int:
        """Return when all of them are back where they were."""
        return len(self._topologies) * math.lcm(*(each.period(size) for each in self._topologies))

    def check(self, size: int) -> None:
        """Raise ConfigurationError unless together they connect so many workers."""
        for each in self._topologies:
            each.fits(size)
        super().check(size)
