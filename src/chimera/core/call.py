"""Functions of the surrounding engine for code inside an actor, independent of the engine."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError


@dataclass(slots=True)
class Work:
    """The work that the current call has declared.

    Attributes
    ----------
    coded : messages and elements that each codec encoded or decoded, by its name and ``encode`` or ``decode``.
    """

    samples: int = 0
    elements: int = 0
    effort: float = 0.0
    batches: int = 0
    coded: dict[tuple[str, str], tuple[int, int]] | None = None


class ActorContext:
    """The engine as an actor sees it. Each engine sets its own; this class, with plain memory, is for code outside any engine.

    Attributes
    ----------
    bandwidth_bytes_s : bandwidth of the link over which the actor sends, in bytes per second; None if unknown.
    """

    bandwidth_bytes_s: float | None = None

    def __init__(self) -> None:
        self.work = Work()

    def alive(self) -> None:
        """Record a sign of life of the actor. Calls are frequent, so this must be fast."""

    def empty(self, size: int) -> NDArray[np.float32]:
        """Return uninitialised float32 memory that collectives of this engine reach without a copy."""
        return np.empty(size, np.float32)

    def get(self, refs: Any, timeout_s: float | None = None) -> Any:  # noqa: ARG002 - there is nothing to wait for
        """Wait for results of calls of this actor on others."""
        raise ConfigurationError(
            "get waits inside a call of an actor; outside of actors it is the engine's: engine.get"
        )

    def afterwards(self, prepare: Callable[[], None]) -> None:
        """See `afterwards` of this module; outside an engine there is no time between two calls."""

    def now(self) -> float:
        """Return the seconds of the clock of this actor's rows."""
        return time.monotonic()

    def record(self, name: str, began_s: float) -> None:
        """See `record` of this module; outside an engine there is no trace."""


class Preparation:
    """The part of an actor's context that runs a function between two calls, for engines whose actors have their own loop."""

    _next: Callable[[], None] | None = None

    def afterwards(self, prepare: Callable[[], None]) -> None:
        """Keep the function for `prepare`."""
        self._next = prepare

    def prepare(self) -> None:
        """Run the function that the last call registered, before the next call."""
        prepare, self._next = self._next, None
        if prepare is not None:
            with contextlib.suppress(Exception):  # the call that needs the result raises the same error
                prepare()


_actor_context = ActorContext()


def work(*, samples: int = 0, elements: int = 0, effort: float | None = None) -> None:
    """Declare the work of the running call: ``samples`` processed, and ``elements`` of vectors read or written.

    The simulated engine charges virtual time for it. Every engine counts the samples in the trace, and records a sign of life.
    ``effort`` is the equivalent number of samples, for a call that does only a part of the work of its samples.
    """
    actor_context = _actor_context
    actor_context.alive()
    done = actor_context.work
    done.elements += elements
    if samples:
        done.samples += samples
        done.batches += 1
    done.effort += samples if effort is None else effort


def coded(codec: str, action: str, elements: int) -> None:
    """Declare that the running call has encoded, decoded or reduced (``action``) a vector of ``elements`` with a codec."""
    done = _actor_context.work
    if done.coded is None:
        done.coded = {}
    messages, before = done.coded.get((codec, action), (0, 0))
    done.coded[codec, action] = messages + 1, before + elements


def empty(size: int) -> NDArray[np.float32]:
    """Return uninitialised float32 memory, shape (size,), that this actor's collectives reach without a copy."""
    return _actor_context.empty(size)


def get(refs: Any, timeout_s: float | None = None) -> Any:
    """Return the value of a ref that this actor holds, or the values of a sequence in order; raise what the callee raised.

    An actor with a handle of another actor calls it as the driver does: ``handle.method(...)`` returns a ref at once. The actor
    may pass the ref to its further calls. An actor must not wait for a call on itself, nor for an actor that waits for
    it: the wait would never end. The first case raises at once, the second one if the engine can detect it.

    Raises
    ------
    TimeLimitError : ``timeout_s`` passed.
    ActorLost : the called actor is dead.
    RunError : the wait would never end.
    """
    return _actor_context.get(refs, timeout_s)


def afterwards(prepare: Callable[[], None]) -> None:
    """Run ``prepare`` after the result of the running call was delivered, and before the next call.

    ``prepare`` prepares the next call while the actor waits for the arguments of that call. It may never run, and no
    row of the trace includes it. Its exceptions are dropped: the next call must work without it.
    """
    _actor_context.afterwards(prepare)


def now() -> float:
    """Return the current time, in seconds of a clock of this actor, for `record`."""
    return _actor_context.now()


def record(name: str, began_s: float) -> None:
    """Add a row named ``name`` to the trace, for a part of the running call that began at ``began_s`` and ends now.

    The row has the bytes, waits and samples since the last row, so ``began_s`` precedes these waits. The row of the call then
    covers the remainder only.
    """
    _actor_context.record(name, began_s)


def bandwidth_bytes_s() -> float | None:
    """Return the bandwidth of the link over which this actor sends, in bytes per second; None if unknown."""
    return _actor_context.bandwidth_bytes_s


def current() -> ActorContext:
    """Return the `ActorContext` of this process; for engines."""
    return _actor_context


def enter(actor_context: ActorContext) -> ActorContext:
    """Set the `ActorContext` of this process, and return the previous one; for engines."""
    global _actor_context
    before, _actor_context = _actor_context, actor_context
    return before


def take_work() -> Work:
    """Return the work declared since the last time, and reset it; for engines, around each call."""
    done, _actor_context.work = _actor_context.work, Work()
    return done


def nbytes(value: Any) -> int:
    """Return the bytes of array data in ``value``, through tuples, lists and dicts; a scalar or a string counts 8."""
    size = getattr(value, "nbytes", None)
    if isinstance(size, int):
        return size
    if isinstance(value, bytes | bytearray):
        return len(value)
    if isinstance(value, tuple | list):
        return sum(map(nbytes, value))
    if isinstance(value, dict):
        return sum(map(nbytes, value.values()))
    return 0 if value is None else 8
