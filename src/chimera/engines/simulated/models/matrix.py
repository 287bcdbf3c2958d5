"""A network of measured paths: the latency and the bandwidth of each pair of nodes, from a file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from chimera.engines.simulated.models.link import Hop, Link, Path, Site
from chimera.engines.simulated.models.names import full_name
from chimera.engines.simulated.models.records import read_records
from chimera.engines.simulated.models.topology import TOPOLOGIES, Sites, Topology

Pairs: TypeAlias = "dict[tuple[str, str], tuple[float, float]]"


@TOPOLOGIES.register("matrix")
@dataclass(frozen=True, kw_only=True)
class Matrix(Topology):
    """Measured paths: a file has the latency and the bandwidth of pairs of nodes.

    The latency of a pair replaces the latency of its nodes. Its transfers queue on a link of the pair's own, in each direction,
    between the uplink of the sender and the downlink of the receiver. A row for one direction counts for both directions unless
    the file has both. Pairs that are not in the file have the latency of their nodes, and no link of their own.

    Attributes
    ----------
    path : a CSV file with columns ``from,to,latency_s,bandwidth_bytes_s``. Nodes are named as actors (``driver`` is the
        driver) or numbered, as workers.
    """

    path: str

    def __post_init__(self) -> None:
        _ = self._pairs  # mistakes in the file are found before the run

    @cached_property
    def _pairs(self) -> Pairs:
        pairs: Pairs = {}
        for record in read_records(self.path, ("from", "to", "latency_s", "bandwidth_bytes_s")):
            pair = full_name(record.text("from")), full_name(record.text("to"))
            if pair[0] == pair[1]:
                record.refuse("to", f"is {pair[1]!r} as in 'from': a path has two ends")
            if pair in pairs:
                record.refuse("to", f"is {pair[1]!r}: an earlier row has the path from {pair[0]!r} to it")
            pairs[pair] = record.number("latency_s"), record.number("bandwidth_bytes_s", above_zero=True, finite=False)
        return pairs

    def sites(self) -> Sites:
        """Return the places, of which each node has its own."""
        return _MeasuredSites(self._pairs)


class _MeasuredSites(Sites):
    def __init__(self, pairs: Pairs) -> None:
        super().__init__()
        self._pairs = pairs
        self._paths: dict[tuple[str, str], Path] = {}

    def of(self, name: str) -> Site:
        """Return the place of a node."""
        return _MeasuredSite(name, self)

    def path(self, source: str, target: str) -> Path:
        """Return the path between two nodes; its link is created at its first use."""
        if (path := self._paths.get((source, target))) is not None:
            return path
        measured = self._pairs.get((source, target)) or self._pairs.get((target, source))
        if measured is None:
            return Path()
        latency_s, bytes_s = measured
        path = self._paths[source, target] = Path((Hop(Link(), bytes_s, 0.0),), latency_s)
        self.trunks.append(path.hops[0].link)
        return path


class _MeasuredSite(Site):
    def __init__(self, name: str, sites: _MeasuredSites) -> None:
        self._name, self._sites = name, sites

    def path_to(self, other: Site) -> Path:
        """Return the measured path."""
        assert isinstance(other, _MeasuredSite)
        return self._sites.path(self._name, other._name)
