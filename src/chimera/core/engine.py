"""The engine protocol: where actors run, in eight verbs (docs/architecture.md, section 3).

Every engine promises:

1. An actor runs one call at a time. Calls of one caller, the driver or another actor, run in the order of issue.
2. A value never changes after it was returned or put.
3. A call on a dead actor raises `ActorLost` from its refs, and so do refs that depend on them.
4. An exception in an actor is raised as itself. Its cause is an `ActorError` with the remote traceback.
5. `wait` with a time limit returns by that limit.
6. Every call leaves a `TraceRow`.
7. `close` leaves nothing that the engine started.
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
    """Resources of the machine that an actor needs.

    Attributes
    ----------
    threads : number of threads for its arithmetic.
    gpus : number of GPUs for it alone (engines that place actors on machines).
    memory_mb : memory in MB of 10^6 bytes. On ``local`` the Linux kernel limits its process to this much private
        memory, besides the memory that it has at its start. Ray reserves the memory on a machine.
    custom : other resources by name (engines that know them).
    """

    threads: int = 1
    gpus: float = 0.0
    memory_mb: float | None = None
    custom: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Disturbance:
    """A fault of an actor other than its death; for experiments and tests.

    Attributes
    ----------
    what : ``hang``: it stops working. ``slow``: all its work takes ``factor`` times as long. ``cut off``: no message reaches it
        or leaves it. If actors are processes, an actor that is cut off is stopped, which has the same effect on others.
    factor : factor of ``slow``, at least 1.
    for_s : duration in the engine's seconds; the actor then continues its work.
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
    """A future for a value that may never reach the driver. As an argument, it is resolved where the called actor runs."""


class Actor(Protocol):
    """A handle on an object in another place. Any attribute other than `name` is a method that returns a `Ref` at once.

    ``actor.method(*args, **kwargs)`` returns one ref. With ``returns=n``, also with n = 1, the method must return n values, and
    the call returns a list of n refs. Refs among the arguments are resolved; refs inside lists or dicts are not.

    A handle may be sent to other actors, anywhere inside an argument, and works there in the same way. A call returns a ref at
    once; the calling actor may pass it to further calls, and waits for values by `chimera.core.call.get`. A call runs even if
    its ref is dropped.
    """

    @property
    def name(self) -> str:
        """The name given at spawn."""

    def __getattr__(self, method: str) -> Callable[..., Any]: ...


class Group(Protocol):
    """Collectives and messages between actors. Pass it to a method of every member.

    A collective blocks until all members have called it. If a member dies, the others raise `ActorLost`.
    """

    @property
    def size(self) -> int:
        """The number of members."""

    def all_reduce(self, array: NDArray[np.float32], op: Literal["mean", "sum"] = "mean") -> NDArray[np.float32]:
        """Reduce in place over all members, in rank order; all members get the same bits. Return ``array``."""

    def broadcast(self, array: NDArray[np.float32], root: int = 0) -> NDArray[np.float32]:
        """Copy ``array`` of member ``root`` to all members, in place. Return ``array``."""

    def barrier(self) -> None:
        """Return when all members have arrived."""

    def send(self, values: Mapping[int, Any]) -> None:
        """Send a value to each of these members, by rank: either all of them can receive theirs, or none can.

        Arrays and encoded messages travel without pickle, and arrays in memory of `chimera.core.call.empty` without a copy. Do
        not change an array until the member has answered, i.e. until `receive` has returned its next value.
        Between two values for the same member, receive an answer, in this group or another one: a value that the other member
        sent after it had received the first one.
        """

    def receive(self, members: Sequence[int], count: int | None = None) -> dict[int, Any]:
        """Wait for the next value of each of these members, or of the first ``count`` of them; return the values by rank.

        The values are in the order of ``members`` if all are awaited. Arrays are read-only, and may be read until this member
        answers the sender, in this group or another one. Values that were sent before a death can be received.

        Raises
        ------
        ActorLost : a member of the group died before enough values were sent.
        """


