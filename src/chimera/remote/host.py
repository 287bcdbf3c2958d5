"""The actor that runs a worker's function: on a thread of its own, which stands still between the actor's calls."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any

from chimera.core.engine import Group
from chimera.core.errors import ConfigurationError, RunError
from chimera.core.pickling import pickled_by_value
from chimera.engines.strand import Strand
from chimera.remote.wish import Wish
from chimera.remote.worker import Worker

Step = tuple[Wish, Any]
"""What the function asks for, and the value that goes with it."""


class Host:
    """Runs a function up to the next point where it needs another worker; each call goes on from there to the next.

    So no call ever waits inside, and the driver, which knows what every worker waits for, hands refs from one to the other.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self._progress = _Progress()
        self._worker = Worker(rank, world_size, self._progress.ask)
        weakref.finalize(self, self._progress.strand.end)  # the function's thread knows nothing of this object

    def begin(self, function: Callable[..., Any], *args: Any) -> Step:
        """Call the function with a `Worker` and the arguments; return what it asks for first."""
        worker = self._worker
        self._progress.strand.begin(lambda: ((function(worker, *args),), None))
        return self._came_to()

    def resume(self, *values: Any) -> Step:
        """Go on with what was asked for: nothing, one value, or those of all workers."""
        gathers = self._progress.step[0].kind == "gather"
        return self._go_on(values if gathers else values[0] if values else None)

    def reduce(self, group: Group) -> Step:
        """Meet the other workers in the engine's group, and go on with what came of it."""
        array, op = self._progress.step[1]
        return self._go_on(group.all_reduce(array, op))

    def end(self) -> None:
        """Unwind a function that will not go on."""
        self._progress.strand.end()

    def _go_on(self, answer: Any) -> Step:
        self._progress.step, self._progress.answer = (Wish("end"), None), answer  # what was sent is not kept
        self._progress.strand.resume(None)
        return self._came_to()

    def _came_to(self) -> Step:
        outcome, (wish, value) = self._progress.strand.outcome, self._progress.step
        if outcome is None:
            return wish, None if wish.kind == "reduce" else value
        results, error = outcome
        if error is not None:
            error.__traceback__ = _from_the_function(error.__traceback__)
        if isinstance(error, SystemExit):
            raise RunError(f"the function left by sys.exit({error.code!r})") from error
        if error is not None:
            raise error
        return Wish("end"), _pickled(results[0])


class _Progress:
    """How far a function is, on its thread.

    Attributes
    ----------
    step, answer : what it asked for last, and what it gets.
    """

    def __init__(self) -> None:
        self.strand = Strand()
        self.step: Step = Wish("end"), None
        self.answer: Any = None

    def ask(self, wish: Wish, value: Any) -> Any:
        """Stand still until there is an answer; called by the function."""
        if threading.current_thread() is not self.strand.thread:
            raise ConfigurationError("a worker can be asked by the thread of its function only")
        self.step = wish, value
        self.strand.suspend()
        answer, self.answer = self.answer, None
        return answer


def _from_the_function(frames: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames that led to the user's function."""
    while frames is not None and frames.tb_frame.f_globals["__name__"] in (Strand.__module__, __name__):
        frames = frames.tb_next
    return frames


def _pickled(result: Any) -> bytes:
    """Return a result as the caller unpickles it: its own, whatever becomes of the engine."""
    try:
        return bytes(pickled_by_value(result))
    except Exception as error:
        kind = type(result).__name__
        raise ConfigurationError(f"the function returned a {kind}, which cannot be pickled: {error}") from error
