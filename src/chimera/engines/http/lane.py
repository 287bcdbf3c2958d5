"""An actor as the driver keeps it: its calls, the thread that makes them one after the other, and what disturbs it."""

from __future__ import annotations

import math
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from typing import Any

from chimera.core.engine import Disturbance
from chimera.core.trace import TraceRow
from chimera.engines.http.failure import Failed, plain_text
from chimera.engines.http.refs import Board, Call, Outcome, Ref
from chimera.engines.http.values import Value

CONSTRUCT = "__init__"


class Lane(ABC):
    """One actor.

    Attributes
    ----------
    calls : those that have not ended, oldest first.
    rows : of the trace, not yet fetched.
    died_s, fate : when it was known to be dead, and how it died.
    sign_s : when it gave its last sign of life.
    made_s : when the actor was made; infinite before.
    """

    def __init__(self, board: Board, name: str, rank: int) -> None:
        self.name, self.rank = name, rank
        self.calls: deque[Call] = deque()
        self.rows: list[TraceRow] = []
        self.died_s: float | None = None
        self.fate = "lives"
        self.sign_s = time.monotonic()
        self.made_s = math.inf
        self._board = board
        self._queue: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._unmade: Failed | None = None
        self._disturbance: tuple[Disturbance, float] | None = None
        self.thread = threading.Thread(target=self._live, name=f"chimera-{name}", daemon=True)

    def issue(self, call: Call) -> None:
        """Let the actor run a call after those that were issued before."""
        if self._board.add(self, call):
            self._queue.put(call)

    def end(self) -> None:
        """Let the thread end, after the call under way."""
        self._queue.put(None)

    def disturb(self, disturbance: Disturbance) -> None:
        """Let something go wrong from now on: what comes and goes is held back on this side of the wire."""
        with self._board.changed:
            self._disturbance = disturbance, time.monotonic()
            self._board.changed.notify_all()

    def silent_s(self, now_s: float) -> float:
        """Return for how long it has given no sign of life."""
        if self.died_s is not None or self.made_s == math.inf:
            return 0.0
        held = self._held_since(now_s)
        return now_s - (self.last_sign_s(now_s) if held is None else held)

    def prepare(self, call: Call) -> None:
        """Do what must be done with the arguments before the driver may change them."""
        call.args = tuple(a if type(a) is Ref else Value(a) for a in call.args)
        call.kwargs = {k: a if type(a) is Ref else Value(a) for k, a in call.kwargs.items()}

    @abstractmethod
    def last_sign_s(self, now_s: float) -> float:
        """Return when it gave its last sign of life."""

    @abstractmethod
    def perform(self, call: Call) -> Outcome:
        """Run one call, in this lane's thread; the refs among its arguments stand."""

    def interrupt(self, why: str) -> None:  # noqa: B027 - there is nothing to end in the driver's own process
        """End what the thread waits for, from another thread, because the actor is dead."""

    @property
    def computes(self) -> bool:
        """Whether code of the actor runs in this process now."""
        return False

    def tidy(self) -> None:  # noqa: B027 - see above
        """Do what nobody waits for, after a call."""

    def leave(self) -> None:  # noqa: B027 - see above
        """Let go of what the thread had, at its end."""

    def _live(self) -> None:
        while (call := self._queue.get()) is not None:
            if self.died_s is None:
                try:
                    self._serve(call)
                except Exception as error:  # a call without an end would let the driver wait for ever
                    self.fail(f"its call {call.method!r} broke off: {plain_text(f'{type(error).__name__}: {error}')}")
        self.leave()

    def fail(self, why: str) -> None:
        """Count the actor as lost."""
        self._board.die(self, f"was lost: {why}")

    def _serve(self, call: Call) -> None:
        failure = self._unmade
        for ref in call.needs:
            outcome = ref.await_outcome()
            if failure is None and isinstance(outcome, Failed):
                failure = outcome
        began_s = ended_s = started_s = time.monotonic()
        if failure is not None:
            outcome_ = Outcome(failure)
        else:
            self._hold_back()
            if self.died_s is not None:
                return
            worked_s = time.monotonic()
            outcome_ = self.perform(call)
            self._hold_back_until_worked(worked_s)
            ended_s = time.monotonic()
            rest_s = 0.0 if outcome_.lasted_s is None else max(ended_s - began_s - outcome_.lasted_s, 0.0)
            started_s = began_s + rest_s / 2  # half of it before the work, half after it
            ended_s -= rest_s / 2
            self.sign_s = time.monotonic()
        if call.method == CONSTRUCT:
            if isinstance(outcome_.values, Failed):
                self._unmade = outcome_.values
            self.made_s = time.monotonic()
        self._board.end(self, call, outcome_, began_s, ended_s, started_s)
        self.tidy()

    def _held_since(self, now_s: float) -> float | None:
        """Return since when nothing comes and goes; None if it does."""
        if self._disturbance is None or self._disturbance[0].what == "slow":
            return None
        disturbance, began_s = self._disturbance
        return began_s if now_s < began_s + disturbance.for_s else None

    def _hold_back(self) -> None:
        """Wait while the actor hangs or is cut off; it may die meanwhile."""
        with self._board.changed:
            while self.died_s is None and self._held_since(now_s := time.monotonic()) is not None:
                self._pause(now_s)

    def _hold_back_until_worked(self, worked_s: float) -> None:
        """Wait until what has just been done would have been done, had it been disturbed where it was done.

        Parameters
        ----------
        worked_s : when the work began.
        """
        if self._disturbance is None:
            return
        ended_s = time.monotonic()
        with self._board.changed:
            while self.died_s is None:
                now_s = time.monotonic()
                if self._held_since(now_s) is None and now_s >= self._slowed_end_s(worked_s, ended_s):
                    return
                self._pause(now_s, self._slowed_end_s(worked_s, ended_s))

    def _slowed_end_s(self, began_s: float, ended_s: float) -> float:
        if self._disturbance is None or self._disturbance[0].what != "slow":
            return ended_s
        disturbance, since_s = self._disturbance
        first_s = max(began_s, since_s)  # what was done before that was not slowed
        left_s, slowed_s = max(ended_s - first_s, 0.0), max(since_s + disturbance.for_s - first_s, 0.0)
        if left_s * disturbance.factor <= slowed_s:
            return first_s + left_s * disturbance.factor
        return first_s + slowed_s + left_s - slowed_s / disturbance.factor

    def _pause(self, now_s: float, until_s: float = 0.0) -> None:
        """Wait until something has changed or the disturbance is over."""
        assert self._disturbance is not None
        disturbance, began_s = self._disturbance
        end_s = until_s if disturbance.what == "slow" else began_s + disturbance.for_s
        self._board.changed.wait(min(max(end_s - now_s, 0.0), threading.TIMEOUT_MAX))


def opened(call: Call) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call whose refs stand, for the driver's own process."""
    return [_opened(a) for a in call.args], {k: _opened(a) for k, a in call.kwargs.items()}


def _opened(argument: Any) -> Any:
    value = argument.outcome if type(argument) is Ref else argument
    assert isinstance(value, Value)
    return value.open()
