"""New times for calls that were computed ahead of the driver's clock, after a disturbance."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TypeAlias

from msgspec.structs import replace

from chimera.core.engine import Disturbance
from chimera.core.trace import TraceRow
from chimera.engines.simulated.call import Call
from chimera.engines.simulated.node import Node

Change: TypeAlias = Callable[[Call, float, float], tuple[float, float]]
"""Returns the new start and end of a call, from the call and its former start and end."""


def disturbed(node: Node, disturbance: Disturbance, now_s: float) -> Change:
    """Return the change of start and end times that a disturbance from now on causes for the calls of ``node``.

    - A hang lengthens the running call.
    - During a cut, the running call continues; its results are available after the cut.
    - A slow period does not change calls that meet others in groups, because their share of waiting is unknown.
    """
    over_s = now_s + disturbance.for_s

    def change(call: Call, start_s: float, end_s: float) -> tuple[float, float]:
        if call.node is not node:
            return start_s, end_s
        lasts_s = end_s - start_s
        if disturbance.what == "slow":
            left_s = end_s - max(start_s, now_s)
            if call.meetings or left_s <= 0 or start_s >= over_s:
                return start_s, end_s
            return start_s, node.health.ends_s(max(start_s, now_s), left_s)
        if now_s <= start_s < over_s:
            return over_s, over_s + lasts_s
        if start_s < now_s < end_s:
            return start_s, max(end_s, over_s) if disturbance.what == "cut off" else end_s + disturbance.for_s
        return start_s, end_s

    return change


def retime(calls: Sequence[Call], change: Change, since_s: float) -> None:
    """Apply ``change`` to ``calls``, and delay the calls that wait for them. Times until ``since_s`` do not change.

    A call starts when the previous call of its actor has ended and its arguments have arrived. Each argument is assumed to
    need the transfer time of the last one. Calls that met after ``since_s`` have the same delay. A call that will never end
    keeps its original times in ``planned``.
    """
    ordered = sorted(calls, key=attrgetter("order"))
    starts_s = {call: call.start_s for call in ordered}
    late_s = dict.fromkeys(ordered, 0.0)
    moving = True
    while moving:  # terminates: delays never decrease, and a meeting passes them on unchanged
        moving = False
        free_s: dict[Node, float] = {}
        for call in ordered:
            start_s, by_s = _moved(call, change, since_s, late_s, free_s)
            if call.start_s < math.inf or call.planned:
                free_s[call.node] = call.end_s + by_s
            if start_s != starts_s[call] or by_s > late_s[call]:
                starts_s[call], late_s[call], moving = start_s, by_s, True
    for call in ordered:
        _apply(call, starts_s[call], late_s[call], since_s)


def _moved(
    call: Call, change: Change, since_s: float, late_s: dict[Call, float], free_s: dict[Node, float]
) -> tuple[float, float]:
    """Return the new start of ``call``, and the delay of its end, by the delays of other calls that are known so far."""
    if call.end_s == math.inf:  # stuck already
        return call.start_s, late_s[call]
    awaited = [other for other in call.inputs if late_s.get(other)]
    if call.start_s == math.inf:  # the call fails, because an argument failed
        return call.start_s, max([0.0, *(other.end_s + late_s[other] - call.end_s for other in awaited)])
    arrivals_s = [
        other.end_s + late_s[other] + (0.0 if other.node is call.node else call.transit_s) for other in awaited
    ]
    start_s = max([call.start_s, free_s.get(call.node, 0.0), *arrivals_s])
    end_s = call.end_s if start_s == call.start_s else start_s + (call.end_s - call.start_s)
    start_s, end_s = change(call, start_s, end_s)
    by_s = max(end_s - call.end_s, late_s[call])
    for met_s, members in call.meetings.values():
        if met_s > since_s:
            by_s = max([by_s, *(late_s.get(member, 0.0) for member in members)])
    return start_s, by_s


def _apply(call: Call, start_s: float, late_s: float, since_s: float) -> None:
    if late_s == math.inf and call.planned is None:
        call.planned = call.start_s, call.end_s, call.known_s, call.meetings
    if late_s:
        call.meetings = {
            group: (met_s + late_s if met_s > since_s else met_s, members)
            for group, (met_s, members) in call.meetings.items()
        }
        call.end_s += late_s
        call.known_s += late_s
        if call.parts and late_s < math.inf:
            call.parts = [_delayed(part, late_s, since_s) for part in call.parts]
    call.start_s = start_s


def _delayed(part: TraceRow, late_s: float, since_s: float) -> TraceRow:
    """Return a part of a call that ends later by ``late_s`` if it was not over at ``since_s``."""
    if part.end_s <= since_s:
        return part
    starts_s = part.start_s + late_s if part.start_s > since_s else part.start_s
    return replace(part, start_s=starts_s, end_s=part.end_s + late_s)


def restore_planned(calls: Sequence[Call]) -> list[Call]:
    """Restore the original times of stuck calls; return these calls."""
    stuck = [call for call in calls if call.planned is not None]
    for call in stuck:
        assert call.planned is not None
        call.start_s, call.end_s, call.known_s, call.meetings = call.planned
        call.planned = None
    return stuck
