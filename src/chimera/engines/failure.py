"""How a call fails in an actor that lives in another process: as a value that travels to all who depend on it."""

from __future__ import annotations

import traceback
from typing import Any

from chimera.core.errors import ActorError
from chimera.core.pickling import pickled_by_value, unpickled


class Failure:
    """What stands in the place of a value: the exception where it can be pickled, and where it was raised.

    Attributes
    ----------
    kind, summary : the exception's type and text.
    """

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
        error: BaseException = unpickled(self.pickled)
        error.__cause__ = remote
        return error


def _frames_of_the_user(error: BaseException) -> str:
    """Format the traceback from the actor's own code on."""
    frames: Any = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__", "").startswith("chimera.engines."):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))


def _portable(error: BaseException) -> bytes | None:
    """Pickle an exception, if what comes out again is of its type; some take other arguments than they pass on."""
    try:
        pickled = pickled_by_value(error)
        return pickled if type(unpickled(pickled)).__name__ == type(error).__name__ else None
    except Exception:  # whatever a user's exception raises when it is pickled: its text travels all the same
        return None