class Engine(Protocol):
    """The place where actors run. Also a context manager that closes itself.

    An engine that models absences also has ``connected(actor)``, which returns whether an actor can be reached now. Its
    attribute ``keeps_work`` states whether `state` includes the work of actors; a checkpoint then need not wait for
    them. The class attribute ``administrative`` of an actor names the calls that such an engine answers also while the
    actor is absent.

    Attributes
    ----------
    nodes_own_data : whether workers are created where they have a model and data of their own. On other engines the driver
        sends both.
    one_process : whether all actors are in the driver's process, where one call runs at a time.
    servers_in_groups : whether servers and workers exchange messages in groups, many rounds in one call (decisions/0066).
    virtual_time : whether the seconds of `now` come from a model of the machines, and not from a clock.
    """

    nodes_own_data: bool
    one_process: bool
    servers_in_groups: bool
    virtual_time: bool

    def reserve(self, resources: Sequence[Resources], timeout_s: float | None = None) -> None:
        """Reserve room for actors with these resources, all or none; spawns with equal resources then use it.

        An engine without limits does nothing. ``timeout_s`` is the number of seconds to wait for room; default: the engine's
        own. With 0 the call only checks whether there is room now.

        Raises
        ------
        TimeLimitError : there was no room in time; the message states the request and what is free.
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
        """Start an actor and return its handle at once. If its constructor raises, its first call raises that error."""

    def put(self, value: Any) -> Any:
        """Store a value once, for any number of readers."""

    @overload
    def get(self, refs: Sequence[Any], timeout_s: float | None = None) -> list[Any]: ...
    @overload
    def get(self, refs: Any, timeout_s: float | None = None) -> Any: ...
    def get(self, refs: Any, timeout_s: float | None = None) -> Any:
        """Return the value of a ref, or the values of a sequence in order; raise what the actor raised.

        Raises
        ------
        TimeLimitError : ``timeout_s`` passed.
        ActorLost : the actor died before the value was available.
        """

    def wait(self, refs: Iterable[Any], count: int = 1, timeout_s: float | None = None) -> tuple[list[Any], list[Any]]:
        """Return (done, pending) when ``count`` refs have a value or an error, or after ``timeout_s`` seconds.

        ``done`` holds every ref known to be done, in the order of completion; ``pending`` keeps the order given.
        """

    def group(self, actors: Sequence[Any]) -> Any:
        """Return a group of these actors; their order gives their ranks."""

    def kill(self, actor: Any) -> None:
        """End an actor at once. Its refs without a value raise `ActorLost`."""

    def disturb(self, actor: Any, disturbance: Disturbance) -> None:
        """Start a disturbance of an actor before returning; a dead actor is ignored.

        A later disturbance of the same actor replaces an earlier one.
        """

    def silent(self, after_s: float) -> list[Any]:
        """Return the handles of living actors that have given no sign of life for ``after_s`` seconds.

        An actor gives a sign of life when it begins or ends a call, declares `work` or enters a collective. It also
        gives one at intervals while it waits for calls, arguments or a group. An actor that computes for long within
        one call cannot be distinguished from one that hangs. An actor whose process starts or whose constructor runs is
        not silent. Values of ``after_s`` below about 1 are unreliable: signs are given and read at intervals.
        """

    def now(self) -> float:
        """Return the seconds since the start of the engine; virtual on the simulated engine."""

    def close(self) -> None:
        """End everything that the engine started. Idempotent."""

    def trace(self) -> list[TraceRow]:
        """Return the rows of the calls that ended since the last call of `trace`, oldest first for each actor."""

    def lost(self) -> list[Any]:
        """Return the handles of all dead actors, for any cause, in the order of their deaths."""

    def state(self) -> dict[str, Any]:
        """Return, as plain values, the state of the engine that decides how a run continues; empty if time is real."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned, after the same actors were spawned."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


ENGINES: Registry[Engine] = Registry("engine", "chimera.engines", family="engines")
