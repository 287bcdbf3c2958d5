"""Calls and messages between actors: the choice of the next event in virtual time.

Once the handle of an actor or a message has been sent, a call or a message may come from any actor. The order of issue is then
no longer the order of virtual time. From then on every call waits in the queue of its actor, sorted by its arrival, until the
driver waits. Then the earliest start or awaited result happens first, and no event after the time at which the driver wakes. No
later event can precede an earlier one: code that continues at a time issues calls after that time only.
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
from chimera.engines.simulated.call import Call, Ref
from chimera.engines.simulated.delivery import deliver
from chimera.engines.simulated.messages import Awaited, Mail, Message
from chimera.engines.simulated.node import Node
from chimera.engines.suspendable_thread import Abandoned

if TYPE_CHECKING:
    from chimera.engines.simulated.scheduler import Scheduler


class SimulatedContext(ActorContext):
    """The simulated engine as an actor sees it."""

    def __init__(self, events: Events, bandwidth_bytes_s: float) -> None:
        super().__init__()
        self.events, self.bandwidth_bytes_s = events, bandwidth_bytes_s  # of the uplink

    def get(self, refs: Any, timeout_s: float | None = None) -> Any:
        """Wait for results of this actor's calls on other actors."""
        if isinstance(refs, Sequence):
            return self.events.get(refs, timeout_s)
        return self.events.get([refs], timeout_s)[0]

    def now(self) -> float:
        """Return the virtual time of the running call, with its work so far."""
        return self.events.clock_s()

    def record(self, name: str, began_s: float) -> None:
        """Add a row for a part of the running call."""
        self.events.record(name, began_s)


