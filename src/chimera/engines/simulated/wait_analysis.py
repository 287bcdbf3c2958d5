"""Analysis of waiting calls: the calls and actors for which they wait, and the deaths that end the wait."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

from chimera.engines.simulated.call import Call
from chimera.engines.simulated.group import SimulatedGroup
from chimera.engines.simulated.messages import Awaited
from chimera.engines.simulated.node import Node


def losses(hung: Iterable[Node], groups: Iterable[SimulatedGroup]) -> Iterator[tuple[float, Node]]:
    """Yield each future death that ends a wait: its time and its node.

    Parameters
    ----------
    hung : nodes with stuck calls.
    groups : groups in which a member waits.
    """
    for node in hung:
        yield min(node.crash_s, node.leave_s), node
    for group in dict.fromkeys(groups):
        missing = group.missing()
        for node in group.nodes:
            absent = node in missing and node.suspended is None
            yield min(node.crash_s, node.leave_s) if absent else node.crash_s, node


def explain(
    call: Call,
    suspended: Mapping[Call, SimulatedGroup | Awaited],
    awaited_by: Callable[[Call], Call | None],
    limit: int,
) -> str:
    """Describe the calls and actors for which the driver would wait forever.

    Parameters
    ----------
    suspended : the collective or the messages for which a call waits, if any.
    awaited_by : the call on another actor for which a call waits, if any.
    limit : number of actors, at which the search ends if calls wait in a circle.
    """
    steps: list[str] = []
    while call not in suspended:
        if call.node.health.hung_s < math.inf:
            return "; ".join([*steps, f"{call.method!r} of {call.node.name} does not end: {_hangs(call)}"])
        blocker = awaited_by(call) or _blocker(call)
        if blocker is None or len(steps) > limit:
            return "; ".join([*steps, f"{call.method!r} of {call.node.name} was interrupted"])
        steps.append(f"{call.method!r} of {call.node.name} waits for {blocker.method!r} of {blocker.node.name}")
        call = blocker
    missing = ", ".join(
        f"{node.name}, which hangs" if node.health.hung_s < math.inf else node.name
        for node in suspended[call].missing()
    )
    return "; ".join([*steps, f"{call.method!r} of {call.node.name} waits in a group for {missing}"])


def _hangs(call: Call) -> str:
    return f"{call.node.name} hangs since {call.node.health.hung_s:g} s"


def _blocker(call: Call) -> Call | None:
    """Return the call for which ``call`` waits: at a group, for an argument, or because it comes before on its actor."""
    node = call.node
    group_calls = [other for _, members in call.meetings.values() for other in members if other is not call]
    hung = [other for other in group_calls if other.node.health.hung_s < math.inf]
    awaited = [other for other in call.inputs if other.end_s == math.inf]
    behind = [other for other in (node.suspended, *node.stuck[:1]) if other is not None and other is not call]
    late = [other for other in group_calls if other.end_s == math.inf]
    first = [*hung, *awaited, *behind, *late, *(other for other in node.queue if not other.ready)]
    return first[0] if first else None
