"""Groups in virtual time. In a collective, the calls of all members meet, and continue when the last has arrived."""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ActorLost, ConfigurationError, RunError
from chimera.core.parameters import reduce_in_order
from chimera.engines.collectives import Op, check_op, check_root
from chimera.engines.simulated.call import Call
from chimera.engines.simulated.messages import GroupMessages
from chimera.engines.simulated.models.collectives import Model
from chimera.engines.simulated.node import Node
from chimera.engines.suspendable_thread import Abandoned

if TYPE_CHECKING:
    from chimera.engines.simulated.scheduler import Scheduler

Collective: TypeAlias = tuple[str, str | int, int]
"""A collective: its name, its operation or root, and the number of elements."""

_MAX_TRIES = 100_000
_groups: weakref.WeakValueDictionary[int, SimulatedGroup] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def _find(number: int) -> SimulatedGroup:
    return _groups[number]


class SimulatedGroup:
    """Collectives and messages between actors of one simulated engine; see `chimera.core.engine.Group`.

    Parameters
    ----------
    scheduler : the scheduler of the engine.
    nodes : the members.
    model : the model of the durations of collectives.
    """

    def __init__(self, scheduler: Scheduler, nodes: Sequence[Node], model: Model) -> None:
        self._scheduler = scheduler
        self._number = next(_numbers)
        self.nodes = tuple(nodes)
        self._ranks = {node: rank for rank, node in enumerate(nodes)}
        self._collectives = model([node.port for node in nodes])
        self._arrived: dict[int, tuple[Call, Collective, NDArray[np.float32]]] = {}
        self._lost: tuple[Node, float] | None = None
        self._messages = GroupMessages(scheduler, nodes, self._collectives.latency_s)
        _groups[self._number] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return _find, (self._number,)

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self.nodes)

    def all_reduce(self, array: NDArray[np.float32], op: Op = "mean") -> NDArray[np.float32]:
        """See `Group.all_reduce`."""
        check_op(op)
        self._meet("all_reduce", op, array)
        return array

    def broadcast(self, array: NDArray[np.float32], root: int = 0) -> NDArray[np.float32]:
        """See `Group.broadcast`."""
        check_root(root, self.size)
        self._meet("broadcast", root, array)
        return array

    def barrier(self) -> None:
        """See `Group.barrier`."""
        self._meet("barrier", 0, np.empty(0, np.float32))

    def send(self, values: Mapping[int, Any]) -> None:
        """See `Group.send`."""
        self._messages.send(values)

    def receive(self, members: Sequence[int], count: int | None = None) -> dict[int, Any]:
        """See `Group.receive`."""
        return self._messages.receive(members, count)

    def missing(self) -> list[Node]:
        """The members for which others wait: those that have not arrived, and those that hang."""
        return [
            node
            for node in self.nodes
            if self._arrived and (self._ranks[node] not in self._arrived or node.health.hung_s < math.inf)
        ]

    def meet_if_complete(self) -> None:
        """Resume members that waited for a member that no longer hangs."""
        if len(self._arrived) == self.size and not self._kept_waiting():
            self._complete(None)

    def _kept_waiting(self) -> bool:
        return any(node.health.hung_s < math.inf for node in self.nodes)

    def member_lost(self, node: Node, lost_s: float) -> None:
        """Handle the loss of a member: members that wait, and all that arrive later, get `ActorLost`."""
        if self._lost is None or lost_s < self._lost[1]:
            self._lost = node, lost_s
        arrived, self._arrived = self._arrived, {}
        for _, (call, _, _) in sorted(arrived.items()):
            self._scheduler.resume_later(call, Abandoned() if call.node is node else self._loss(call))
        self._messages.member_lost(node)

    def _loss(self, call: Call) -> ActorLost:
        assert self._lost is not None
        node, lost_s = self._lost
        call.clock_s, before_s = max(call.clock_s, lost_s) + self._collectives.latency_s, call.clock_s
        call.wait_s += call.clock_s - before_s
        return ActorLost(f"{node.name} was lost at {lost_s:g} s, and {call.node.name} met it in a group")

    def _meet(self, name: str, detail: str | int, array: NDArray[np.float32]) -> None:
        call = self._scheduler.execution.charge()
        if call is None or call.node not in self._ranks:
            raise RunError(f"{name} was called outside of a call on a member of the group")
        if not isinstance(array, np.ndarray) or array.dtype != np.float32 or not array.flags.writeable:
            raise ConfigurationError(f"{name} takes writable float32 arrays, in place")
        if call.node.crash_s <= call.clock_s:
            raise Abandoned
        if self._lost is not None:
            raise self._loss(call)
        self._arrived[self._ranks[call.node]] = call, (name, detail, array.size), array
        if len(self._arrived) < self.size or self._kept_waiting():
            self._scheduler.suspend(call, self)
        else:
            self._complete(call)

    def _complete(self, last: Call | None) -> None:
        """Run the collective of all arrived members; ``last`` is the running call, if any; the others are suspended."""
        present = [self._arrived[rank] for rank in range(self.size)]
        name, detail, _ = collective = present[0][1]
        cost_s = self._cost_s(name, present[0][2].nbytes)
        last_s = max(call.clock_s for call, _, _ in present)
        end_s = self._end_s(last_s, cost_s)
        first = min(present, key=lambda arrival: arrival[0].node.crash_s)[0].node
        mismatch = ""
        if first.crash_s < end_s:
            if last is not None:
                self._arrived.pop(self._ranks[last.node])
            self.member_lost(first, first.crash_s)
            if last is None:
                return
            raise Abandoned if first is last.node else self._loss(last)
        self._arrived = {}
        if any(other != collective for _, other, _ in present):
            asked = ", ".join(f"{call.node.name}: {' '.join(map(str, other))}" for call, other, _ in present)
            mismatch = f"the members of a group do not ask for the same: {asked}"
        else:
            self._compute(name, detail, [array for _, _, array in present])
        calls = [call for call, _, _ in present]
        for call in calls:
            call.wait_s += end_s - cost_s - call.clock_s
            call.transfer_s += cost_s
            call.clock_s = end_s
            call.meetings = {**call.meetings, self: (end_s, calls)}
            self._count_bytes(call, name, detail, present[0][2].nbytes)
            if call is not last:
                self._scheduler.resume_later(call, ConfigurationError(mismatch) if mismatch else None)
        if mismatch and last is not None:
            raise ConfigurationError(mismatch)

    def _end_s(self, last_s: float, cost_s: float) -> float:
        """Return when a collective ends: it begins when all members are on, and absences prolong it."""
        begin_s = max([last_s, *(n.health.begins_s(last_s) for n in self.nodes if not n.health.sound)])
        if not (presences := [node.presence for node in self.nodes if node.presence is not None]):
            return cost_s + begin_s
        for _ in range(_MAX_TRIES):
            if (later_s := max(presence.begins_s(begin_s) for presence in presences)) == begin_s:
                return max(presence.arrives_s(begin_s, begin_s + cost_s) for presence in presences)
            begin_s = later_s
        raise ConfigurationError(f"the members of a group were never on at the same time until {begin_s:g} s")

    def _compute(self, name: str, detail: str | int, arrays: list[NDArray[np.float32]]) -> None:
        if name == "broadcast":
            result = arrays[int(detail)]
        elif name == "all_reduce":
            scale = 1 / self.size if detail == "mean" else 1.0
            result = reduce_in_order(
                [array.reshape(-1) for array in arrays], np.empty(arrays[0].size, np.float32), scale
            )
        else:
            return
        for array in arrays:
            if array is not result:
                array[...] = result.reshape(array.shape)

    def _cost_s(self, name: str, size: int) -> float:
        if name == "barrier":
            return self._collectives.barrier_s()
        if name == "broadcast":
            return self._collectives.broadcast_s(size)
        return self._collectives.all_reduce_s(size)

    def _count_bytes(self, call: Call, name: str, detail: str | int, size: int) -> None:
        rank = self._ranks[call.node]
        if name == "all_reduce":
            moved = math.ceil(2 * (self.size - 1) * size / self.size)
            call.bytes_in += moved
            call.bytes_out += moved
        elif name == "broadcast" and self.size > 1:
            call.bytes_in += size if rank != detail else 0
            call.bytes_out += size if (rank + 1) % self.size != detail else 0
