"""The engine's protocol: where actors run, in eight verbs (docs/architecture.md, section 3).

Every engine promises: (1) an actor runs one call at a time; those of one caller, the driver or another actor, in the order
it issued them; (2) a value, once
returned or put, never changes; (3) a call on a dead actor raises `ActorLost` from its refs, and so do refs that depend on
them; (4) an exception in an actor arrives as itself, with an `ActorError` that carries the remote traceback as its cause;
(5) `wait` with a time limit returns by that limit; (6) every call leaves a `TraceRow`; (7) `close` leaves nothing behind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Protocol, Self, overload

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError
from chimera.core.registry import Registry
from chimera.core.trace import TraceRow


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What an actor needs of its machine.

    Attributes
    ----------
    threads : how many threads its arithmetic may use.
    gpus : how many GPUs are its own (engines that place actors on machines).
    memory_mb : how much memory, in MB of 10^6 bytes. On ``local`` its process cannot come to use more of its own beyond
        what it began with (by the Linux kernel; what it shares with others is not counted); Ray reserves it on a machine.
    custom : other resources by name (engines that know them).
    """

    threads: int = 1
    gpus: float = 0.0
    memory_mb: float | None = None
    custom: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Disturbance:
    """What can go wrong with an actor short of its death; for experiments and tests.

    Attributes
    ----------
    what : ``hang``: it does nothing more; ``slow``: whatever it does takes ``factor`` times as long; ``cut off``: nothing
        reaches it and nothing comes from it. Where actors are processes, a cut one is stopped: from outside it is the same.
    factor : of ``slow``, at least 1.
    for_s : how long, in the engine's seconds; after that the actor goes on where it was.
    """

    what: Literal["hang", "slow", "cut off"]
    factor: float = 4.0
    for_s: float = math.inf

    def __post_init__(self) -> None:
        if self.what not in ("hang", "slow", "cut off"):
            raise ConfigurationError(f"a disturbance is 'hang', 'slow' or 'cut off', not {self.what!r}")
        if not 1 <= self.factor < math.inf:
            raise ConfigurationError(f"a disturbance's factor must be at least 1 and finite, not {self.factor!r}")
        if not self.for_s > 0:
            raise ConfigurationError(f"a disturbance's for_s must be above zero, not {self.for_s!r}")


class Ref(Protocol):
    """A future for a value that may never visit the driver. Give it as an argument and it is resolved where the actor runs."""


class Actor(Protocol):
    """A handle on an object that runs somewhere else. Any other attribute is a method that returns a `Ref` at once.

    ``actor.method(*args, **kwargs)`` returns one ref; with ``returns=n``, also with n = 1, the method must return n values,
    and n refs come back in a list. Refs among the arguments are resolved; refs inside lists or dicts are not.

    A handle may travel to other actors, anywhere inside an argument. There it is the same: a call returns a ref at once,
    which may be given to further calls of that actor, and `chimera.core.call.get` waits for values. A ref that is dropped
    costs nothing more, and the call runs all the same.
    """

    @property
    def name(self) -> str:
        """The name it was spawned under."""

    def __getattr__(self, method: str) -> Callable[..., Any]: ...


class Group(Protocol):
    """Collectives between actors: give it to a method of every member; there each call blocks until all members made it.

    A member that dies makes the others raise `ActorLost`.
    """

    @property
    def size(self) -> int:
        """How many members."""

    def all_reduce(self, array: NDArray[np.float32], op: Literal["mean", "sum"] = "mean") -> NDArray[np.float32]:
        """Reduce in place over all members, in rank order; every member gets the same bits. Returns ``array``."""

    def broadcast(self, array: NDArray[np.float32], root: int = 0) -> NDArray[np.float32]:
        """Fill ``array`` with that of member ``root``, in place. Returns ``array``."""

    def barrier(self) -> None:
        """Return when all members have arrived."""


class Engine(Protocol):
    """Where actors run. Also a context manager that closes itself.

    Attributes
    ----------
    nodes_own_data : whether workers are made where they have a model and data of their own, and are sent neither; elsewhere
        both come from the driver.
    one_process : whether all actors live in the driver's process, where one call runs at a time.
    virtual_time : whether the seconds of `now` come from a model of the machines, and not from a clock.
    """

    nodes_own_data: bool
    one_process: bool
    virtual_time: bool

    def reserve(self, resources: Sequence[Resources], timeout_s: float | None = None) -> None:
        """Hold room for actors that need these, all or none; spawns with equal resources then take it.

        An engine whose room has no limit has nothing to do. ``timeout_s`` is how long to wait for room, by default the
        engine's own; with 0 it only looks whether there is some now.

        Raises
        ------
        TimeLimitError : there was no room in time; says what was asked and what is free.
        """

    def spawn(
        self,
        actor_type: Callable[..., Any],
        /,
        *args: Any,
        resources: Resources | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Start an actor and return its handle at once. If its constructor raises, its first call raises that."""

    def put(self, value: Any) -> Any:
        """Store a value once, for any number of actors to read."""

    @overload
    def get(self, refs: Sequence[Any], timeout_s: float | None = None) -> list[Any]: ...
    @overload
    def get(self, refs: Any, timeout_s: float | None = None) -> Any: ...
    def get(self, refs: Any, timeout_s: float | None = None) -> Any:
        """Return the value of a ref, or the values of a sequence in order; raise what the actor raised.

        Raises
        ------
        TimeLimitError : ``timeout_s`` passed.
        ActorLost : the actor died before the value stood.
        """

    def wait(self, refs: Iterable[Any], count: int = 1, timeout_s: float | None = None) -> tuple[list[Any], list[Any]]:
        """Return (done, pending) once ``count`` refs are done (well or badly) or the time is over.

        ``done`` holds every ref known to be done, in the order in which they were done; ``pending`` keeps the order given.
        """

    def group(self, actors: Sequence[Any]) -> Any:
        """Make a group of these actors; their order is their rank in it."""

    def kill(self, actor: Any) -> None:
        """End an actor at once. Its refs that do not stand yet raise `ActorLost`."""

    def disturb(self, actor: Any, disturbance: Disturbance) -> None:
        """Let something go wrong with an actor, from when this returns; a dead one is left in peace.

        A later disturbance of the same actor takes the place of the former.
        """

    def silent(self, after_s: float) -> list[Any]:
        """Return the handles of living actors that have given no sign of life for ``after_s`` seconds.

        An actor gives one whenever it begins or ends a call, declares `work`, meets a group, or wakes while it waits: for
        calls, for arguments, for a group. One that computes for long inside one call looks the same as one that hangs. Who
        has not begun yet, because its process starts or its constructor runs, is not silent. Below 1 s or so it says little:
        signs are given, and seen, now and then.
        """

    def now(self) -> float:
        """Seconds since the engine began; virtual on the simulated engine."""

    def close(self) -> None:
        """End everything it started. Idempotent."""

    def trace(self) -> list[TraceRow]:
        """Return the rows of the calls that ended since the last time, oldest first per actor."""

    def lost(self) -> list[Any]:
        """Return the handles of all actors known to be dead, whoever killed them, in the order of their deaths."""

    def state(self) -> dict[str, Any]:
        """Return, as plain values, what of the engine itself decides how a run goes on; nothing where time is real."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` returned, once the same actors are there."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


ENGINES: Registry[Engine] = Registry("engine", "chimera.engines")
