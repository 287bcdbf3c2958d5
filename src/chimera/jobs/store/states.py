"""The states of a job, and the one table of what leads from each to which."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from chimera.core.errors import ConflictError


class State(StrEnum):
    """Where a job stands."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Event(StrEnum):
    """What happens to a job.

    ``picked`` from the queue, an attempt begins · ``refused``: a worker or Ray has no place, or is late; back to the queue
    · ``committed``: all its workers are ready, and from here on the attempt counts · ``ended`` well · ``broke``: the attempt is
    lost, and the next one goes on from the checkpoint · ``failed`` for good · ``cancel`` and ``retry`` come from people.
    """

    PICKED = "picked"
    REFUSED = "refused"
    COMMITTED = "committed"
    ENDED = "ended"
    BROKE = "broke"
    FAILED = "failed"
    CANCEL = "cancel"
    RETRY = "retry"


TRANSITIONS: Mapping[tuple[State, Event], State] = MappingProxyType(
    {
        (State.QUEUED, Event.PICKED): State.STARTING,
        (State.QUEUED, Event.FAILED): State.FAILED,  # what it is after has failed
        (State.QUEUED, Event.CANCEL): State.CANCELLED,
        (State.STARTING, Event.REFUSED): State.QUEUED,
        (State.STARTING, Event.COMMITTED): State.RUNNING,
        (State.STARTING, Event.FAILED): State.FAILED,  # a worker lacks what the job needs, and always will
        (State.STARTING, Event.CANCEL): State.CANCELLED,
        (State.RUNNING, Event.ENDED): State.DONE,
        (State.RUNNING, Event.BROKE): State.QUEUED,
        (State.RUNNING, Event.REFUSED): State.QUEUED,  # what runs it beyond this machine had no room
        (State.RUNNING, Event.FAILED): State.FAILED,
        (State.RUNNING, Event.CANCEL): State.CANCELLED,
        (State.FAILED, Event.RETRY): State.QUEUED,
        (State.CANCELLED, Event.RETRY): State.QUEUED,
    }
)
"""All that can happen; anything else is an error."""

_DONE_TO = {
    Event.CANCEL: "cancelled",
    Event.RETRY: "retried: retry a job that has failed or was cancelled",
}
UNDER_WAY = frozenset({State.STARTING, State.RUNNING})
"""In these a job has an attempt, and workers."""
OVER = frozenset({State.DONE, State.FAILED, State.CANCELLED})
"""In these a job stays, unless a person retries it."""


def following(state: State, event: Event) -> State:
    """Return the state that an event leads to.

    Raises
    ------
    ConflictError : it cannot happen in this state.
    """
    found = TRANSITIONS.get((state, event))
    if found is None:
        raise ConflictError(f"a job that is {state.value} cannot be {_DONE_TO.get(event, event.value)}")
    return found
