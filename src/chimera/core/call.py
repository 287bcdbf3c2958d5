"""What code that runs inside an actor may ask of the engine around it, without knowing which engine that is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError


@dataclass(slots=True)
class Work:
    """What the current call has declared to have done."""

    samples: int = 0
    elements: int = 0
    effort: float = 0.0


class Surroundings:
    """The engine as an actor sees it. Each engine sets its own; this one, plain memory, is for code outside any engine.

    Attributes
    ----------
    bandwidth_bytes_s : of the link over which the actor sends, where the engine knows it.
    """

    bandwidth_bytes_s: float | None = None

    def __init__(self) -> None:
        self.work = Work()

    def alive(self) -> None:
        """Take note that the actor goes on; called often, so it must cost next to nothing."""

    def empty(self, size: int) -> NDArray[np.float32]:
        """Return uninitialised float32 memory that collectives of this engine can reach without a copy."""
        return np.empty(size, np.float32)

    def get(self, refs: Any, timeout_s: float | None = None) -> Any:  # noqa: ARG002 - there is nothing to wait for
        """Wait for what this actor has called on others."""
        raise ConfigurationError(
            "get waits inside a call of an actor; outside of actors it is the engine's: engine.get"
        )

    def afterwards(self, prepare: Callable[[], None]) -> None:
        """See `afterwards` of this module; here there is no time between two calls."""


_surroundings = Surroundings()


def work(*, samples: int = 0, elements: int = 0, effort: float | None = None) -> None:
    """Declare what the running call does: ``samples`` processed, ``elements`` of vectors touched.

    The simulated engine charges virtual time for it; every engine counts the samples in the trace, and takes it as a sign
    of life. ``effort`` is for whoever does but a part of what samples cost: as many samples as it is worth.
    """
    _surroundings.alive()
    _surroundings.work.samples += samples
    _surroundings.work.elements += elements
    _surroundings.work.effort += samples if effort is None else effort


def empty(size: int) -> NDArray[np.float32]:
    """Return uninitialised float32 memory, shape (size,), that this actor's collectives reach without a copy."""
    return _surroundings.empty(size)


def get(refs: Any, timeout_s: float | None = None) -> Any:
    """Return the value of a ref that this actor holds, or the values of a sequence in order; raise what the callee raised.

    An actor that was given the handle of another calls it as the driver does: ``handle.method(...)`` returns a ref at
    once, which may be an argument of further calls that the same actor makes. An actor that waits for a call on itself, or
    for one that waits for it in turn, would wait for ever: the former is an error at once, the latter where the engine
    can see it.

    Raises
    ------
    TimeLimitError : ``timeout_s`` passed.
    ActorLost : the actor that was called is dead.
    RunError : this would wait for ever.
    """
    return _surroundings.get(refs, timeout_s)


def afterwards(prepare: Callable[[], None]) -> None:
    """Let ``prepare`` run once the result of the running call is known to whoever waits for it, before the next call.

    It is for what the next call would begin with, and gets the time in which the actor waits for its arguments. It may never
    run, and is in no row of the trace. What it raises is dropped: the next call is to do without it.
    """
    _surroundings.afterwards(prepare)


def bandwidth_bytes_s() -> float | None:
    """Return the speed of the link over which this actor sends, or None where nobody knows it."""
    return _surroundings.bandwidth_bytes_s


def current() -> Surroundings:
    """Return the surroundings of this process; for engines."""
    return _surroundings


def enter(surroundings: Surroundings) -> Surroundings:
    """Set the surroundings of this process, and return the ones before; for engines."""
    global _surroundings
    before, _surroundings = _surroundings, surroundings
    return before


def take_work() -> Work:
    """Return what was declared since the last time, and begin anew; for engines, around each call."""
    done, _surroundings.work = _surroundings.work, Work()
    return done


def nbytes(value: Any) -> int:
    """How many bytes of array data ``value`` holds, through tuples, lists and dicts; a scalar or a string counts 8."""
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
