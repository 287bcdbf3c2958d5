"""The way of one thread to one node, through the tunnel of its run."""

from __future__ import annotations

import time

from chimera.core.errors import TimeLimitError
from chimera.engines.federation.calls import Call
from chimera.engines.federation.tunnel import Tunnel
from chimera.engines.http import connection as http

_TICK_S = 0.5
_SAYS_S = 10.0  # a node says each second that a call waits for its administrator


def _tick(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    return min(left_s, _TICK_S) if left_s > 0 else _TICK_S


class TunnelConnection:
    """The way to one node through the tunnel, for one thread; see `chimera.engines.http.transport.Transport`."""

    waits = True

    def __init__(self, tunnel: Tunnel, node: str) -> None:
        self._tunnel, self._node = tunnel, node
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

        The time limit does not pass while the call waits for the administrator of the node.

        Raises
        ------
        TimeLimitError : the request exceeded its time limit.
        Unreachable : the node was away for too long, or the request was broken off.
        InvalidAnswer : the answer is too large.
        """
        began_s = time.monotonic()
        deadline_s = began_s + timeout_s
        call = self._current = Call(self._node, verb, path, content_type, body)
        # A call waits for a node that is away already, such as one that creates the actor of a lost worker again. A heartbeat
        # does not wait: it states what is known.
        since_s = began_s if call.once else 0.0
        self._tunnel.start(call)
        try:
            while not call.ended.wait(_tick(deadline_s)):
                if self._broken_by or (why := self._tunnel.absent(self._node, since_s)):
                    raise http.Unreachable(self._broken_by or why)
                if time.monotonic() >= max(deadline_s, call.waits_s + max(timeout_s, _SAYS_S)):
                    raise TimeLimitError(f"{verb} {self._node}{path} took longer than {timeout_s:g} s")
        finally:
            self._current = None
            if call.result is None:
                self._tunnel.drop(call)
        if call.result is None:
            raise call.failure or http.Unreachable(self._broken_by or "the request was broken off")
        return call.result

    def break_off(self, why: str) -> None:
        """Abort the current request, from another thread. It and all later requests raise `Unreachable`."""
        self._broken_by = why
        call = self._current
        if call is not None:
            call.end(None, http.Unreachable(why))

    def close(self) -> None:
        """Do nothing: the tunnel belongs to the engine."""
