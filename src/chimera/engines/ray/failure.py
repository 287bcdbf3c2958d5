"""How a call fails: as a value that travels to all who depend on it, or as one of Ray's errors, translated."""

from __future__ import annotations

import pickle
import traceback
from typing import TYPE_CHECKING, Any

import cloudpickle

from chimera.core.errors import ActorError, ActorLost, RunError

if TYPE_CHECKING:
    from collections.abc import Callable


class Failure:
    """What stands in the place of a value: the exception where it can be pickled, and where it was raised."""

    def __init__(self, error: BaseException, actor: str, call: str) -> None:
        self.actor, self.call = actor, call
        self.traceback = _frames_of_the_user(error)
        self.kind, self.summary = type(error).__name__, str(error)
        self.pickled = _portable(error)

    def exception(self) -> BaseException:
        """Return what to raise: the original exception with an `ActorError` as its cause, or that error alone."""
        remote = ActorError(f"{self.actor}, call {self.call!r}: {self.kind}: {self.summary}\n\n{self.traceback}")
        if self.pickled is None:
            return remote
        error: BaseException = pickle.loads(self.pickled)
        error.__cause__ = remote
        return error


def translated(error: BaseException, call: str, name_of: Callable[[str], str | None]) -> BaseException:
    """Return the error of Chimera's that says what Ray's ``error`` says.

    Parameters
    ----------
    name_of : the name of an actor by its Ray id.
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


def _frames_of_the_user(error: BaseException) -> str:
    frames: Any = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__", "").startswith("chimera.engines.ray."):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))


def _portable(error: BaseException) -> bytes | None:
    """Pickle an exception, if what comes out again is of its type; some take other arguments than they pass on."""
    try:
        pickled = cloudpickle.dumps(error)
        return pickled if type(pickle.loads(pickled)).__name__ == type(error).__name__ else None
    except Exception:  # whatever a user's exception raises when it is pickled: its text travels all the same
        return None
