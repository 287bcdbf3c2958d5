"""An actor as the driver holds it: its calls, the thread that executes them in order, and injected disturbances."""

from __future__ import annotations

import math
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any

from chimera.core.engine import Disturbance
from chimera.core.trace import TraceRow
from chimera.engines.handle import CONSTRUCT
from chimera.engines.http.failure import Failed, plain_text
from chimera.engines.http.refs import Call, CallTracker, Outcome, Ref, await_needs
from chimera.engines.http.values import Value


class Channel(ABC):
    """An actor.

    Attributes
    ----------
    calls : calls that have not ended, oldest first.
    rows : rows of the trace that were not fetched yet.
    died_s, death_cause : when its death became known, and its cause.
    heartbeat_s : time of its last heartbeat.
    made_s : time of its creation; infinite before.
    """

    def __init__(self, tracker: CallTracker, name: str, rank: int) -> None:
        self.name, self.rank = name, rank
        self.calls: deque[Call] = deque()
        self.rows: list[TraceRow] = []
        self.died_s: float | None = None
        self.death_cause = "lives"
        self.heartbeat_s = time.monotonic()
        self.made_s = math.inf
        self._tracker = tracker
        self._queue: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._next: deque[Call | None] = deque()  # taken out of the queue, and not served yet
        self._constructor_failure: Failed | None = None
        self._disturbance: tuple[Disturbance, float] | None = None
        self.thread = threading.Thread(target=self._live, name=f"chimera-{name}", daemon=True)

    def issue(self, call: Call) -> None:
        """Queue a call after the calls that were issued before."""
        if self._tracker.add(self, call):
            self._queue.put(call)

    def end(self) -> None:
        """End the thread after the current call."""
        self._queue.put(None)

    def disturb(self, disturbance: Disturbance) -> None:
        """Start a disturbance: messages in both directions are delayed on this side of the connection."""
        with self._tracker.changed:
            self._disturbance = disturbance, time.monotonic()
            self._tracker.changed.notify_all()

    def silent_s(self, now_s: float) -> float:
        """Return the seconds since its last heartbeat."""
        if self.died_s is not None or self.made_s == math.inf:
            return 0.0
        since_s = self._held_since(now_s)
        return now_s - (self.last_heartbeat_s(now_s) if since_s is None else since_s)

    def prepare(self, call: Call) -> None:
        """Process the arguments as far as needed before the driver may change them."""
        call.args = tuple(a if type(a) is Ref else Value(a) for a in call.args)
        call.kwargs = {k: a if type(a) is Ref else Value(a) for k, a in call.kwargs.items()}

    @abstractmethod
    def last_heartbeat_s(self, now_s: float) -> float:
        """Return the time of its last heartbeat."""

    @abstractmethod
    def perform(self, call: Call) -> Outcome:
        """Execute a call, in the thread of this actor. The refs in its arguments are resolved."""

    def joins(self, calls: Sequence[Call], following: Call) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether to execute the following call, which has no refs, together with these calls."""
        return False

    def perform_joined(self, calls: Sequence[Call]) -> list[Outcome]:
        """Execute calls that `joins` has put together. If there are fewer outcomes, the calls after them did not run."""
        return [self.perform(call) for call in calls]

    def accepted(self, call: Call, outcome: Outcome) -> Outcome:  # noqa: ARG002 - for subclasses
        """Return the outcome that the caller gets. The actor may count as lost."""
        return outcome

    def interrupt(self, reason: str) -> None:  # noqa: B027 - there is nothing to end in the driver's own process
        """End the thread's wait, from another thread, because the actor is dead."""

    @property
    def computes(self) -> bool:
        """Whether code of the actor runs in this process now."""
        return False

    def report_answers(self) -> None:  # noqa: B027 - see above
        """Do work after a call that no caller waits for."""

    def leave(self) -> None:  # noqa: B027 - see above
        """Release the resources of the thread, at its end."""

    def _live(self) -> None:
        while (call := self._taken()) is not None:
            if self.died_s is None:
                try:
                    self._serve(call)
                except Exception as error:  # a call without an end would block the driver forever
                    self.fail(f"its call {call.method!r} broke off: {plain_text(f'{type(error).__name__}: {error}')}")
        self.leave()

    def fail(self, reason: str) -> None:
        """Count the actor as lost."""
        self._tracker.die(self, f"was lost: {reason}")

    def _taken(self) -> Call | None:
        return self._next.popleft() if self._next else self._queue.get()

    def _with_following(self, call: Call) -> list[Call]:
        """Return a call, and the calls after it that are executed together with it."""
        calls = [call]
        while True:
            if not self._next:
                try:
                    self._next.append(self._queue.get_nowait())
                except queue.Empty:
                    return calls
            following = self._next[0]
            if following is None or following.needs or not self.joins(calls, following):
                return calls
            calls.append(following)
            self._next.popleft()

    def _serve(self, call: Call) -> None:
        failure = self._constructor_failure or await_needs(call)
        began_s = time.monotonic()
        if failure is not None:
            self._end(call, Outcome(failure), began_s, began_s, began_s)
            return
        self._delay()
        if self.died_s is not None:
            return
        worked_s = time.monotonic()
        calls = self._with_following(call)
        outcomes = self.perform_joined(calls)
        self._next.extendleft(reversed(calls[len(outcomes) :]))  # they did not run, and are served next
        calls = calls[: len(outcomes)]
        self._hold_back_until_worked(worked_s)
        ended_s = self.heartbeat_s = time.monotonic()
        lasted = [outcome.lasted_s for outcome in outcomes]
        known_s = sum(each for each in lasted if each is not None)
        rest_s = 0.0 if None in lasted else max(ended_s - began_s - known_s, 0.0)
        started_s = began_s + rest_s / 2  # half of it before the work, half after it
        last_s = ended_s - rest_s / 2
        for place, (each, outcome) in enumerate(zip(calls, outcomes, strict=True)):
            end_s = last_s if place == len(calls) - 1 else min(started_s + (outcome.lasted_s or 0.0), last_s)
            self._end(each, self.accepted(each, outcome), began_s, end_s, started_s)
            began_s = started_s = end_s
        self.report_answers()

    def _end(self, call: Call, outcome: Outcome, began_s: float, ended_s: float, started_s: float) -> None:
        if call.method == CONSTRUCT:
            if isinstance(outcome.values, Failed):
                self._constructor_failure = outcome.values
            self.made_s = time.monotonic()
        self._tracker.end(self, call, outcome, began_s, ended_s, started_s)

    def _held_since(self, now_s: float) -> float | None:
        """Return since when messages are blocked, or None if they are not."""
        if self._disturbance is None or self._disturbance[0].what == "slow":
            return None
        disturbance, began_s = self._disturbance
        return began_s if now_s < began_s + disturbance.for_s else None

    def _delay(self) -> None:
        """Wait while the actor hangs or is cut off; it may die meanwhile."""
        with self._tracker.changed:
            while self.died_s is None and self._held_since(now_s := time.monotonic()) is not None:
                self._pause(now_s)

    def _hold_back_until_worked(self, worked_s: float) -> None:
        """Wait for the additional time that the finished work would have taken on a disturbed actor.

        Parameters
        ----------
        worked_s : time at which the work started.
        """
        if self._disturbance is None:
            return
        ended_s = time.monotonic()
        with self._tracker.changed:
            while self.died_s is None:
                now_s = time.monotonic()
                if self._held_since(now_s) is None and now_s >= self._slowed_end_s(worked_s, ended_s):
                    return
                self._pause(now_s, self._slowed_end_s(worked_s, ended_s))

    def _slowed_end_s(self, began_s: float, ended_s: float) -> float:
        if self._disturbance is None or self._disturbance[0].what != "slow":
            return ended_s
        disturbance, since_s = self._disturbance
        first_s = max(began_s, since_s)  # work before that was not slowed
        left_s, slowed_s = max(ended_s - first_s, 0.0), max(since_s + disturbance.for_s - first_s, 0.0)
        if left_s * disturbance.factor <= slowed_s:
            return first_s + left_s * disturbance.factor
        return first_s + slowed_s + left_s - slowed_s / disturbance.factor

    def _pause(self, now_s: float, until_s: float = 0.0) -> None:
        """Wait until something has changed or the disturbance is over."""
        assert self._disturbance is not None
        disturbance, began_s = self._disturbance
        end_s = until_s if disturbance.what == "slow" else began_s + disturbance.for_s
        self._tracker.changed.wait(min(max(end_s - now_s, 0.0), threading.TIMEOUT_MAX))


def opened(call: Call) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call with resolved refs, for the driver's process."""
    return [_opened(a) for a in call.args], {k: _opened(a) for k, a in call.kwargs.items()}


def _opened(argument: Any) -> Any:
    value = argument.outcome if type(argument) is Ref else argument
    assert isinstance(value, Value)
    return value.open()
