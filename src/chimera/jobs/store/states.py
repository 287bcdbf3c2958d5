"""States of a job, and the table of all transitions between them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from chimera.core.errors import ConflictError


class State(StrEnum):
    """State of a job."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Event(StrEnum):
    """Events that change the state of a job.

    - ``picked``: the queue selected the job; an attempt starts.
    - ``refused``: a worker or Ray is busy or missed the deadline; the job returns to the queue.
    - ``committed``: all workers are prepared, and the start of the attempt is recorded.
    - ``ended``: the attempt succeeded.
    - ``broke``: the attempt is lost; the next one resumes from the checkpoint.
    - ``failed``: the job failed permanently.
    - ``cancel``, ``retry``: requests of users.
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
        (State.QUEUED, Event.FAILED): State.FAILED,  # a job that it depends on failed
        (State.QUEUED, Event.CANCEL): State.CANCELLED,
        (State.STARTING, Event.REFUSED): State.QUEUED,
        (State.STARTING, Event.COMMITTED): State.RUNNING,
        (State.STARTING, Event.FAILED): State.FAILED,  # a worker does not meet the requirements
        (State.STARTING, Event.CANCEL): State.CANCELLED,
        (State.RUNNING, Event.ENDED): State.DONE,
        (State.RUNNING, Event.BROKE): State.QUEUED,
        (State.RUNNING, Event.REFUSED): State.QUEUED,  # Ray had no room
        (State.RUNNING, Event.FAILED): State.FAILED,
        (State.RUNNING, Event.CANCEL): State.CANCELLED,
        (State.FAILED, Event.RETRY): State.QUEUED,
        (State.CANCELLED, Event.RETRY): State.QUEUED,
    }
)
"""All transitions; any other event is an error."""

_PARTICIPLES = {
    Event.CANCEL: "cancelled",
    Event.RETRY: "retried: retry a job that has failed or was cancelled",
}
ACTIVE = frozenset({State.STARTING, State.RUNNING})
"""States in which a job has an attempt and workers."""
TERMINAL = frozenset({State.DONE, State.FAILED, State.CANCELLED})
"""Final states, which a job leaves only if a user retries it."""


def next_state(state: State, event: Event) -> State:
    """Return the state after an event.

    Raises
    ------
    ConflictError : the event is not possible in this state.
    """
    found = TRANSITIONS.get((state, event))
    if found is None:
        raise ConflictError(f"a job that is {state.value} cannot be {_PARTICIPLES.get(event, event.value)}")
    return found
