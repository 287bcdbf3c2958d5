"""Topologies of networks: the places of nodes, and the links between places."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from chimera.core.errors import ConfigurationError
from chimera.core.registry import Registry
from chimera.engines.simulated.models.link import Hop, Link, Path, Site
from chimera.engines.simulated.models.names import number_of
from chimera.engines.simulated.options import check_range


class Sites(ABC):
    """The places of one network while an engine runs.

    Attributes
    ----------
    trunks : the links between places that exist so far.
    """

    def __init__(self) -> None:
        self.trunks: list[Link] = []

    @abstractmethod
    def of(self, name: str) -> Site | None:
        """Return the place of a node; None if the network has only one place."""


class Topology(ABC):
    """A kind of network. One verb: `sites`."""

    @abstractmethod
    def sites(self) -> Sites:
        """Return the places of a network in which no transfer has happened."""


TOPOLOGIES: Registry[Topology] = Registry("network topology", "chimera.engines.simulated.models", Topology)


@TOPOLOGIES.register("star")
class Star(Topology):
    """All nodes are at one place: a transfer crosses the sender's uplink and the receiver's downlink."""

    def sites(self) -> Sites:
        """Return the only place."""
        return _OnePlace()


class _OnePlace(Sites):
    def of(self, name: str) -> None:  # noqa: ARG002 - all nodes are there
        """Return None for all nodes."""
        return


@dataclass(frozen=True, kw_only=True)
class Trunks(Topology):
    """A network of places that share a core: each place has one uplink to it and one downlink from it.

    Attributes
    ----------
    latency_s : latency between a place and the core.
    bandwidth_bytes_s : bandwidth of the uplink and of the downlink of each place, each.
    uplink_bytes_s, downlink_bytes_s : bandwidth of one of them; default: ``bandwidth_bytes_s``.
    assignment : the places of single nodes, by name.
    """

    latency_s: float = 0.0
    bandwidth_bytes_s: float = 125e6
    uplink_bytes_s: float | None = None
    downlink_bytes_s: float | None = None
    assignment: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_range("latency_s", self.latency_s)
        for key in ("bandwidth_bytes_s", "uplink_bytes_s", "downlink_bytes_s"):
            if (value := getattr(self, key)) is not None:
                check_range(key, value, above_zero=True)
        for name, place in self.assignment.items():
            if not 0 <= place < self.places:
                at_most = "" if self.places == math.inf else f" and less than {self.places:g}"
                raise ConfigurationError(f"assignment, {name!r} = {place} must be 0 or more{at_most}")

    @property
    def places(self) -> float:
        """The number of places; infinite if it depends on the nodes."""
        return math.inf

    @abstractmethod
    def place_of(self, name: str) -> int | None:
        """Return the number of a node's place, unless ``assignment`` sets it; None for the core."""

    def sites(self) -> Sites:
        """Return the core, to which places are added when they get their first node."""
        return _TrunkSites(self)


@TOPOLOGIES.register("two-level")
@dataclass(frozen=True, kw_only=True)
class TwoLevel(Trunks):
    """Clients are at edges, whose links to the cloud they share; servers and driver are in the cloud.

    ``worker k`` is at edge k mod ``edges``, and an actor named ``edge k`` at edge k. All other actors are in the cloud.

    Attributes
    ----------
    edges : number of edges.
    latency_s : latency between an edge and the cloud.
    bandwidth_bytes_s : bandwidth of each edge's uplink to the cloud, and of its downlink.
    uplink_bytes_s, downlink_bytes_s : bandwidth of one of them; default: ``bandwidth_bytes_s``.
    assignment : the edges of single actors, by name.
    """

    edges: int

    def __post_init__(self) -> None:
        if self.edges < 1:
            raise ConfigurationError(f"edges must be at least 1, not {self.edges}")
        super().__post_init__()

    @property
    def places(self) -> float:
        """The number of edges."""
        return self.edges

    def place_of(self, name: str) -> int | None:
        """Return the number of the edge of a client, or of an actor that is named after its edge."""
        if (client := number_of(name, "worker")) is not None:
            return client % self.edges
        edge = number_of(name, "edge")
        if edge is not None and edge >= self.edges:
            raise ConfigurationError(f"{name!r} needs edges = {edge + 1} or more in the network, not {self.edges}")
        return edge


@TOPOLOGIES.register("racks")
@dataclass(frozen=True, kw_only=True)
class Racks(Trunks):
    """Racks of ``hosts`` workers, each with a trunk that its workers share; servers and driver are outside of the racks.

    ``worker k`` is in rack k // ``hosts``. The name of any actor in ``assignment`` puts it in a rack.

    Attributes
    ----------
    hosts : number of workers of a rack.
    latency_s : latency between a rack and the core.
    bandwidth_bytes_s : bandwidth of each rack's uplink to the core, and of its downlink.
    uplink_bytes_s, downlink_bytes_s : bandwidth of one of them; default: ``bandwidth_bytes_s``.
    assignment : the racks of single actors, by name.
    """

    hosts: int

    def __post_init__(self) -> None:
        if self.hosts < 1:
            raise ConfigurationError(f"hosts must be at least 1, not {self.hosts}")
        super().__post_init__()

    def place_of(self, name: str) -> int | None:
        """Return the number of the rack of a worker."""
        worker = number_of(name, "worker")
        return None if worker is None else worker // self.hosts


class _TrunkSites(Sites):
    def __init__(self, topology: Trunks) -> None:
        super().__init__()
        self._topology, self._core = topology, _TrunkSite(None, None)
        self._sites: dict[int, _TrunkSite] = {}

    def of(self, name: str) -> Site:
        """Return the place of a node; its links are created for its first node."""
        topology = self._topology
        place = topology.assignment.get(name)
        if place is None:
            place = topology.place_of(name)
        if place is None:
            return self._core
        if place not in self._sites:
            up, down = (
                Hop(Link(), topology.bandwidth_bytes_s if own is None else own, topology.latency_s)
                for own in (topology.uplink_bytes_s, topology.downlink_bytes_s)
            )
            self.trunks += (up.link, down.link)
            self._sites[place] = _TrunkSite(up, down)
        return self._sites[place]


class _TrunkSite(Site):
    """A place with its links to and from the core; the core itself has none."""

    def __init__(self, up: Hop | None, down: Hop | None) -> None:
        self._up, self._down = up, down
        self._paths: dict[Site, Path] = {}

    def path_to(self, other: Site) -> Path:
        """Return the uplink of this place and the downlink of the other."""
        if (path := self._paths.get(other)) is None:
            assert isinstance(other, _TrunkSite)
            path = self._paths[other] = Path(tuple(hop for hop in (self._up, other._down) if hop is not None))
        return path
