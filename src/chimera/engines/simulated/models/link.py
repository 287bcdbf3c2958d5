"""Links, and the paths between places of a network: the links that a transfer crosses after the link of its sender."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple


class Link:
    """One direction of a connection: the times at which it is busy, as merged intervals in order.

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


class Hop(NamedTuple):
    """One link of a path.

    Attributes
    ----------
    link : transfers queue here.
    bytes_s : bandwidth of the link in bytes per second.
    latency_s : seconds from its far end to the next link.
    """

    link: Link
    bytes_s: float
    latency_s: float


class Path(NamedTuple):
    """The links between two places.

    Attributes
    ----------
    hops : the links between the uplink of the sender and the downlink of the receiver, in order.
    measured_s : the latency between the ends, which replaces the latency of the two nodes; None: it is not replaced.
    """

    hops: tuple[Hop, ...] = ()
    measured_s: float | None = None

    def latency_s(self, of_nodes_s: float) -> float:
        """Return the latency of the whole path between two nodes whose greater latency is ``of_nodes_s``."""
        own_s = of_nodes_s if self.measured_s is None else self.measured_s
        return sum([hop.latency_s for hop in self.hops], own_s)


class Site(ABC):
    """A place in a network, at which nodes are."""

    @abstractmethod
    def path_to(self, other: Site) -> Path:
        """Return the path to another place of the same network."""


def cross(hops: Iterable[Hop], size: int, ready_s: float) -> float:
    """Send ``size`` bytes over links in turn; return the time at which the last byte has passed all of them.

    A link passes each byte on at once. A link that is faster than the link before it is charged for its own share only, at the
    end of the transfer.
    """
    first_s = last_s = ready_s
    for link, bytes_s, latency_s in hops:
        lasts_s = size / bytes_s
        earliest_s = max(first_s, last_s - lasts_s)  # the last byte passes this link after it has passed the one before
        begin_s = link.reserve(earliest_s, lasts_s) if lasts_s else earliest_s
        first_s += begin_s - earliest_s + latency_s  # only a queue delays the first byte
        last_s = begin_s + lasts_s + latency_s
    return last_s