class Events:
    """The calls and messages between actors, and the waits of actors.

    Attributes
    ----------
    on : whether a handle or a message has been sent.
    mail : the messages between members of groups.
    waits : calls that wait inside for a result: the result, and the time limit.
    """

    def __init__(self, scheduler: Scheduler, nodes: list[Node]) -> None:
        self.on = False
        self.mail = Mail()
        self.waits: dict[Call, tuple[Ref, float]] = {}
        self._scheduler, self._nodes = scheduler, nodes
        self._event_queue: list[tuple[float, int, int]] = []  # (time, order of the call, rank); entries may be outdated
        self._due_s: dict[int, float] = {}  # by rank: time of the valid entry
        self._begun = itertools.count(1 << 62)
        self._held_back: dict[Call | Message, float] = {}  # what hanging actors hold back, and its times

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
            heapq.heappush(self._event_queue, (due_s, call.order, node.rank))

    def next_s(self) -> float:
        """Return the time of the next event; infinite if there is none."""
        return min(self._next_progress_s(), self.mail.next_s())

    def _next_progress_s(self) -> float:
        """Return when the next call begins or continues."""
        while self._event_queue:
            time_s, _, rank = self._event_queue[0]
            node = self._nodes[rank + 1]  # the driver is the first
            counts = self._due_s.get(rank) == time_s
            if counts and self._next(node)[1] == time_s:
                return time_s
            heapq.heappop(self._event_queue)
            if counts:
                del self._due_s[rank]
                self.schedule(node)
        return math.inf

    def step(self) -> None:
        """Execute the next event."""
        time_s = self._next_progress_s()
        if self.mail.next_s() <= time_s:
            self.schedule(self.mail.transfer())
            return
        rank = heapq.heappop(self._event_queue)[2]
        del self._due_s[rank]
        node = self._nodes[rank + 1]
        call = node.suspended
        if call is None:
            node.queue[0].order = next(self._begun)  # among calls that have begun, this is the order on their actors
            self._scheduler.begin_next(node)
        else:
            assert call.call_thread is not None
            lost = Abandoned() if node.crash_s <= time_s else None
            self._scheduler.execution.advance(call, partial(call.call_thread.resume, lost))
        self.schedule(node)
        self._scheduler.pump()

    def catch_up(self) -> None:
        """Execute all events before the driver's clock."""
        while self.next_s() <= self._scheduler.now_s:
            self.step()

    def lose(self, node: Node) -> int:
        """Withdraw the later calls and messages of a killed actor, and end its wait; return the number of calls."""
        taken_back = 0
        for other in self._nodes:
            kept = deque(call for call in other.queue if call.sender is not node or call.issued_s <= node.crash_s)
            taken_back += len(other.queue) - len(kept)
            other.queue = kept
            self.schedule(other)
        self.mail.withdraw(node)
        if node.suspended is not None and (node.suspended in self.waits or node.suspended in self.mail.waits):
            self._scheduler.resume_later(node.suspended, Abandoned())
        return taken_back

    def awaited_by(self, call: Call) -> Call | None:
        """Return the call for whose result a suspended call waits, or None."""
        return self.waits[call][0].call if call in self.waits else None

    def check_receiver(self, name: str) -> None:
        """Raise ConfigurationError if the running code, which receives a handle, is an actor of another engine."""
        around = current()
        if isinstance(around, SimulatedContext) and around.events is not self:
            raise ConfigurationError(
                f"the handle of {name} works in the driver and in the actors of its own engine only"
            )

    def disturb(self, node: Node, disturbance: Disturbance, hung_s: float) -> None:
        """Delay the calls and messages that an actor would have sent from now on, like the actor itself.

        Parameters
        ----------
        hung_s : start of an earlier hang that continues.
        """
        now_s = self._scheduler.now_s

        def delay(sent: Call | Message) -> None:
            if sent in self._held_back:
                sent.issued_s = self._held_back.pop(sent) + (now_s - hung_s)
            if sent.issued_s > now_s and disturbance.what != "slow":
                if disturbance.for_s == math.inf:
                    self._held_back[sent] = sent.issued_s
                over_s = now_s + disturbance.for_s
                is_cut = disturbance.what == "cut off"
                sent.issued_s = max(sent.issued_s, over_s) if is_cut else sent.issued_s + disturbance.for_s

        self.mail.delay(node, delay)
        for other in self._nodes:
            for call in other.queue:
                if call.sender is node:
                    delay(call)
            other.queue = deque(sorted(other.queue, key=attrgetter("arrives_s")))
            self.schedule(other)

    def clock_s(self) -> float:
        """Return the time of the running call, or the driver's."""
        call = self._scheduler.execution.charge()
        return self._scheduler.now_s if call is None else call.clock_s

    def record(self, name: str, began_s: float) -> None:
        """Add a row for a part of the running call; see `chimera.core.call.record`. The next part draws a new factor."""
        if (call := self._scheduler.execution.charge()) is not None:
            call.record(name, began_s)
            self._scheduler.execution.draw_factor(call)

    def await_messages(self, call: Call, awaited: Awaited) -> None:
        """Suspend the running call until messages have arrived, or a death ends the wait."""
        self.mail.waits[call] = awaited
        self._suspend(call, self.mail.waits)

    def reschedule_receivers(self) -> None:
        """Schedule the calls that wait for messages, because a member of a group was lost or may have left."""
        for call in self.mail.waits:
            self.schedule(call.node)

    def calling(self) -> Call | None:
        """Return the running call that calls another actor or waits for one, with its clock set; None for the driver."""
        call = self._scheduler.execution.charge()
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
        arrived_s, _, size = deliver(list(refs), call.node, began_s, call.presence)
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
        if other.end_s == math.inf:
            call.awaits(other)
        self._suspend(call, self.waits)
        known_s = _known_s(other, call.node)
        call.clock_s = call.node.begins_s(max(call.clock_s, min(known_s, deadline_s)))
        if known_s > deadline_s:
            raise _too_late(ref)
        if other.error is not None:
            raise other.error.with_traceback(None)

    def _suspend(self, call: Call, waits: dict[Call, Any]) -> None:
        """Suspend the running call until its event; ``waits`` holds what it waits for."""
        call.node.suspended = call
        self.schedule(call.node)
        try:
            assert call.call_thread is not None
            call.call_thread.suspend()
        finally:
            del waits[call]

    def _next(self, node: Node) -> tuple[Call | None, float]:
        """Return the call of a node that continues or begins next, and when it can."""
        call = node.suspended
        if call is not None:
            known_s = self._continues_s(call)
            if known_s is None:
                return None, math.inf  # a group resumes it
            return call, min(node.begins_s(known_s), max(call.clock_s, node.crash_s))
        if not node.queue or (node.blocked and node.crash_s == math.inf):
            return None, math.inf
        call = node.queue[0]
        ready_s = max((other.end_s for other in call.inputs), default=0.0)
        if ready_s == math.inf or node.blocked:
            ready_s = min(node.crash_s, node.leave_s)  # at this time it is known that the call will not run
        return call, max(call.arrives_s, node.free_s, ready_s)

    def _continues_s(self, call: Call) -> float | None:
        """Return when a suspended call knows what it waits for; None in a collective."""
        if (awaited := self.mail.waits.get(call)) is not None:
            return max(call.clock_s, awaited.known_s())
        if call not in self.waits:
            return None
        ref, deadline_s = self.waits[call]
        return max(call.clock_s, min(_known_s(ref.call, call.node), deadline_s))


def _known_s(call: Call, node: Node) -> float:
    """Return the time at which the actor of ``node`` can know that a call has ended."""
    if call.node is node:
        return call.end_s
    return call.node.sends_s(call.end_s) + call.node.port.latency_to(node.port)


def _too_late(ref: Ref) -> TimeLimitError:
    return TimeLimitError(f"{ref.call.method!r} of {ref.call.node.name} did not end within its time limit")
