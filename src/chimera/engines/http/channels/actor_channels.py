"""Actors in the driver's process, and the common part of actors in nodes: see `hosted_channel` and `routed_channel`."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from chimera.core import call as actor_context
from chimera.core.errors import TimeLimitError
from chimera.engines.handle import CONSTRUCT, results
from chimera.engines.http import wire
from chimera.engines.http.channels.channel import Channel, opened
from chimera.engines.http.connection import Answer, InvalidAnswer, Unreachable
from chimera.engines.http.failure import Failed, lost, raised_by
from chimera.engines.http.node import Node
from chimera.engines.http.refs import Call, CallTracker, Outcome, Ref
from chimera.engines.http.transport import Transport
from chimera.engines.http.values import Value, size_of
from chimera.engines.thread_context import ThreadContext, enter_thread

_FIRST_RETRY_DELAY_S = 0.1  # the first pause; each further one is twice as long, up to a second


class DriverChannel(Channel):
    """An actor in the driver's process."""

    def __init__(self, tracker: CallTracker, name: str, rank: int, actor_type: Callable[..., Any]) -> None:
        super().__init__(tracker, name, rank)
        self._type = actor_type
        self._target: Any = None
        self._actor_context = ThreadContext()
        self._entered = False

    def last_heartbeat_s(self, now_s: float) -> float:
        """Return the current time between calls, and otherwise the last heartbeat of the running call."""
        return self._actor_context.heartbeat_s or now_s

    @property
    def computes(self) -> bool:
        """Whether code of the actor runs in this process now."""
        return self._actor_context.heartbeat_s is not None

    def perform(self, call: Call) -> Outcome:
        """Execute a call."""
        if not self._entered:
            enter_thread(self._actor_context)
            self._entered = True
        args, kwargs = opened(call)
        own = [type(a) is Ref and a.channel is self for a in (*call.args, *call.kwargs.values())]
        received = [a for a, mine in zip((*args, *kwargs.values()), own, strict=True) if not mine]
        self._actor_context.heartbeat_s = time.monotonic()
        values: list[Value] | Failed
        try:
            values = [Value(value) for value in self._results(call, args, kwargs)]
        except (Exception, SystemExit) as error:  # any exception of a user's actor is the result of its call
            values = raised_by(error, self.name, call.method)
        self._actor_context.heartbeat_s = None
        samples = actor_context.take_work().samples
        out = 0 if isinstance(values, Failed) else sum(value.nbytes for value in values)
        return Outcome(values, None, size_of(received), out, samples)

    def _results(self, call: Call, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
        if call.method == CONSTRUCT:
            self._target = self._type(*args, **kwargs)
            return [None]
        return results(getattr(self._target, call.method)(*args, **kwargs), self.name, call.method, call.returns)

    def leave(self) -> None:
        """Release the actor."""
        self._target = None


class RemoteChannel(Channel):
    """An actor in a node.

    Parameters
    ----------
    timeout_s : time limit of a call, in seconds.
    retries : number of times that a call is sent again after a failure of the connection.
    on_answer : called with the URL and the seconds of each answered request, after the waiting caller has the answer.
    """

    def __init__(
        self,
        tracker: CallTracker,
        name: str,
        rank: int,
        node: Node,
        *,
        timeout_s: float,
        retries: int,
        on_answer: Callable[[str, float], None] | None,
    ) -> None:
        super().__init__(tracker, name, rank)
        self.node = node
        self._timeout_s, self._retries, self._on_answer = timeout_s, retries, on_answer
        self._connection: Transport = node.connection()
        self._answered: deque[tuple[str, float]] = deque()
        self.key: str | None = None  # the actor's name on a node that hosts it
        self.called_s: float | None = None  # when the current request was sent
        self._retries_left = 0  # retries of the current request, also in the pause before it is sent again
        self._attempted: Call | None = None  # the last call for which a request was sent

    def last_heartbeat_s(self, now_s: float) -> float:
        """Return the last heartbeat of the node or the actor. During a call, a reachable node does not count as one."""
        last_received_s = self._connection.last_received_s if self.called_s is not None else self.node.seen_s(now_s)
        return max(self.heartbeat_s, last_received_s)

    def interrupt(self, reason: str) -> None:
        """Abort the current request."""
        self._connection.break_off(reason)

    @property
    def tries_again(self) -> bool:
        """Whether the request of the current or the first call will be sent, or sent again; not while it waits for values."""
        if self._retries_left > 0 or (self._connection.waits and self.made_s == math.inf):
            return True
        oldest = next(iter(self.calls.copy()), None)
        if oldest is None:
            return self._retries > 0 and self._attempted is None
        return self._retries > 0 and oldest is not self._attempted and not oldest.needs

    def report_answers(self) -> None:
        """Report the received answers."""
        while self._answered and self._on_answer is not None:
            self._on_answer(*self._answered.popleft())

    def leave(self) -> None:
        """Close the connection."""
        self._connection.close()

    def ask(self, verb: str, path: str, body: bytes, content_type: str, *, idempotent: bool) -> Answer:
        """Send a request; send it again after a failure of the connection, while retries are left.

        Raises
        ------
        TimeLimitError, Unreachable, InvalidAnswer : see `Connection.request`; the error of the last attempt.
        """
        try:
            return self._send_repeatedly(verb, path, body, content_type, idempotent=idempotent)
        finally:
            self._retries_left = 0

    def _send_repeatedly(self, verb: str, path: str, body: bytes, content_type: str, *, idempotent: bool) -> Answer:
        self._attempted = next(iter(self.calls.copy()), None)
        for left in reversed(range(self._retries + 1)):
            self._retries_left = left
            self.heartbeat_s = self.called_s = time.monotonic()
            try:
                answer = self._connection.request(
                    verb, path, body, content_type, timeout_s=self._timeout_s, idempotent=idempotent
                )
            except (TimeLimitError, Unreachable, InvalidAnswer):
                if not left or self.died_s is not None:
                    raise
            else:
                if self._on_answer is not None:
                    self._answered.append((self.node.url + path, time.monotonic() - self.called_s))
                if not left or answer.status < 500 or answer.content_type == wire.CONTENT_TYPE:
                    return answer
            finally:
                self.called_s = None
            time.sleep(min(_FIRST_RETRY_DELAY_S * 2.0 ** (self._retries - left), 1.0))
        raise AssertionError("one try is always left")

    def fail(self, reason: str) -> None:
        """Count the actor as lost."""
        self.mark_dead(f"at {self.node.url} was lost: {reason}")

    def mark_dead(self, reason: str) -> Failed:
        """Count the actor as dead, and return the exception for the current call."""
        self.node.doubt()
        if self._tracker.die(self, reason):
            self.node.leave(self)
        return lost(f"{self.name} {self.death_cause}")
