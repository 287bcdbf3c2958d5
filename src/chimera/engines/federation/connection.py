"""The connection of one thread to one node, through the tunnel of its run."""

from __future__ import annotations

import math
import time

from chimera.core.errors import TimeLimitError
from chimera.engines.federation.calls import Call
from chimera.engines.federation.tunnel import WAIT_REPORT_LIMIT_S, Tunnel
from chimera.engines.http import connection as http
from chimera.engines.http.node import ACTORS

_TICK_S = 0.5


def _tick(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    return min(left_s, _TICK_S) if left_s > 0 else _TICK_S


class TunnelConnection:
    """The connection to one node through the tunnel, for one thread; see `chimera.engines.http.transport.Transport`.

    Parameters
    ----------
    policy_wait_s : seconds that a call of an actor may wait for the policy of its node. The creation of an actor has no limit.
    """

    waits = True

    def __init__(self, tunnel: Tunnel, node: str, policy_wait_s: float = math.inf) -> None:
        self._tunnel, self._node, self._policy_wait_s = tunnel, node, policy_wait_s
        self._broken_by: str | None = None
        self._current: Call | None = None

    def request(
        self,
        verb: str,
        path: str,
        body: bytes = b"",
        content_type: str = http.JSON,
        *,
        timeout_s: float,
        idempotent: bool,  # noqa: ARG002 - the node runs every call once
    ) -> http.Answer:
        """Send a request and return the answer; while the node is not connected, wait for it.

        The time limit does not pass while the call waits for the administrator or the policy of the node.

        Raises
        ------
        TimeLimitError : the request exceeded its time limit.
        Unreachable : the node was away for too long, or the request was broken off.
        InvalidAnswer : the answer is too large.
        """
        began_s = time.monotonic()
        deadline_s = began_s + timeout_s
        call = self._current = Call(self._node, verb, path, content_type, body)
        # A call waits even if the node is already away, for example to create the actor of a lost worker. Heartbeats do not.
        since_s = began_s if call.once else 0.0
        limit_s = math.inf if path.count("/") == ACTORS.count("/") + 1 else self._policy_wait_s
        self._tunnel.start(call)
        try:
            while not call.ended.wait(_tick(deadline_s)):
                if self._broken_by or (reason := self._tunnel.absent(self._node, since_s)):
                    raise http.Unreachable(self._broken_by or reason)
                if time.monotonic() - call.policy_s > limit_s:
                    self._tunnel.renew(self._node)  # the node did not cause this: its worker may start again
                    raise TimeLimitError(
                        f"{verb} {self._node}{path} waited for the policy of the node for {limit_s:g} s"
                    )
                if time.monotonic() >= max(deadline_s, call.waits_s + max(timeout_s, WAIT_REPORT_LIMIT_S)):
                    raise TimeLimitError(f"{verb} {self._node}{path} took longer than {timeout_s:g} s")
        finally:
            self._current = None
            if call.result is None:
                self._tunnel.drop(call)
        if call.result is None:
            raise call.failure or http.Unreachable(self._broken_by or "the request was broken off")
        return call.result

    @property
    def last_received_s(self) -> float:
        """The time at which the node last reported that the current request waits for its administrator or policy."""
        call = self._current
        return -math.inf if call is None else call.waits_s

    def break_off(self, reason: str) -> None:
        """Abort the current request, from another thread. It and all later requests raise `Unreachable`."""
        self._broken_by = reason
        call = self._current
        if call is not None:
            call.end(None, http.Unreachable(reason))

    def close(self) -> None:
        """Do nothing: the tunnel belongs to the engine."""
