"""Calls between actors: the choice of the next event in virtual time.

Once the handle of an actor has been sent, a call may come from any actor, so the order of issue is no longer that of virtual
time. From then on every call waits in the queue of its actor, sorted by its arrival, until the driver waits. Then the earliest
start or awaited result happens first, and none after the moment at which the driver wakes. No later event can precede it: code
that continues at a moment calls others after that moment only.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from chimera.core.call import ActorContext, current
from chimera.core.engine import Disturbance
from chimera.core.errors import ConfigurationError, RunError, TimeLimitError
from chimera.engines.simulated.call import Call, Node, Ref
from chimera.engines.simulated.delivery import deliver
from chimera.engines.suspendable_thread import Abandoned

if TYPE_CHECKING:
    from chimera.engines.simulated.scheduler import Scheduler


class SimulatedContext(ActorContext):
    """The simulated engine as an actor sees it."""

    def __init__(self, events: Events, bandwidth_bytes_s: float) -> None:
        super().__init__()
        self.events, self.bandwidth_bytes_s = events, bandwidth_bytes_s

    def get(self, refs: Any, timeout_s: float | None = None) -> Any:
        """Wait for results of this actor's calls on other actors."""
        if isinstance(refs, Sequence):
            return self.events.get(refs, timeout_s)
        return self.events.get([refs], timeout_s)[0]


