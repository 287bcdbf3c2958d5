"""The execution of one call on the simulated engine: its start, its work and its end, with their virtual times."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from chimera.core.call import Work, enter
from chimera.core.errors import ActorLost
from chimera.engines.simulated.call import CONSTRUCTOR, NOTHING, Call
from chimera.engines.simulated.delivery import arrival_s
from chimera.engines.simulated.models.compute import Compute
from chimera.engines.simulated.node import Node
from chimera.engines.simulated.running import Outcome, construct, run
from chimera.engines.suspendable_thread import Abandoned, SuspendableThreads

if TYPE_CHECKING:
    from chimera.engines.simulated.scheduler import Scheduler

_ENDED = SystemExit, Abandoned  # raised in an actor that has ended


class Execution:
    """Executes calls, each when the scheduler begins or continues it, and computes their times.

    Calls of members of a group run on suspendable threads, because they may have to wait inside; all others run on the driver's
    own thread. Once actors may call one another (`Events`), all run on suspendable threads.

    Parameters
    ----------
    scheduler : holds the clock and the timeline, and learns which actors can continue.
    driver : the node of the driver, which learns of the end of each call.
    compute : the model of the duration of calls.
    seed : seed of the factors of calls.

    Attributes
    ----------
    running : the call whose code runs now; None while it is the driver's.
    """

    def __init__(self, scheduler: Scheduler, driver: Node, compute: Compute, seed: int) -> None:
        self.running: Call | None = None
        self._scheduler, self._driver, self._compute, self._seed = scheduler, driver, compute, seed
        self._events, self._timeline, self._ready_nodes = scheduler.events, scheduler.timeline, scheduler.ready_nodes
        self._further = bool(compute.seconds_per_batch or compute.codecs)
        self._call_threads = SuspendableThreads()

    def begin(self, call: Call) -> None:
        """Run a call whose turn it is, or end it if it cannot run."""
        node, ready = call.node, True
        for other in call.inputs:
            if other.error is not None:
                return self._fail(call, other.error, max(call.issued_s, other.end_s))
            ready = ready and other.end_s < math.inf
        if node.failure is not None:
            return self._fail(call, node.failure, call.issued_s)
        if not ready or node.refuses(call.issued_s):
            return self.refuse(call)
        if call.method == CONSTRUCTOR:
            return self._construct(call)
        start_s = arrival_s(call)
        if node.refuses(start_s):
            return self.refuse(call)
        call.start_s = start_s
        self.draw_factor(call)
        call.clock_s = node.health.ends_s(start_s, call.factor * self._compute.seconds_per_call)
        if node.presence is not None:
            call.clock_s = call.prolonged_s(start_s, call.clock_s)
        if node.groups or self._events.on:
            return self._run_on_thread(call, partial(run, call))
        return self._run_here(call)

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

    def refuse(self, call: Call) -> None:
        """End a call that its actor does not live to run."""
        node = call.node
        lost_s = min(node.crash_s, node.leave_s)
        for group in node.groups:
            group.member_lost(node, lost_s)
        self._fail(call, node.lost(call), max(call.issued_s, lost_s))

    def close(self) -> None:
        """End all threads."""
        self._call_threads.end()

    def _construct(self, call: Call) -> None:
        node = call.node
        call.clock_s = node.free_s = max([call.issued_s, *(other.end_s for other in call.inputs)])
        if self._events.on:
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

    def _finish(self, call: Call, outcome: Outcome) -> None:
        """Give the results of a call that ran to its refs, unless its actor is lost before its end."""
        self.charge()
        node, (stored, error) = call.node, outcome
        end_s = call.clock_s
        ended = error is not None and isinstance(error, _ENDED)
        if ended and isinstance(error, SystemExit):
            node.crash_s, node.death_cause = min(node.crash_s, end_s), "exited"
            self._scheduler.ending_nodes.add(node)
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
            self._events.reschedule_receivers()
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

    def _fail(self, call: Call, error: BaseException | None, at_s: float) -> None:
        """End a call that does not run."""
        call.error = error
        if call.method == CONSTRUCTOR:
            call.node.failure = error
        known_s = at_s if at_s <= self._scheduler.now_s else at_s + self._driver.port.latency_to(call.node.port)
        self._resolve(call, at_s, known_s)

    def _resolve(self, call: Call, end_s: float, known_s: float) -> None:
        call.end_s, call.known_s = end_s, known_s
        call.args, call.kwargs, call.refs, call.given = (), NOTHING, (), ()
        if call.waiters:
            self._ready_nodes.extend(waiter.node for waiter in call.waiters)
            call.waiters = ()
        self._timeline.add(call)
