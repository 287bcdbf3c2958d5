"""Calls, refs and handles of the simulated engine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from chimera.core.trace import TraceRow
from chimera.engines.simulated.node import Node
from chimera.engines.stored import Stored

if TYPE_CHECKING:
    from chimera.engines.simulated.engine import Simulated
    from chimera.engines.simulated.group import SimulatedGroup
    from chimera.engines.simulated.presence import Presence
    from chimera.engines.suspendable_thread import SuspendableThread

CONSTRUCTOR = "__init__"  # the call that creates an actor

Meetings: TypeAlias = "Mapping[SimulatedGroup, tuple[float, list[Call]]]"

_SIZES = {type(None): 0, bool: 8, int: 8, float: 8, str: 8}  # sizes of plain values, as `nbytes` counts them
_size_of = _SIZES.__getitem__
_NEVER = math.inf, math.inf, math.inf
NO_PARTS: list[TraceRow] = []  # shared, and never changed
NOTHING: Mapping[Any, Any] = MappingProxyType({})  # there are many calls, and most have nothing of most kinds


class Call:
    """One call, from its issue until its row is collected.

    Attributes
    ----------
    sender : the node that issued it: an actor's, or the driver's.
    args, kwargs : refs, and values of the sender: plain ones as such, others `Stored`; empty once the call has ended.
    given : the refs among these.
    opens : whether ``kwargs`` has values that are not plain.
    given_bytes : size of the sender's values.
    inputs : the calls whose results it takes.
    clock_s : its progress in time while it runs.
    end_s : when its result is ready; infinite until the result is computed.
    known_s : when the driver can know the result.
    waiters : calls that take its results and could not run yet.
    returns : number of results, each with its own ref; None for a single result.
    meetings : for each group in which it met other calls, the end of the last meeting and all calls in it.
    transit_s : transfer time of its last argument.
    parts : rows of its recorded parts; its own row has its costs since the last part.
    has_received : whether it has received messages of a group and has not worked since.
    planned : for a stuck call, its planned times of start, end and knowledge of the driver, and its meetings.
    """

    __slots__ = (
        "args",
        "bytes_in",
        "bytes_out",
        "call_thread",
        "clock_s",
        "end_s",
        "error",
        "factor",
        "given",
        "given_bytes",
        "has_received",
        "inputs",
        "issued_s",
        "known_s",
        "kwargs",
        "meetings",
        "method",
        "node",
        "opens",
        "order",
        "parts",
        "planned",
        "refs",
        "returns",
        "samples",
        "sender",
        "start_s",
        "transfer_s",
        "transit_s",
        "wait_s",
        "waiters",
    )  # fmt: skip

    def __init__(
        self,
        sender: Node,
        node: Node,
        method: str,
        order: int,
        issued_s: float,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] = NOTHING,
        returns: int | None = None,
    ) -> None:
        self.sender, self.node, self.method, self.order = sender, node, method, order
        self.issued_s, self.returns = issued_s, returns
        self.refs: Sequence[Ref] = [Ref(self) for _ in range(returns)] if returns and returns > 1 else [Ref(self)]
        self.start_s, self.end_s, self.known_s = _NEVER
        self.clock_s, self.transfer_s, self.transit_s, self.wait_s, self.factor = 0.0, 0.0, 0.0, 0.0, 1.0
        self.bytes_in, self.bytes_out, self.samples, self.has_received = 0, 0, 0, False
        self.waiters: Sequence[Call] = ()
        self.meetings: Meetings = NOTHING
        self.parts: list[TraceRow] = NO_PARTS
        self.error: BaseException | None = None
        self.planned: tuple[float, float, float, Meetings] | None = None
        self.call_thread: SuspendableThread | None = None
        given: list[Ref] = []
        inputs: list[Call] = []
        for value in args:  # a loop: there are many calls, and a comprehension costs more than its few passes
            if type(value) is Ref:
                given.append(value)
                inputs.append(value.call)
        self.given_bytes, self.opens = 0, False
        self.args: Sequence[Any] = args if len(given) == len(args) else [self._kept(value) for value in args]
        try:
            self.given_bytes += sum(map(_size_of, map(type, kwargs.values())))
        except KeyError:  # some are not plain
            among = [value for value in kwargs.values() if type(value) is Ref]
            given += among
            inputs += [ref.call for ref in among]
            kwargs, self.opens = {key: self._kept(value) for key, value in kwargs.items()}, True
        self.kwargs: Mapping[str, Any] = kwargs
        self.given: Sequence[Ref] = given
        self.inputs: Sequence[Call] = inputs

    def _kept(self, value: Any) -> Any:
        kind = type(value)
        if kind is Ref:
            return value
        size = _SIZES.get(kind)
        if size is None:
            value = Stored(value)
            size = value.nbytes
        self.given_bytes += size
        return value

    def awaits(self, other: Call) -> None:
        """Register to be notified when ``other`` ends."""
        other.waiters = [*other.waiters, self] if other.waiters else [self]

    @property
    def presence(self) -> Presence | None:
        """The presence on which the call depends; None if its actor is always on, or the call is administrative."""
        return None if self.method in self.node.administrative else self.node.presence

    @property
    def ready(self) -> bool:
        """Whether all its arguments are computed."""
        for call in self.inputs:  # noqa: SIM110 - called very often, and a generator is slower
            if call.end_s == math.inf:
                return False
        return True

    @property
    def arrives_s(self) -> float:
        """When its message arrives; its arguments may arrive later."""
        return self.issued_s + self.sender.port.latency_to(self.node.port)

    def prolonged_s(self, begin_s: float, end_s: float) -> float:
        """Return the end of work that would take from ``begin_s`` to ``end_s`` without absences of its actor."""
        presence = self.presence
        return end_s if presence is None else presence.works_until_s(begin_s, end_s - begin_s, self.start_s)

    def record(self, name: str, began_s: float) -> None:
        """Add a row for a part that ends now."""
        if self.parts is NO_PARTS:
            self.parts = []
        self.parts.append(self._row(name, began_s, self.clock_s))
        self.transfer_s, self.wait_s, self.bytes_in, self.bytes_out, self.samples = 0.0, 0.0, 0, 0, 0

    def rows(self) -> Sequence[TraceRow]:
        """Return its rows of the trace: the rows of its parts until it ended, and the row of the remainder."""
        error = "" if self.error is None else type(self.error).__name__
        if self.parts is NO_PARTS:
            return (self._row(self.method, self.start_s, self.end_s, error),)
        parts = [part for part in self.parts if part.end_s <= self.end_s]
        start_s = parts[-1].end_s if parts else self.start_s
        return [*parts, self._row(self.method, start_s, self.end_s, error)]

    def _row(self, name: str, start_s: float, end_s: float, error: str = "") -> TraceRow:
        node, wait_s = self.node, self.wait_s
        return TraceRow(  # in the order of its fields: keywords take twice as long
            node.name, node.rank, name, start_s, end_s, self.bytes_in, self.bytes_out, self.transfer_s,
            min(wait_s, end_s - start_s) if wait_s else 0.0, self.samples, error,
        )  # fmt: skip


class Ref:
    """A future for a value that may never reach the driver."""

    __slots__ = ("arrivals", "call", "stored")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.stored: Stored | None = None
        self.arrivals: dict[Node, float] = {}  # a node that once received the value keeps it

    def open(self) -> Any:
        """Return the value for one receiver."""
        assert self.stored is not None
        return self.stored.open()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a ref inside another value is not resolved; give it as an argument of its own")

    def __repr__(self) -> str:
        return f"<ref to {self.call.method!r} of {self.call.node.name}>"


class ActorHandle:
    """A handle of an actor: each attribute is a method that returns a `Ref` at once. It can be sent to other actors.

    Attributes
    ----------
    name : the name given at the spawn.
    """

    def __init__(self, engine: Simulated, node: Node) -> None:
        self._engine, self._node, self.name = engine, node, node.name

    def __getattr__(self, method: str) -> partial[Any]:
        if method.startswith("_"):
            raise AttributeError(f"{method!r} is private to the actor {self._node.name!r}")
        bound = self.__dict__[method] = partial(self._engine.issue, self._node, method)
        return bound

    def __reduce__(self) -> tuple[Any, ...]:
        return self._engine.reduced(self._node)

    def __repr__(self) -> str:
        return f"<actor {self._node.name!r}>"
