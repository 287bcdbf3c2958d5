"""Nodes of the simulated engine: the machines of actors and of the driver."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from chimera.core.call import ActorContext
from chimera.core.errors import ActorLost
from chimera.engines.simulated.health import UNDISTURBED

if TYPE_CHECKING:
    from chimera.engines.simulated.call import Call
    from chimera.engines.simulated.group import SimulatedGroup
    from chimera.engines.simulated.models.network import Port
    from chimera.engines.simulated.presence import Presence

NO_METHODS: Collection[str] = frozenset()


class Node:
    """The machine of one actor (or the driver's).

    Attributes
    ----------
    target : the actor itself, once it is constructed.
    failure : the exception of its constructor.
    free_s : when its last call ends.
    join_s, leave_s, crash_s : when it joins, leaves and crashes; `kill` is a crash.
    death_cause : the meaning of ``crash_s``: it crashed, was killed, or exited.
    factor : duration of a call here, as a multiple of that on the median machine.
    seconds_per_sample : duration of a call here per sample, before the factor.
    uploads : whether the actor is a client: its results leave as soon as they are computed, not when a call takes them.
    administrative : calls of a client by which the driver observes it or sets its state.
    presence : when the actor is on; None if it always is.
    queue : issued calls that cannot run yet: an argument is not computed, or an earlier call is suspended.
    suspended : the call that waits inside for a group, or for another actor.
    health : its disturbances other than death.
    stuck : computed calls that will not end, because an actor hangs; in order.
    """

    __slots__ = (
        "actor_context",
        "administrative",
        "calls",
        "crash_s",
        "death_cause",
        "factor",
        "failure",
        "free_s",
        "groups",
        "health",
        "join_s",
        "leave_s",
        "name",
        "port",
        "presence",
        "queue",
        "rank",
        "seconds_per_sample",
        "stuck",
        "suspended",
        "target",
        "uploads",
    )  # fmt: skip

    def __init__(self, name: str, rank: int, port: Port) -> None:
        self.name, self.rank, self.port = name, rank, port
        self.target: Any = None
        self.failure: BaseException | None = None
        self.free_s, self.join_s, self.leave_s, self.crash_s = 0.0, 0.0, math.inf, math.inf
        self.factor, self.seconds_per_sample, self.calls, self.death_cause = 1.0, 0.0, 0, "crashed"
        self.presence: Presence | None = None
        self.uploads, self.administrative = False, NO_METHODS
        self.actor_context = ActorContext()
        self.queue: deque[Call] = deque()
        self.suspended: Call | None = None
        # Attributes that most nodes do not need share one object, because a fetch of each node's own object is slow.
        self.health = UNDISTURBED
        self.stuck: Sequence[Call] = ()
        self.groups: Sequence[SimulatedGroup] = ()

    @property
    def blocked(self) -> bool:
        """Whether no further call can run here at present."""
        return self.suspended is not None or bool(self.stuck) or self.health.hung_s < math.inf

    @property
    def gone_s(self) -> float:
        """When the actor ends: at its crash, or when the last call before it left has ended."""
        return min(self.crash_s, max(self.leave_s, self.free_s) if self.leave_s < math.inf else math.inf)

    def refuses(self, start_s: float) -> bool:
        """Whether a call that starts then is too late."""
        return start_s >= self.crash_s or start_s > self.leave_s

    def begins_s(self, time_s: float) -> float:
        """Return the start time of work that is ready at ``time_s``."""
        begin_s = self.health.begins_s(time_s)
        return begin_s if self.presence is None else self.presence.begins_s(begin_s)

    def sends_s(self, time_s: float) -> float:
        """Return the time at which a value that is ready at ``time_s`` leaves the node."""
        leaves_s = self.health.sends_s(time_s)
        return leaves_s if self.presence is None else self.presence.leaves_s(leaves_s)

    def lost(self, call: Call) -> ActorLost:
        """Return the exception of the refs of ``call``, because the actor has ended."""
        how = self.death_cause if self.crash_s <= self.leave_s else "left"
        at_s = min(self.crash_s, self.leave_s)
        return ActorLost(f"{self.name} {how} at {at_s:g} s, before {call.method!r} had ended")
