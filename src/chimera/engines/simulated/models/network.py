"""The network model: a latency, and one uplink and one downlink per node, on which transfers queue."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

from chimera.engines.simulated.options import check_range


@dataclass(frozen=True, kw_only=True)
class NodeNetwork:
    """Network settings of one node; None keeps the setting of the network.

    Attributes
    ----------
    latency_s : latency of the node; a path has the greater latency of its two nodes.
    bandwidth_bytes_s : bandwidth of its uplink and of its downlink, each.
    """

    latency_s: float | None = None
    bandwidth_bytes_s: float | None = None

    def __post_init__(self) -> None:
        if self.latency_s is not None:
            check_range("latency_s", self.latency_s)
        if self.bandwidth_bytes_s is not None:
            check_range("bandwidth_bytes_s", self.bandwidth_bytes_s, above_zero=True)


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network in which the driver and each actor are a node.

    A transfer queues on the sender's uplink, waits for the latency, and queues on the receiver's downlink. It uses both links
    at the same time: a single transfer takes ``latency_s + bytes / (the slower bandwidth)``.

    Attributes
    ----------
    latency_s : transfer time of a first byte, of a call without data, or of the notice that a call ended.
    bandwidth_bytes_s : bandwidth of every uplink and every downlink; ``inf``: data takes no time. Default: 1 Gbit/s.
    nodes : settings of single nodes by actor name (``driver`` is the driver).
    """

    latency_s: float = 1e-4
    bandwidth_bytes_s: float = 125e6
    nodes: Mapping[str, NodeNetwork] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_range("latency_s", self.latency_s)
        check_range("bandwidth_bytes_s", self.bandwidth_bytes_s, above_zero=True)

    def port(self, name: str) -> Port:
        """Return new links for the node ``name``."""
        own = self.nodes.get(name, NodeNetwork())
        return Port(
            self.latency_s if own.latency_s is None else own.latency_s,
            self.bandwidth_bytes_s if own.bandwidth_bytes_s is None else own.bandwidth_bytes_s,
        )


class Link:
    """One direction of a node's connection: the times at which it is busy, as merged intervals in order.

    Transfers are not always reserved in the order of their times: a call may be issued long before its argument is computed.
    So each transfer takes the first gap that is long enough, which need not be the end of the queue.

    Attributes
    ----------
    times_s : begin and end of each interval in turn; a single list saves memory, because there are many links.
    """

    __slots__ = ("times_s",)

    def __init__(self) -> None:
        self.times_s: list[float] = []

    def reserve(self, earliest_s: float, duration_s: float) -> float:
        """Reserve the link for ``duration_s``, not before ``earliest_s``; return the start time."""
        times_s = self.times_s
        if not times_s or times_s[-1] < earliest_s:  # the most frequent case
            times_s += (earliest_s, earliest_s + duration_s)
            return earliest_s
        if times_s[-2] <= earliest_s:  # at the end of a queue, the second most frequent case
            begin_s = times_s[-1]
            times_s[-1] = begin_s + duration_s
            return begin_s
        place = bisect_right(times_s, earliest_s) // 2 * 2  # of the first interval that ends later
        begin_s = earliest_s
        while place < len(times_s) and times_s[place] < begin_s + duration_s:
            begin_s = max(begin_s, times_s[place + 1])
            place += 2
        end_s = begin_s + duration_s
        if place and times_s[place - 1] == begin_s:
            times_s[place - 1] = end_s
        else:
            times_s[place:place] = begin_s, end_s
            place += 2
        if place < len(times_s) and times_s[place] == end_s:
            del times_s[place - 1 : place + 1]
        return begin_s

    def forget(self, before_s: float) -> None:
        """Drop the intervals that ended before ``before_s``: nothing will be reserved there any more."""
        if self.times_s:
            del self.times_s[: bisect_right(self.times_s, before_s) // 2 * 2]


class Port:
    """The connection of a node to the network."""

    __slots__ = ("bandwidth_bytes_s", "downlink", "latency_s", "uplink")

    def __init__(self, latency_s: float, bandwidth_bytes_s: float) -> None:
        self.latency_s, self.bandwidth_bytes_s = latency_s, bandwidth_bytes_s
        self.uplink, self.downlink = Link(), Link()

    def latency_to(self, other: Port) -> float:
        """Return the one-way latency in seconds."""
        return self.latency_s if self.latency_s > other.latency_s else other.latency_s

    def send(self, receiver: Port, size: int, ready_s: float) -> float:
        """Send ``size`` bytes that are ready at ``ready_s``; return the time at which the last byte arrives."""
        latency_s = self.latency_s if self.latency_s > receiver.latency_s else receiver.latency_s
        if size == 0:
            return ready_s + latency_s
        up_s, down_s = size / self.bandwidth_bytes_s, size / receiver.bandwidth_bytes_s
        leaves_s = self.uplink.reserve(ready_s, up_s) if up_s else ready_s
        # A slow sender fills only a part of a fast downlink: charge the downlink for its own share, at the end.
        first_s = leaves_s + latency_s + (up_s - down_s if up_s > down_s else 0.0)
        return (receiver.downlink.reserve(first_s, down_s) if down_s else first_s) + down_s