class Events:
    """The calls between actors, and the waits of actors.

    Attributes
    ----------
    on : whether a handle has been sent.
    waits : calls that wait inside for a result: for which, and their time limits.
    """

    def __init__(self, scheduler: Scheduler, nodes: list[Node]) -> None:
        self.on = False
        self.waits: dict[Call, tuple[Ref, float]] = {}
        self._scheduler, self._nodes = scheduler, nodes
        self._agenda: list[tuple[float, int, int]] = []  # (time, order of the call, rank); entries may be outdated
        self._due_s: dict[int, float] = {}  # by rank: the entry that counts
        self._begun = itertools.count(1 << 62)
        self._held_back: dict[Call, float] = {}  # what hanging actors would have called, and when

    def enqueue(self, call: Call) -> None:
        """Insert a call in the queue of its actor, after all that arrive before it."""
        queue = call.node.queue
        place = len(queue)
        while place and queue[place - 1].arrives_s > call.arrives_s:
            place -= 1
        queue.insert(place, call)
        if self.on:
            self.schedule(call.node)

    def schedule(self, node: Node) -> None:
        """Record a node's next event, if it has become known or has changed."""
        call, due_s = self._next(node)
        if call is not None and due_s < self._due_s.get(node.rank, math.inf):
            self._due_s[node.rank] = due_s
            heapq.heappush(self._agenda, (due_s, call.order, node.rank))

    def next_s(self) -> float:
        """Return the time of the next event; infinite if there is none."""
        while self._agenda:
            time_s, _, rank = self._agenda[0]
            node = self._nodes[rank + 1]  # the driver is the first
            counts = self._due_s.get(rank) == time_s
            if counts and self._next(node)[1] == time_s:
                return time_s
            heapq.heappop(self._agenda)
            if counts:
                del self._due_s[rank]
                self.schedule(node)
        return math.inf

    def step(self) -> None:
        """Execute the next event."""
        time_s = self.next_s()
        rank = heapq.heappop(self._agenda)[2]
        del self._due_s[rank]
        node = self._nodes[rank + 1]
        call = node.suspended
        if call is None:
            node.queue[0].order = next(self._begun)  # among calls that have begun, this is the order on their actors
            self._scheduler.begin_next(node)
        else:
            assert call.call_thread is not None
            lost = Abandoned() if node.crash_s <= time_s else None
            self._scheduler.advance(call, partial(call.call_thread.resume, lost))
        self.schedule(node)
        self._scheduler.pump()

    def catch_up(self) -> None:
        """Execute all events before the driver's clock."""
        while self.next_s() <= self._scheduler.now_s:
            self.step()

    def lose(self, node: Node) -> int:
        """Withdraw the later calls of a killed actor, and end its wait; return their number."""
        taken_back = 0
        for other in self._nodes:
            kept = deque(call for call in other.queue if call.sender is not node or call.issued_s <= node.crash_s)
            taken_back += len(other.queue) - len(kept)
            other.queue = kept
            self.schedule(other)
        if node.suspended is not None and node.suspended in self.waits:
            self._scheduler.resume_later(node.suspended, Abandoned())
        return taken_back

    def awaited_by(self, call: Call) -> Call | None:
        """Return the call whose result a suspended call waits for, or None."""
        return self.waits[call][0].call if call in self.waits else None

    def check_receiver(self, name: str) -> None:
        """Raise ConfigurationError if the running code, which receives a handle, is an actor of another engine."""
        around = current()
        if isinstance(around, SimulatedContext) and around.events is not self:
            raise ConfigurationError(
                f"the handle of {name} works in the driver and in the actors of its own engine only"
            )

    def disturb(self, node: Node, disturbance: Disturbance, hung_s: float) -> None:
        """Delay the calls that an actor would have made from now on, like the actor itself.

        Parameters
        ----------
        hung_s : since when it hung before this, and still hangs.
        """
        now_s = self._scheduler.now_s
        for other in self._nodes:
            for call in other.queue:
                if call.sender is node and call in self._held_back:
                    call.issued_s = self._held_back.pop(call) + (now_s - hung_s)
                if call.sender is node and call.issued_s > now_s and disturbance.what != "slow":
                    if disturbance.for_s == math.inf:
                        self._held_back[call] = call.issued_s
                    over_s = now_s + disturbance.for_s
                    is_cut = disturbance.what == "cut off"
                    call.issued_s = max(call.issued_s, over_s) if is_cut else call.issued_s + disturbance.for_s
            other.queue = deque(sorted(other.queue, key=attrgetter("arrives_s")))
            self.schedule(other)

    def calling(self) -> Call | None:
        """Return the running call that calls another actor or waits for one, with its clock set; None for the driver."""
        call = self._scheduler.charge()
        if call is not None and call.call_thread is None:
            raise ConfigurationError(
                f"give {call.node.name} the handles that it uses as arguments: it cannot wait otherwise"
            )
        if call is not None and call.node.crash_s <= call.clock_s:
            raise Abandoned
        return call

    def get(self, refs: Sequence[Ref], timeout_s: float | None) -> list[Any]:
        """Suspend the running call until all values have arrived; see `chimera.core.call.get`."""
        call = self.calling()
        if call is None:
            return ActorContext().get(refs)  # type: ignore[no-any-return]  # it raises
        began_s = call.clock_s
        deadline_s = math.inf if timeout_s is None else began_s + max(timeout_s, 0.0)
        try:
            for ref in refs:
                self._await(call, ref, deadline_s)
        finally:
            known_s = call.clock_s
            call.wait_s += known_s - began_s
        arrived_s, _, size = deliver(list(refs), call.node, began_s)
        if arrived_s > deadline_s:
            call.clock_s = deadline_s
            raise _too_late(refs[-1])
        call.clock_s = max(known_s, arrived_s)
        call.transfer_s += call.clock_s - known_s
        call.bytes_in += size
        return [ref.open() for ref in refs]

    def _await(self, call: Call, ref: Ref, deadline_s: float) -> None:
        """Advance the clock of the running call to when it knows the end of a call; raise that call's exception."""
        other = ref.call
        if other.node is call.node and other.end_s == math.inf:
            raise RunError(
                f"{call.node.name} would wait forever: its call {other.method!r} on itself comes after this one"
            )
        self.waits[call] = ref, deadline_s
        call.node.suspended = call
        if other.end_s == math.inf:
            call.awaits(other)
        self.schedule(call.node)
        try:
            assert call.call_thread is not None
            call.call_thread.suspend()
        finally:
            del self.waits[call]
        known_s = _known_s(other, call.node)
        call.clock_s = call.node.health.begins_s(max(call.clock_s, min(known_s, deadline_s)))
        if known_s > deadline_s:
            raise _too_late(ref)
        if other.error is not None:
            raise other.error.with_traceback(None)

    def _next(self, node: Node) -> tuple[Call | None, float]:
        """Return the call of a node that continues or begins next, and when it can."""
        call = node.suspended
        if call is not None:
            if call not in self.waits:
                return None, math.inf  # a group resumes it
            ref, deadline_s = self.waits[call]
            known_s = max(call.clock_s, min(_known_s(ref.call, node), deadline_s))
            return call, min(node.health.begins_s(known_s), max(call.clock_s, node.crash_s))
        if not node.queue or (node.blocked and node.crash_s == math.inf):
            return None, math.inf
        call = node.queue[0]
        ready_s = max((other.end_s for other in call.inputs), default=0.0)
        if ready_s == math.inf or node.blocked:
            ready_s = min(node.crash_s, node.leave_s)  # then it is known that it will not run
        return call, max(call.arrives_s, node.free_s, ready_s)


def _known_s(call: Call, node: Node) -> float:
    """When the actor of ``node`` can know that a call has ended."""
    if call.node is node:
        return call.end_s
    return call.node.health.sends_s(call.end_s) + call.node.port.latency_to(node.port)


def _too_late(ref: Ref) -> TimeLimitError:
    return TimeLimitError(f"{ref.call.method!r} of {ref.call.node.name} did not end within its time limit")
