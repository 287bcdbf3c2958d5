"""Failures of calls in actors of other processes. A failure is a value that is sent to every dependent call."""

from __future__ import annotations

import traceback
from typing import Any

from chimera.core.errors import ActorError
from chimera.core.pickling import pickled_by_value, unpickled


class Failure:
    """A failure that replaces a value: the traceback, and the exception itself if it can be pickled.

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
        """Return the exception to raise: the original with an `ActorError` as its cause, or the `ActorError` alone."""
        remote = ActorError(f"{self.actor}, call {self.call!r}: {self.kind}: {self.summary}\n\n{self.traceback}")
        if self.pickled is None:
            return remote
        error: BaseException = unpickled(self.pickled)
        error.__cause__ = remote
        return error


def _frames_of_the_user(error: BaseException) -> str:
    """Format the traceback without the engine's own frames at its start."""
    frames: Any = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__", "").startswith("chimera.engines."):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))


def _portable(error: BaseException) -> bytes | None:
    """Pickle an exception; return None if unpickling does not restore its type.

    Some exception classes cannot be restored, because their constructor takes other arguments than they store.
    """
    try:
        pickled = pickled_by_value(error)
        return pickled if type(unpickled(pickled)).__name__ == type(error).__name__ else None
    except Exception:  # a user's exception may raise anything when it is pickled; its text is sent in any case
        return None
