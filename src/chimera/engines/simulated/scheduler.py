"""The scheduler of the simulated engine: it selects the next call, runs it, and computes its virtual times."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from functools import partial
from operator import itemgetter

from chimera.core.call import Work, enter
from chimera.core.engine import Disturbance
from chimera.core.errors import ActorLost
from chimera.engines.simulated.call import NOTHING, Call
from chimera.engines.simulated.delivery import arrival_s
from chimera.engines.simulated.events import Events
from chimera.engines.simulated.group import SimulatedGroup
from chimera.engines.simulated.health import UNDISTURBED
from chimera.engines.simulated.models.compute import Compute
from chimera.engines.simulated.models.link import Link
from chimera.engines.simulated.node import Node
from chimera.engines.simulated.running import Outcome, construct, run
from chimera.engines.simulated.timeline import Timeline
from chimera.engines.simulated.wait_analysis import explain, losses
from chimera.engines.suspendable_thread import Abandoned, SuspendableThreads

CONSTRUCTOR = "__init__"
_ENDED = SystemExit, Abandoned  # raised in an actor that has ended


class Scheduler:
    """Runs calls in the driver's order, and computes when each starts and ends.

    A call runs as soon as its arguments are computed and no call before it on its actor is suspended. Calls of members of a
    group run on suspendable threads, because they may have to wait inside; all others run on the driver's own thread. Once
    actors may call one another (`Events`), all run on suspendable threads and in the order of virtual time.

    Attributes
    ----------
    now_s : the driver's clock; only the driver moves it.
    running : the call whose code runs now; None while it is the driver's.
    ending_nodes : the nodes that have ended or will, without clients that leave for good later. A search for lost actors reads
        only these.
    """

    def __init__(self, driver: Node, compute: Compute, seed: int, trunks: Sequence[Link] = ()) -> None:
        self.now_s = 0.0
        self.timeline = Timeline()
        self._driver, self._compute, self._seed, self._trunks = driver, compute, seed, trunks
        self._further = bool(compute.seconds_per_batch or compute.codecs)
        self._nodes: list[Node] = [driver]
        self.events = Events(self, self._nodes)
        self._deferred = 0
        self.running: Call | None = None
        self.ending_nodes: set[Node] = set()
        self._hung: list[Node] = []
        self._suspended: dict[Call, SimulatedGroup] = {}
        self._resumes: deque[tuple[Call, BaseException | None]] = deque()
        self._ready_nodes: deque[Node] = deque()
        self._call_threads = SuspendableThreads()

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
            self._begin(call)
        if self.running is None:
            self.pump()

    def begin_next(self, node: Node) -> None:
        """Begin the first call in the queue of ``node``."""
        self._deferred -= 1
        self._begin(node.queue.popleft())

    def pump(self) -> None:
        """Run everything that can run, one at a time and in a fixed order."""
        while self._resumes or self._ready_nodes:
            if self._resumes:
                call, error = self._resumes.popleft()
                assert call.call_thread is not None
                self.advance(call, partial(call.call_thread.resume, error))
                continue
            node = self._ready_nodes.popleft()
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
            self._refuse(node.queue.popleft())
        for group in node.groups:
            group.member_lost(node, lost_s)
        node.health = UNDISTURBED  # dead actors are not disturbed
        self._deferred -= self.events.lose(node)
        self._ready_nodes.extend(other for other in self._nodes if other.queue)  # some may have been stuck
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
            self._ready_nodes.extend(other for other in self._nodes if other.queue)
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

    def charge(self) -> Call | None:
        """Advance the clock of the running call by the work that it has declared since the last charge. For groups."""
        call = self.running
        if call is not None:
            node, compute = call.node, self._compute
            work = node.actor_context.work
            declared_s = node.seconds_per_sample * work.effort + compute.seconds_per_element * work.elements
            if call.has_received and (work.effort or work.elements):  # as for a call with these messages as arguments
                declared_s += compute.seconds_per_call
                call.has_received = False
            work_s = call.factor * (declared_s + compute.further_s(work) if self._further else declared_s)
            call.samples += work.samples
            work.samples, work.elements, work.effort, work.batches, work.coded = 0, 0, 0.0, 0, None
            if node.presence is None:
                call.clock_s = node.health.ends_s(call.clock_s, work_s)
            else:
                call.clock_s = call.prolonged_s(call.clock_s, node.health.ends_s(call.clock_s, work_s))
        return call

    def draw_factor(self, call: Call) -> None:
        """Draw the factor of a call that begins, or of its next part."""
        node = call.node
        call.factor = node.factor * self._compute.call_factor(self._seed, node.name, node.calls)
        node.calls += 1

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
        self._call_threads.end()
        for node in self._nodes:
            node.target = None
            node.queue.clear()

    def _begin(self, call: Call) -> None:
        node, ready = call.node, True
        for other in call.inputs:
            if other.error is not None:
                return self._fail(call, other.error, max(call.issued_s, other.end_s))
            ready = ready and other.end_s < math.inf
        if node.failure is not None:
            return self._fail(call, node.failure, call.issued_s)
        if not ready or node.refuses(call.issued_s):
            return self._refuse(call)
        if call.method == CONSTRUCTOR:
            return self._construct(call)
        start_s = arrival_s(call)
        if node.refuses(start_s):
            return self._refuse(call)
        call.start_s = start_s
        self.draw_factor(call)
        call.clock_s = node.health.ends_s(start_s, call.factor * self._compute.seconds_per_call)
        if node.presence is not None:
            call.clock_s = call.prolonged_s(start_s, call.clock_s)
        if node.groups or self.events.on:
            return self._run_on_thread(call, partial(run, call))
        return self._run_here(call)

    def _construct(self, call: Call) -> None:
        node = call.node
        call.clock_s = node.free_s = max([call.issued_s, *(other.end_s for other in call.inputs)])
        if self.events.on:
            call.factor = 0.0  # its computation costs nothing, but it may wait for others
            return self._run_on_thread(call, partial(construct, call))
        before, self.running = enter(node.actor_context), None
        try:
            construct(call)
        finally:
            enter(before)
            node.actor_context.work = Work()
        return self._resolve(call, node.free_s, node.free_s)

    def _run_here(self, call: Call) -> None:
        before, self.running = enter(call.node.actor_context), call
        outcome: Outcome | None = None
        try:
            outcome = run(call)
        except SystemExit as error:
            outcome = (), error
        finally:
            enter(before)
            self._finish(call, outcome or ((), ActorLost(f"{call.node.name} was interrupted")))
            self.running = None

    def _run_on_thread(self, call: Call, job: partial[Outcome]) -> None:
        call.call_thread = self._call_threads.lend()
        self.advance(call, partial(call.call_thread.begin, job))

    def advance(self, call: Call, switch: partial[None]) -> None:
        """Run a call on its thread until it ends or waits again."""
        call_thread = call.call_thread
        assert call_thread is not None
        call.node.suspended = None
        before, self.running = enter(call.node.actor_context), call
        try:
            switch()
        finally:
            enter(before)
            if call_thread.outcome is not None:
                self._call_threads.give_back(call_thread)
                self._finish(call, call_thread.outcome)
            self.running = None

    def _finish(self, call: Call, outcome: Outcome) -> None:
        """Give the results of a call that ran to its refs, unless its actor is lost before its end."""
        self.charge()
        node, (stored, error) = call.node, outcome
        end_s = call.clock_s
        ended = error is not None and isinstance(error, _ENDED)
        if ended and isinstance(error, SystemExit):
            node.crash_s, node.death_cause = min(node.crash_s, end_s), "exited"
            self.ending_nodes.add(node)
        if ended or end_s > node.crash_s:
            end_s, stored, error = node.crash_s, (), node.lost(call)
            if call.start_s > end_s:
                call.start_s = math.inf
            for group in node.groups:
                group.member_lost(node, end_s)
        for place, value in enumerate(stored):
            call.refs[place].stored = value
            call.bytes_out += value.nbytes
        call.error, call.call_thread = error, None
        known_s = end_s + self._driver.port.latency_to(node.port)
        if node.uploads:
            known_s = self._uploaded_s(call, end_s, known_s, sum(value.nbytes for value in stored))
        else:
            node.free_s = end_s
        if node.leave_s <= end_s:
            self.events.reschedule_receivers()
        if node.queue:
            self._ready_nodes.append(node)
        self._resolve(call, end_s, known_s)

    def _uploaded_s(self, call: Call, end_s: float, known_s: float, size: int) -> float:
        """End a call of a client; return when the driver knows, because the notice follows the results."""
        node, presence = call.node, call.presence
        if call.method not in node.administrative:
            node.free_s = end_s
        known_s += size / node.port.uplink_bytes_s
        return known_s if presence is None else presence.arrives_s(end_s, known_s)

    def _refuse(self, call: Call) -> None:
        node = call.node
        lost_s = min(node.crash_s, node.leave_s)
        for group in node.groups:
            group.member_lost(node, lost_s)
        self._fail(call, node.lost(call), max(call.issued_s, lost_s))

    def _fail(self, call: Call, error: BaseException | None, at_s: float) -> None:
        """End a call that does not run."""
        call.error = error
        if call.method == CONSTRUCTOR:
            call.node.failure = error
        known_s = at_s if at_s <= self.now_s else at_s + self._driver.port.latency_to(call.node.port)
        self._resolve(call, at_s, known_s)

    def _resolve(self, call: Call, end_s: float, known_s: float) -> None:
        call.end_s, call.known_s = end_s, known_s
        call.args, call.kwargs, call.refs, call.given = (), NOTHING, (), ()
        if call.waiters:
            self._ready_nodes.extend(waiter.node for waiter in call.waiters)
            call.waiters = ()
        self.timeline.add(call)
