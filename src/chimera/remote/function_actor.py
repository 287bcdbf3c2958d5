"""The actor that runs a worker's function, on a thread that is suspended between the actor's calls."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any

from chimera.core.engine import Group
from chimera.core.errors import ConfigurationError, RunError
from chimera.core.pickling import pickled_by_value
from chimera.engines.suspendable_thread import SuspendableThread
from chimera.remote.request import Request
from chimera.remote.worker import Worker

Step = tuple[Request, Any]
"""The function's request, and the value that it sends with it."""


class FunctionActor:
    """An actor that runs a function in steps: each call resumes the function, until it needs another worker.

    No call blocks inside the actor. The driver knows what every worker waits for, and passes refs from one to another.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self._execution = _Execution()
        self._worker = Worker(rank, world_size, self._execution.request)
        weakref.finalize(
            self, self._execution.call_thread.end
        )  # the function's thread holds no reference to this object

    def begin(self, function: Callable[..., Any], *args: Any) -> Step:
        """Call the function with a `Worker` and the arguments; return its first request."""
        worker = self._worker
        self._execution.call_thread.begin(lambda: ((function(worker, *args),), None))
        return self._last_step()

    def resume(self, *values: Any) -> Step:
        """Resume the function with the answer to its request: nothing, one value, or the values of all workers."""
        gathers = self._execution.step[0].kind == "gather"
        return self._resume(values if gathers else values[0] if values else None)

    def reduce(self, group: Group) -> Step:
        """All-reduce in the engine's group, and resume the function with the result."""
        array, op = self._execution.step[1]
        return self._resume(group.all_reduce(array, op))

    def end(self) -> None:
        """Unwind a function that will not be resumed."""
        self._execution.call_thread.end()

    def _resume(self, answer: Any) -> Step:
        self._execution.step, self._execution.answer = (Request("end"), None), answer  # frees the value that was sent
        self._execution.call_thread.resume(None)
        return self._last_step()

    def _last_step(self) -> Step:
        outcome, (request, value) = self._execution.call_thread.outcome, self._execution.step
        if outcome is None:
            return request, None if request.kind == "reduce" else value
        results, error = outcome
        if error is not None:
            error.__traceback__ = _below_the_actor(error.__traceback__)
        if isinstance(error, SystemExit):
            raise RunError(f"the function called sys.exit({error.code!r})") from error
        if error is not None:
            raise error
        return Request("end"), _pickled(results[0])


class _Execution:
    """The state of a function on its thread.

    Attributes
    ----------
    step, answer : its last request, and the answer to it.
    """

    def __init__(self) -> None:
        self.call_thread = SuspendableThread()
        self.step: Step = Request("end"), None
        self.answer: Any = None

    def request(self, request: Request, value: Any) -> Any:
        """Suspend the function until there is an answer. Only the function calls this."""
        if threading.current_thread() is not self.call_thread.thread:
            raise ConfigurationError("only the thread of the function may call the methods of its worker")
        self.step = request, value
        self.call_thread.suspend()
        answer, self.answer = self.answer, None
        return answer


def _below_the_actor(frames: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames above the user's function."""
    while frames is not None and frames.tb_frame.f_globals["__name__"] in (SuspendableThread.__module__, __name__):
        frames = frames.tb_next
    return frames


def _pickled(result: Any) -> bytes:
    """Return the pickled result. The caller unpickles it, so that it does not depend on the engine."""
    try:
        return bytes(pickled_by_value(result))
    except Exception as error:
        kind = type(result).__name__
        raise ConfigurationError(f"the function returned a {kind}, which cannot be pickled: {error}") from error
