"""Translation of Ray's errors to Chimera's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chimera.core.errors import ActorError, ActorLost, RunError

if TYPE_CHECKING:
    from collections.abc import Callable


def translated(error: BaseException, call: str, name_of: Callable[[str], str | None]) -> BaseException:
    """Return Chimera's error for Ray's ``error``.

    Parameters
    ----------
    name_of : returns the name of an actor by its Ray id.
    """
    from ray import exceptions

    cause = error
    while isinstance(cause, exceptions.RayTaskError) and isinstance(cause.cause, BaseException):
        cause = cause.cause
    if isinstance(cause, exceptions.RayActorError):
        name = name_of(str(cause.actor_id)) if cause.actor_id else None
        return ActorLost(f"{name or 'an actor'} died; the call {call!r} has no result")
    gone = (exceptions.ObjectLostError, exceptions.NodeDiedError, exceptions.WorkerCrashedError)
    if isinstance(cause, gone):
        return ActorLost(f"the node that held a value of the call {call!r} died with it")
    if isinstance(cause, exceptions.RayError):
        return RunError(f"Ray could not carry out the call {call!r}: {cause}")
    remote = ActorError(f"call {call!r}: {type(cause).__name__}: {cause}\n\n{error}")
    cause.__cause__ = remote
    return cause
