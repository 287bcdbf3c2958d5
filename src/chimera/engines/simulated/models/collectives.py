"""Durations of collectives between the nodes of a group: in a ring, or directly from each member to each other one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise, permutations
from typing import NamedTuple, TypeAlias

from chimera.engines.simulated.models.network import Algorithm, Port


class Collectives(NamedTuple):
    """Steps and data of each collective. A step takes one latency.

    Attributes
    ----------
    latency_s : greatest latency between two members that send to each other.
    seconds_per_byte : seconds of the slowest link if each path between members that send to each other carries one byte.
    steps : number of steps of a barrier, a broadcast and an all-reduce.
    passes : part of the vector that a broadcast and an all-reduce send over each of these paths.
    """

    latency_s: float
    seconds_per_byte: float
    steps: tuple[int, int, int]
    passes: tuple[float, float]

    def barrier_s(self) -> float:
        """Return the duration of a barrier."""
        return self.steps[0] * self.latency_s

    def broadcast_s(self, size: int) -> float:
        """Return the duration of a broadcast of ``size`` bytes."""
        return self.passes[0] * size * self.seconds_per_byte + self.steps[1] * self.latency_s

    def all_reduce_s(self, size: int) -> float:
        """Return the duration of an all-reduce of ``size`` bytes."""
        return self.passes[1] * size * self.seconds_per_byte + self.steps[2] * self.latency_s


Model: TypeAlias = Callable[[Sequence[Port]], Collectives]


def ring(ports: Sequence[Port]) -> Collectives:
    """Model collectives in a ring, in which neighbours send at the same time.

    An all-reduce (Patarasuk and Yuan, 2009) moves 2 (n-1)/n of the vector over each link, in 2 (n-1) steps. A broadcast is a
    pipeline through all members, a barrier an all-reduce without data.
    """
    others = len(ports) - 1
    latency_s, slowest = _load(pairwise([*ports, ports[0]]))
    steps = 2 * others, others, 2 * others
    return Collectives(latency_s, slowest, steps, (float(others > 0), 2 * others / len(ports)))


def direct(ports: Sequence[Port]) -> Collectives:
    """Model collectives in which each member sends to each other one, as `chimera.engines.ray.groups.tcp_group`.

    Two members exchange their vectors in one step. More members reduce one slice each, and then share the slices: two steps.
    A broadcast sends one slice to each member, and these share them.
    """
    members, two = len(ports), len(ports) == 2
    latency_s, slowest = _load(permutations(ports, 2))
    steps, passes = (0, 0, 0) if members == 1 else (1, 1 if two else 2, 1 if two else 2), 1.0 if two else 2 / members
    return Collectives(latency_s, slowest, steps, (passes, passes))


MODELS: dict[Algorithm, Model] = {"ring": ring, "direct": direct}


def _load(pairs: Iterable[tuple[Port, Port]]) -> tuple[float, float]:
    """Return the greatest latency between senders and receivers, and the seconds that a byte of each takes at the slowest link.

    All pairs send at the same time. A link that several of the paths cross gives each its share.
    """
    latencies, uplinks, downlinks = [0.0], Counter[Port](), Counter[Port]()
    between, bytes_s = Counter[int](), dict[int, float]()
    for sender, receiver in pairs:
        latencies.append(sender.latency_to(receiver))
        uplinks[sender] += 1
        downlinks[receiver] += 1
        for hop in sender.path_to(receiver).hops:
            between[id(hop.link)] += 1
            bytes_s[id(hop.link)] = hop.bytes_s
    seconds = [count / port.uplink_bytes_s for port, count in uplinks.items()]
    seconds += [count / port.downlink_bytes_s for port, count in downlinks.items()]
    seconds += [count / bytes_s[link] for link, count in between.items()]
    return max(latencies), max(seconds, default=0.0)
