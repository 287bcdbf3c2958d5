"""The calls with known virtual times: calls that end after the driver's current time, and calls that have ended."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from operator import attrgetter
from typing import Any

from msgspec.structs import asdict

from chimera.core.engine import Disturbance
from chimera.core.errors import ActorLost
from chimera.core.trace import TraceRow
from chimera.engines.simulated.call import NOTHING, Call
from chimera.engines.simulated.node import Node
from chimera.engines.simulated.retiming import Change, disturbed, restore_planned, retime

_MANY = 4096
_NONE: Set[Node] = frozenset()


class Timeline:
    """The calls in virtual time. Calls are computed ahead of the driver's clock; until their end, a kill can undo them."""

    def __init__(self) -> None:
        self._ahead: list[Call] = []
        self.add = self._ahead.append  # adds a call whose end is known, successful or failed
        self._ended: list[TraceRow] = []
        self._announced: list[
            TraceRow
        ] = []  # rows of calls that were in flight at the checkpoint from which a run resumed
        self._settle_at = _MANY

    def settle_if_many(self, now_s: float) -> Set[Node]:
        """Move the ended calls to the trace if there are many calls; return the nodes of these calls."""
        if len(self._ahead) < self._settle_at:
            return _NONE
        ended = [call for call in self._ahead if call.end_s <= now_s]
        nodes = {call.node for call in ended} | {call.sender for call in ended}
        self.settle(now_s)
        return nodes

    def settle(self, now_s: float) -> None:
        """Move the ended calls to the trace."""
        ahead, rows = [], self._ended
        for call in self._ahead:
            if call.end_s > now_s:
                ahead.append(call)
                continue
            call.inputs, call.meetings = (), NOTHING  # otherwise each call would hold all earlier calls in memory
            if call.start_s < math.inf:
                rows += call.rows()
        self._ahead[:] = ahead
        self._settle_at = 2 * len(ahead) + _MANY

    def take_rows(self, now_s: float) -> list[TraceRow]:
        """Return the rows of the calls that ended since the last `take_rows`, ordered by end time."""
        self.settle(now_s)
        ended, self._ended = self._ended, []
        if self._announced:
            ended += [row for row in self._announced if row.end_s <= now_s]
            self._announced = [row for row in self._announced if row.end_s > now_s]
        ended.sort(key=attrgetter("end_s", "rank", "start_s"))
        return ended

    def in_flight(self) -> list[dict[str, Any]]:
        """Return the rows of calls that have begun and end later, as plain values."""
        rows = [row for call in self._ahead if call.start_s < call.end_s < math.inf for row in call.rows()]
        return [asdict(row) for row in (*self._announced, *rows)]

    def announce(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows that `in_flight` returned in an earlier process; each is part of the trace from its end on."""
        self._announced = [TraceRow(**row) for row in rows]

    def disturb(self, node: Node, disturbance: Disturbance, now_s: float) -> None:
        """Change the times of the future calls of ``node``, and of calls that wait for them, for a disturbance from now on."""
        self._retime(disturbed(node, disturbance, now_s), now_s, now_s)

    def recall(self, node: Node, now_s: float, latency_s: float, hung: Sequence[Node] = ()) -> None:
        """Undo the calls that would have ended after the loss of ``node`` now, and the calls that depend on them.

        - A call that needs a lost result never runs.
        - A call that would have met the dead actor in a group fails.
        - A call that was only queued behind these continues, unless it waits for another actor in ``hung``.
        """
        since_s = min(now_s, node.health.hung_s)
        ahead = [call for call in self._ahead if call.end_s > now_s]
        waiting = {call for call in ahead if call.start_s == math.inf}
        stuck = restore_planned(ahead)
        lost = {call for call in ahead if call.node is node and (not call.error or call in stuck)}
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
                elif any(end_s > since_s and not lost.isdisjoint(calls) for end_s, calls in call.meetings.values()):
                    error = ActorLost(
                        f"{node.name} {node.death_cause} at {now_s:g} s, and {call.node.name} met it in a group"
                    )
                    _cut(call, error, max(call.start_s, now_s + latency_s), now_s + 2 * latency_s)
                else:
                    continue
                lost.add(call)
                found = True
        for call in lost & waiting:
            call.start_s = math.inf  # a hang had prevented its start
        self._set_free({call.node for call in lost}, now_s)
        if released := {call for call in stuck if call not in lost}:
            self._release(released & waiting, since_s, now_s, hung)

    def resume_hung(self, node: Node, hung_s: float, now_s: float, hung: Sequence[Node]) -> None:
        """Resume ``node`` after a hang, and the calls that waited for it, unless they wait for another actor in ``hung``."""
        restore_planned(self._ahead)
        if hung_s < now_s:
            self._retime(disturbed(node, Disturbance("hang", for_s=now_s - hung_s), hung_s), hung_s, now_s)
        self._hang_again(hung, now_s)

    def _release(self, waiting: set[Call], since_s: float, now_s: float, hung: Sequence[Node]) -> None:
        """Start stuck calls now and end the calls that met them, unless they wait for another hung actor."""

        def go_on(call: Call, start_s: float, end_s: float) -> tuple[float, float]:
            begins_s = max(start_s, now_s) if call in waiting else start_s
            return begins_s, begins_s + (end_s - start_s) if begins_s > start_s else end_s

        self._retime(go_on, since_s, now_s)
        self._hang_again(hung, now_s)

    def _hang_again(self, hung: Sequence[Node], now_s: float) -> None:
        for other in hung:
            hang = Disturbance("hang")
            self._retime(disturbed(other, hang, other.health.hung_s), other.health.hung_s, now_s)

    def _retime(self, change: Change, since_s: float, now_s: float) -> None:
        ahead = [call for call in self._ahead if call.end_s > since_s]
        retime(ahead, change, since_s)
        self._set_free({call.node for call in ahead}, now_s)

    def _set_free(self, nodes: set[Node], now_s: float) -> None:
        """Set for each node the end time of its last call, and its calls that never end."""
        for node in nodes:
            node.free_s, node.stuck = now_s, ()
        for call in self._ahead:
            node = call.node
            if node in nodes and call.end_s > now_s:
                if call.end_s == math.inf:
                    node.stuck = [*node.stuck, call]
                elif call.start_s < math.inf:
                    node.free_s = max(node.free_s, call.end_s)
        for node in nodes:
            node.stuck = sorted(node.stuck, key=attrgetter("order"))


def _cut(call: Call, error: BaseException | None, end_s: float, known_s: float) -> None:
    call.error, call.end_s, call.known_s = error, end_s, max(end_s, known_s)
    if call.start_s > end_s:
        call.start_s = math.inf  # it never ran
