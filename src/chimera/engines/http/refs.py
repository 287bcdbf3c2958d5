"""Refs, the calls that create them, and the tracker on which their ends are recorded."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from chimera.core.errors import ConfigurationError, TimeLimitError
from chimera.core.trace import TraceRow
from chimera.engines.handle import ActorHandle
from chimera.engines.http.failure import Failed, lost
from chimera.engines.http.values import Value

if TYPE_CHECKING:
    from chimera.engines.http.channels.channel import Channel


class Ref:
    """A future for a value, or for a failure in its place.

    Attributes
    ----------
    outcome : the value or failure; None while the ref is pending.
    ended : increases from ref to ref, in the order in which they were resolved.
    """

    __slots__ = ("__weakref__", "_callbacks", "_gate", "actor", "channel", "ended", "method", "outcome")

    def __init__(self, channel: Channel | None, method: str) -> None:
        self.channel, self.method = channel, method
        self.actor = "the driver" if channel is None else channel.name
        self.outcome: Value | Failed | None = None
        self.ended = 0
        self._gate = threading.Lock()
        self._gate.acquire()
        self._callbacks: list[Callable[[], None]] = []

    def await_outcome(self, timeout_s: float | None = None) -> Value | Failed | None:
        """Return the outcome, or None at the time limit."""
        if self.outcome is None and self._gate.acquire(timeout=-1 if timeout_s is None else max(timeout_s, 0.0)):
            self._gate.release()  # wakes the next waiting thread
        return self.outcome

    def resolve(self, outcome: Value | Failed, ended: int) -> None:
        """Resolve the ref with this outcome."""
        self.outcome, self.ended = outcome, ended
        self._gate.release()
        self._run_callbacks()

    def on_resolved(self, then: Callable[[], None]) -> None:
        """Call a function once, from any thread, when the ref is resolved; at once if it is already."""
        self._callbacks.append(then)
        if self.outcome is not None:
            self._run_callbacks()

    def _run_callbacks(self) -> None:
        while self._callbacks:
            with contextlib.suppress(IndexError):  # another thread was faster, and calls it
                self._callbacks.pop()()

    def __reduce__(self) -> tuple[Any, ...]:
        raise ConfigurationError("a ref travels as an argument of its own, not inside a list, a dict or an object")

    def __repr__(self) -> str:
        return f"<Ref to {self.method!r} of {self.actor}>"


class HttpActor(ActorHandle):
    """The handle of an actor of this engine."""

    def __reduce__(self) -> tuple[Any, ...]:
        raise ConfigurationError(
            f"the handle of {self.name} stays in the driver: actors over HTTP do not call one another"
        )


class Outcome(NamedTuple):
    """The outcome of a call.

    Attributes
    ----------
    values : one value for each ref, or one failure for all refs.
    lasted_s : seconds that the actor worked on the call; None: as long as the whole call.
    """

    values: Sequence[Value] | Failed
    lasted_s: float | None = None
    bytes_in: int = 0
    bytes_out: int = 0
    samples: int = 0


class Call:
    """A call in flight.

    Attributes
    ----------
    args, kwargs : values and refs.
    body : the part that was packed when the call was issued.
    needs : the refs among the arguments.
    """

    __slots__ = ("args", "body", "kwargs", "method", "needs", "refs", "returns")

    def __init__(
        self, channel: Channel, method: str, returns: int | None, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> None:
        self.method, self.returns, self.args, self.kwargs = method, returns, args, kwargs
        self.body: bytes | None = None
        self.needs = [a for a in (*args, *kwargs.values()) if type(a) is Ref]
        self.refs = [Ref(channel, method) for _ in range(returns or 1)]


class CallTracker:
    """The record of ended calls and dead actors.

    Attributes
    ----------
    deaths : the dead actors, in order.
    keeps_rows : whether the trace is kept.
    """

    def __init__(self, began_s: float, keeps_rows: bool) -> None:
        self.changed = threading.Condition()
        self.deaths: list[Channel] = []
        self.keeps_rows = keeps_rows
        self._began_s = began_s
        self._ended = self._waiting = 0

    def put(self, value: Any) -> Ref:
        """Return a resolved ref."""
        ref = Ref(None, "put")
        with self.changed:
            self._ended += 1
            ref.resolve(Value(value), self._ended)
        return ref

    def end(
        self, channel: Channel, call: Call, outcome: Outcome, began_s: float, ended_s: float, started_s: float
    ) -> None:
        """Resolve the refs of a call, unless its actor has died meanwhile.

        Parameters
        ----------
        began_s, started_s, ended_s : times on the monotonic clock at which the call was next, the actor started, and the result
            had arrived.
        """
        with self.changed:
            if channel.died_s is not None:
                return
            channel.calls.remove(call)
            self._stand(call, outcome.values)
            self._row(channel, call, outcome, began_s, ended_s, started_s)

    def die(self, channel: Channel, reason: str) -> bool:
        """Record a death once: pending refs of the actor fail. Return whether the death is new."""
        with self.changed:
            if channel.died_s is not None:
                return False
            channel.died_s, channel.death_cause = time.monotonic(), reason
            self.deaths.append(channel)
            calls, channel.calls = channel.calls, deque()
            for call in calls:
                self._lose(channel, call)
            self.changed.notify_all()
        return True

    def add(self, channel: Channel, call: Call) -> bool:
        """Record a new call; return whether its actor is alive."""
        with self.changed:
            if channel.died_s is None:
                channel.calls.append(call)
                return True
            self._lose(channel, call)
            return False

    def wait(self, refs: Sequence[Ref], count: int, deadline_s: float | None) -> tuple[list[Ref], list[Ref]]:
        """Return (done, pending) once ``count`` refs are done, or at the deadline."""
        count = min(count, len({id(ref) for ref in refs}))
        with self.changed:
            self._waiting += 1
            try:
                while len({id(ref) for ref in refs if ref.outcome is not None}) < count:
                    left_s = None if deadline_s is None else deadline_s - time.monotonic()
                    if left_s is not None and left_s <= 0:
                        break
                    self.changed.wait(left_s)
            finally:
                self._waiting -= 1
            done = sorted((ref for ref in refs if ref.outcome is not None), key=lambda ref: ref.ended)
            return done, [ref for ref in refs if ref.outcome is None]

    def await_all(self, refs: Sequence[Ref], deadline_s: float | None) -> None:
        """Wait until all refs are done, one of them is a failure, or the deadline has passed."""
        with self.changed:
            self._waiting += 1
            try:
                while first_failure(refs) is None:
                    left_s = None if deadline_s is None else deadline_s - time.monotonic()
                    if all(ref.outcome is not None for ref in refs) or (left_s is not None and left_s <= 0):
                        return
                    self.changed.wait(left_s)
            finally:
                self._waiting -= 1

    def _lose(self, channel: Channel, call: Call) -> None:
        text = f"{channel.name} {channel.death_cause}; the call {call.method!r} has no result"
        self._stand(call, lost(text))
        now_s = time.monotonic()
        self._row(channel, call, Outcome(lost(text)), now_s, now_s, now_s)

    def _stand(self, call: Call, values: Sequence[Value] | Failed) -> None:
        self._ended += 1
        for place, ref in enumerate(call.refs):
            ref.resolve(values if isinstance(values, Failed) else values[place], self._ended)
        if self._waiting:
            self.changed.notify_all()

    def _row(
        self, channel: Channel, call: Call, outcome: Outcome, began_s: float, ended_s: float, started_s: float
    ) -> None:
        if self.keeps_rows:
            row = TraceRow(
                actor=channel.name,
                rank=channel.rank,
                call=call.method,
                start_s=started_s - self._began_s,
                end_s=ended_s - self._began_s,
                bytes_in=outcome.bytes_in,
                bytes_out=outcome.bytes_out,
                transfer_s=started_s - began_s,
                samples=outcome.samples,
                error=outcome.values.kind if isinstance(outcome.values, Failed) else "",
            )
            channel.rows.append(row)


def first_failure(refs: Sequence[Ref]) -> Failed | None:
    """Return the first failure among the refs that are done, in the order of the refs; None if there is none."""
    return next((ref.outcome for ref in refs if isinstance(ref.outcome, Failed)), None)


def await_needs(call: Call) -> Failed | None:
    """Wait until the refs among the arguments are done, or one of them is a failure, which is returned. The thread wakes once.

    The wait needs no limit. Each ref ends with its call, whose request has a limit, or with the death of its actor: by a
    health check of the node, by `kill`, or with the engine. The wait also ends if the actor of this call dies, since its refs
    then fail.
    """
    pending = [ref for ref in call.needs if ref.outcome is None]
    if pending and first_failure(call.needs) is None:
        left = itertools.count(len(pending) - 1, -1)  # `next` is atomic between threads
        gate = threading.Lock()
        gate.acquire()

        def one_more(ref: Ref) -> None:
            if isinstance(ref.outcome, Failed) or next(left) == 0:
                with contextlib.suppress(RuntimeError):  # another failure has released it
                    gate.release()

        for ref in (*pending, call.refs[0]):
            ref.on_resolved(partial(one_more, ref))
        gate.acquire()
    return first_failure(call.needs)


def value_of(ref: Ref, deadline_s: float | None) -> Any:
    """Return the value of a ref, or raise the failure in its place.

    Raises
    ------
    TimeLimitError : the ref is pending at the deadline.
    """
    outcome = ref.await_outcome(None if deadline_s is None else deadline_s - time.monotonic())
    if outcome is None:
        raise TimeLimitError(f"{ref.method!r} of {ref.actor} did not end within its time limit")
    if isinstance(outcome, Failed):
        raise outcome.exception()
    return outcome.open()
