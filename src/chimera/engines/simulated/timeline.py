"""The calls whose virtual times stand: those that still lie ahead of the driver's clock, and those that have ended."""

from __future__ import annotations

import math

from chimera.core.errors import ActorLost
from chimera.core.trace import TraceRow
from chimera.engines.simulated.call import Call, Node

_MANY = 4096


class Timeline:
    """Calls are computed before their time has come; until it has, a kill can still take them back."""

    def __init__(self) -> None:
        self._ahead: list[Call] = []
        self._ended: list[Call] = []
        self._settle_at = _MANY

    def add(self, call: Call) -> None:
        """Take in a call whose end is known, well or badly."""
        self._ahead.append(call)

    def settle(self, now_s: float, *, at_once: bool = False) -> bool:
        """Separate the calls that have ended, once there are many; return whether it was done."""
        if len(self._ahead) < self._settle_at and not at_once:
            return False
        ahead = []
        for call in self._ahead:
            if call.end_s > now_s:
                ahead.append(call)
                continue
            call.inputs, call.meetings = [], {}  # else each call would keep its whole past
            if call.start_s < math.inf:
                self._ended.append(call)
        self._ahead = ahead
        self._settle_at = 2 * len(ahead) + _MANY
        return True

    def take_rows(self, now_s: float) -> list[TraceRow]:
        """Return the rows of the calls that ended since the last time, by the time of their end."""
        self.settle(now_s, at_once=True)
        ended, self._ended = self._ended, []
        ended.sort(key=lambda call: (call.end_s, call.node.rank, call.start_s))
        return [call.row() for call in ended]

    def recall(self, node: Node, now_s: float, latency_s: float) -> None:
        """Undo what would have ended after ``node`` was killed now, and whatever depends on it.

        Who would have taken a lost result never runs; who would have met the dead actor in a group loses that call.
        """
        ahead = [call for call in self._ahead if call.end_s > now_s]
        lost = {call for call in ahead if call.node is node and not call.error}
        for call in lost:
            _cut(call, node.lost(call), now_s, now_s)
        found = bool(lost)
        while found:
            found = False
            for call in ahead:
                if call in lost:
                    continue
                if (source := next((other for other in call.inputs if other in lost), None)) is not None:
                    _cut(call, source.error, now_s, now_s + latency_s)
                elif any(end_s > now_s and not lost.isdisjoint(calls) for end_s, calls in call.meetings.values()):
                    error = ActorLost(f"{node.name} was killed at {now_s:g} s, and {call.node.name} met it in a group")
                    _cut(call, error, max(call.start_s, now_s + latency_s), now_s + 2 * latency_s)
                else:
                    continue
                lost.add(call)
                found = True
        for other in {call.node for call in lost}:
            other.free_s = max((c.end_s for c in ahead if c.node is other and c.start_s < math.inf), default=now_s)


def _cut(call: Call, error: BaseException | None, end_s: float, known_s: float) -> None:
    call.error, call.end_s, call.known_s = error, end_s, max(end_s, known_s)
    if call.start_s > end_s:
        call.start_s = math.inf  # it never ran
