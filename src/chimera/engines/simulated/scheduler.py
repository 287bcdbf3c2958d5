"""The scheduler of the simulated engine: it selects the next call that runs."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from functools import partial
from operator import itemgetter

from chimera.core.engine import Disturbance
from chimera.engines.simulated.call import CONSTRUCTOR, Call
from chimera.engines.simulated.events import Events
from chimera.engines.simulated.execution import Execution
from chimera.engines.simulated.group import SimulatedGroup
from chimera.engines.simulated.health import UNDISTURBED
from chimera.engines.simulated.models.compute import Compute
from chimera.engines.simulated.models.link import Link
from chimera.engines.simulated.node import Node
from chimera.engines.simulated.timeline import Timeline
from chimera.engines.simulated.wait_analysis import explain, losses


class Scheduler:
    """Begins calls in the driver's order, and continues suspended ones; `Execution` runs them.

    A call runs as soon as its arguments are computed and no call before it on its actor is suspended. Once actors may call one
    another, calls run in the order of virtual time (`Events`).

    Attributes
    ----------
    now_s : the driver's clock; only the driver moves it.
    ready_nodes : the nodes whose first call may run now.
    ending_nodes : the nodes that have ended or will, without clients that leave for good later. A search for lost actors reads
        only these.
    """

    def __init__(self, driver: Node, compute: Compute, seed: int, trunks: Sequence[Link] = ()) -> None:
        self.now_s = 0.0
        self.timeline = Timeline()
        self.ready_nodes: deque[Node] = deque()
        self._driver, self._trunks = driver, trunks
        self._nodes: list[Node] = [driver]
        self.events = Events(self, self._nodes)
        self.execution = Execution(self, driver, compute, seed)
        self._deferred = 0
        self.ending_nodes: set[Node] = set()
        self._hung: list[Node] = []
        self._suspended: dict[Call, SimulatedGroup] = {}
        self._resumes: deque[tuple[Call, BaseException | None]] = deque()

    def issue(self, call: Call) -> None:
        """Run ``call``, or queue it until it can run."""
        node = call.node
        if call.method == CONSTRUCTOR:
            self._nodes.append(node)
        if self.events.on or node.queue or node.blocked or not call.ready:
            self.events.enqueue(call)
            self._deferred += 1
            for other in call.inputs:
                if other.end_s == math.inf:
                    call.awaits(other)
        else:
            self.execution.begin(call)
        if self.execution.running is None:
            self.pump()

    def begin_next(self, node: Node) -> None:
        """Begin the first call in the queue of ``node``."""
        self._deferred -= 1
        self.execution.begin(node.queue.popleft())

    def pump(self) -> None:
        """Run everything that can run, one at a time and in a fixed order."""
        while self._resumes or self.ready_nodes:
            if self._resumes:
                call, error = self._resumes.popleft()
                assert call.call_thread is not None
                self.execution.advance(call, partial(call.call_thread.resume, error))
                continue
            node = self.ready_nodes.popleft()
            if self.events.on:
                self.events.schedule(node)
                continue
            while node.queue and not node.blocked and node.queue[0].ready:
                self.begin_next(node)
        if (settled := self.timeline.settle_if_many(self.now_s)) and not self._deferred and not self.events.waits:
            for node in settled:
                node.port.uplink.forget(self.now_s)
                node.port.downlink.forget(self.now_s)
            for link in self._trunks:
                link.forget(self.now_s)

    def mark_dead(self, node: Node, lost_s: float) -> None:
        """End all waits for an actor that died at ``lost_s``, killed by the driver or after a hang."""
        if node in self._hung:
            self._hung.remove(node)
        self.timeline.recall(node, lost_s, self._driver.port.latency_to(node.port), self._hung)
        while node.queue:
            self._deferred -= 1
            self.execution.refuse(node.queue.popleft())
        for group in node.groups:
            group.member_lost(node, lost_s)
        node.health = UNDISTURBED  # dead actors are not disturbed
        self._deferred -= self.events.lose(node)
        self.ready_nodes.extend(other for other in self._nodes if other.queue)  # some may have been stuck
        self.pump()

    def disturb(self, node: Node, disturbance: Disturbance) -> None:
        """Start a disturbance of an actor, which replaces its current disturbance."""
        hung_s = node.health.hung_s
        node.health = node.health.under(disturbance, self.now_s)
        if node in self._hung:
            self._hung.remove(node)
            self.timeline.resume_hung(node, hung_s, self.now_s, self._hung)
            if node.suspended and node.suspended.clock_s > hung_s:
                node.suspended.clock_s += self.now_s - hung_s
        if node.health.hung_s < math.inf:
            self._hung.append(node)
        elif node.suspended and disturbance.what == "hang" and node.suspended.clock_s > self.now_s:
            node.suspended.clock_s += disturbance.for_s
        self.timeline.disturb(node, disturbance, self.now_s)
        self.events.disturb(node, disturbance, hung_s)
        if hung_s < math.inf:
            for group in node.groups:
                group.meet_if_complete()
            self.ready_nodes.extend(other for other in self._nodes if other.queue)
            self.pump()

    def next_loss(self) -> tuple[float, Node]:
        """Return the first death that will end the wait of a suspended or a stuck call: its time and its node."""
        return min(losses(self._hung, self._suspended.values()), key=itemgetter(0), default=(math.inf, self._driver))

    def lose(self, node: Node, lost_s: float) -> None:
        """Report the death of ``node`` to all calls that wait for it, and continue."""
        if node in self._hung:
            if lost_s < node.crash_s:
                node.crash_s, node.death_cause = lost_s, "left"
            self.mark_dead(node, lost_s)
            return
        for group in node.groups:
            group.member_lost(node, lost_s)
        self.pump()

    def suspend(self, call: Call, group: SimulatedGroup) -> None:
        """Suspend the running call until ``group`` resumes it. Runs on the thread of the call."""
        assert call.call_thread is not None
        self._suspended[call] = group
        call.node.suspended = call
        try:
            call.call_thread.suspend()
        finally:
            del self._suspended[call]

    def resume_later(self, call: Call, error: BaseException | None) -> None:
        """Queue a suspended call: the scheduler resumes it later, or raises ``error`` in it."""
        self._resumes.append((call, error))

    def explain(self, call: Call) -> str:
        """Describe the calls and actors for which the driver would wait without an end."""
        receivers = {each: wait for each, wait in self.events.mail.waits.items() if each.node.health.hung_s == math.inf}
        return explain(call, {**self._suspended, **receivers}, self.events.awaited_by, len(self._nodes))

    def close(self) -> None:
        """Stop all threads and release the actors."""
        self.execution.close()
        for node in self._nodes:
            node.target = None
            node.queue.clear()
