"""The network model: an uplink and a downlink of each node, on which transfers queue, and the paths between nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from chimera.core.errors import ConfigurationError
from chimera.engines.simulated.models.devices import Device
from chimera.engines.simulated.models.link import Hop, Link, Path, Site, cross
from chimera.engines.simulated.models.topology import TOPOLOGIES, Topology
from chimera.engines.simulated.options import check_range, named_option

Algorithm: TypeAlias = Literal["ring", "direct"]


@dataclass(frozen=True, kw_only=True)
class NodeNetwork:
    """Network settings of one node; None keeps the setting of its device, or of the network.

    Attributes
    ----------
    latency_s : latency of the node; a path has the greater latency of its two nodes.
    bandwidth_bytes_s : bandwidth of its uplink and of its downlink, each.
    uplink_bytes_s, downlink_bytes_s : bandwidth of one of them.
    """

    latency_s: float | None = None
    bandwidth_bytes_s: float | None = None
    uplink_bytes_s: float | None = None
    downlink_bytes_s: float | None = None

    def __post_init__(self) -> None:
        if self.latency_s is not None:
            check_range("latency_s", self.latency_s)
        for key in ("bandwidth_bytes_s", "uplink_bytes_s", "downlink_bytes_s"):
            if (value := getattr(self, key)) is not None:
                check_range(key, value, above_zero=True)


_PLAIN = NodeNetwork()


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network in which the driver and each actor are a node.

    A transfer queues on the sender's uplink, waits for the latency, and queues on the receiver's downlink. It uses both links
    at the same time: a single transfer takes ``latency_s + bytes / (the slower bandwidth)``. Some topologies have further
    links between these two.

    Attributes
    ----------
    latency_s : transfer time of a first byte, of a call without data, or of the notice that a call ended.
    bandwidth_bytes_s : bandwidth of every uplink and every downlink; ``inf``: data takes no time. Default: 1 Gbit/s.
    nodes : settings of single nodes by actor name (``driver`` is the driver).
    topology : a name or a table: ``star`` (default), ``two-level``, ``racks`` or ``matrix``.
    collectives : the algorithm of groups: ``ring``, or ``direct`` from each member to each other one.
    """

    latency_s: float = 1e-4
    bandwidth_bytes_s: float = 125e6
    nodes: Mapping[str, NodeNetwork] = field(default_factory=dict)
    topology: Any = "star"
    collectives: Algorithm = "ring"

    def __post_init__(self) -> None:
        check_range("latency_s", self.latency_s)
        check_range("bandwidth_bytes_s", self.bandwidth_bytes_s, above_zero=True)
        if self.collectives not in get_args(Algorithm):
            raise ConfigurationError(f"network.collectives is ring or direct, not {self.collectives!r}")
        object.__setattr__(self, "topology", named_option(TOPOLOGIES, self.topology, Topology))


class Connections:
    """The network of one engine.

    Attributes
    ----------
    trunks : the links between places that exist so far. The list is the same during the whole run.
    """

    def __init__(self, network: Network) -> None:
        self._nodes, self._sites = network.nodes, network.topology.sites()
        self.trunks: list[Link] = self._sites.trunks

    def port(self, name: str, device: Device) -> Port:
        """Return the connection of a new node, with the settings of its name, or of its device."""
        own, site = self._nodes.get(name, _PLAIN), self._sites.of(name)
        both = own.bandwidth_bytes_s
        latency_s = _first(own.latency_s, device.latency_s)
        up = _first(own.uplink_bytes_s, _first(both, device.uplink_bytes_s))
        down = _first(own.downlink_bytes_s, _first(both, device.downlink_bytes_s))
        return Port(latency_s, up, down) if site is None else PlacedPort(latency_s, up, down, site)


def _first(value: float | None, default: float) -> float:
    return default if value is None else value


class Port:
    """The connection of a node to a network of one place."""

    __slots__ = ("downlink", "downlink_bytes_s", "latency_s", "uplink", "uplink_bytes_s")

    def __init__(self, latency_s: float, uplink_bytes_s: float, downlink_bytes_s: float) -> None:
        self.latency_s, self.uplink_bytes_s, self.downlink_bytes_s = latency_s, uplink_bytes_s, downlink_bytes_s
        self.uplink, self.downlink = Link(), Link()

    def latency_to(self, other: Port) -> float:
        """Return the one-way latency in seconds."""
        return self.latency_s if self.latency_s > other.latency_s else other.latency_s

    def path_to(self, other: Port) -> Path:  # noqa: ARG002 - all are at the same place
        """Return the path from the uplink of this node to the downlink of another."""
        return _NOTHING_BETWEEN

    def send(self, receiver: Port, size: int, ready_s: float) -> float:
        """Send ``size`` bytes that are ready at ``ready_s``; return the time at which the last byte arrives."""
        latency_s = self.latency_s if self.latency_s > receiver.latency_s else receiver.latency_s
        if size == 0:
            return ready_s + latency_s
        up_s, down_s = size / self.uplink_bytes_s, size / receiver.downlink_bytes_s
        leaves_s = self.uplink.reserve(ready_s, up_s) if up_s else ready_s
        # A slow sender fills only a part of a fast downlink: charge the downlink for its own share, at the end.
        first_s = leaves_s + latency_s + (up_s - down_s if up_s > down_s else 0.0)
        return (receiver.downlink.reserve(first_s, down_s) if down_s else first_s) + down_s


class PlacedPort(Port):
    """The connection of a node in a network of several places.

    Parameters
    ----------
    site : the place of the node. Nodes at one place have only their own links between them.
    """

    __slots__ = ("site",)

    def __init__(self, latency_s: float, uplink_bytes_s: float, downlink_bytes_s: float, site: Site) -> None:
        super().__init__(latency_s, uplink_bytes_s, downlink_bytes_s)
        self.site = site

    def latency_to(self, other: Port) -> float:
        """Return the one-way latency in seconds."""
        return self.path_to(other).latency_s(super().latency_to(other))

    def path_to(self, other: Port) -> Path:
        """Return the path from the uplink of this node to the downlink of another."""
        assert isinstance(other, PlacedPort)
        return _NOTHING_BETWEEN if self.site is other.site else self.site.path_to(other.site)

    def send(self, receiver: Port, size: int, ready_s: float) -> float:
        """Send ``size`` bytes over all links between this node and another; return when the last byte arrives."""
        path = self.path_to(receiver)
        if path is _NOTHING_BETWEEN:
            return super().send(receiver, size, ready_s)
        latency_s = super().latency_to(receiver)
        if size == 0:
            return ready_s + path.latency_s(latency_s)
        first = Hop(self.uplink, self.uplink_bytes_s, latency_s if path.measured_s is None else path.measured_s)
        last = Hop(receiver.downlink, receiver.downlink_bytes_s, 0.0)
        return cross((first, *path.hops, last), size, ready_s)


_NOTHING_BETWEEN = Path()
