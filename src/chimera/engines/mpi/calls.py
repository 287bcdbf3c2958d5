"""The calls that this rank issues, for the driver and for its actors, and the refs of their results."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from chimera.core.errors import ConfigurationError
from chimera.engines.failure import Failure
from chimera.engines.handle import ActorHandle, ActorHeldRef, check_returns, foreign_handle
from chimera.engines.mpi.context import MpiContext
from chimera.engines.mpi.messages import CALL, DROP, Argument, Row
from chimera.engines.mpi.values import Kept
from chimera.engines.thread_context import context_of_thread

if TYPE_CHECKING:
    from chimera.engines.mpi.rank import Rank

_HEARTBEAT_S = 0.5
NO_ACTOR = -1
"""The producer of a value that was put."""


class Peer(NamedTuple):
    """An actor, as handles refer to it: the rank that hosts it, its number in the job, and its name."""

    rank: int
    actor: int
    name: str


class MpiActor(ActorHandle):
    """The handle of an actor of this engine."""


class Issued:
    """A call until no ref needs it.

    Attributes
    ----------
    done : whether it has ended.
    order : increases from call to call, in the order in which their ends became known.
    values : its results, if they are small.
    arguments : refs that must not be dropped before it has ended.
    rows : list that keeps its rows for the driver; None for calls of actors.
    """

    __slots__ = ("arguments", "done", "failed", "order", "peer", "rows", "values")

    def __init__(self, peer: Peer, arguments: list[Ref], rows: list[Row] | None) -> None:
        self.peer, self.arguments, self.rows = peer, arguments, rows
        self.done = self.failed = False
        self.order = 0
        self.values: list[Kept] | None = None


class Ref(ActorHeldRef):
    """A future for a value on a rank. When it is deleted, the rank may forget the value."""

    __slots__ = ("__weakref__", "calls", "index", "issued", "kept", "method", "number")

    def __init__(self, calls: Calls, issued: Issued, number: int, index: int, method: str) -> None:
        self.calls, self.issued, self.number, self.index, self.method = calls, issued, number, index, method
        self.kept: Kept | None = None

    @property
    def peer(self) -> Peer:
        """The called actor."""
        return self.issued.peer

    def __del__(self) -> None:
        self.calls.dropped.append((self.issued.peer.rank, self.number))

    def __reduce__(self) -> tuple[Any, ...]:
        raise ConfigurationError("a ref travels as an argument of its own, not inside a list, a dict or an object")


class Calls:
    """Issued calls and their outcomes.

    Attributes
    ----------
    dropped : rank and number of values whose refs were deleted, not reported yet.
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._pending: dict[int, Issued] = {}  # by the number of the first result
        self._ended: list[Issued] = []  # ended before the notice of the end of an argument's call arrived
        self._order = itertools.count(1)
        self.dropped: deque[tuple[int, int]] = deque()

    def put(self, value: Any) -> Ref:
        """Keep a value on this rank, once."""
        kept, rank = Kept.of(value), self._rank
        issued = Issued(Peer(rank.messenger.rank, NO_ACTOR, "the driver"), [], None)
        with rank.changed:
            number = rank.store.new_number()
            rank.store.fill(number, kept, False)
            issued.done, issued.order = True, next(self._order)
        return Ref(self, issued, number, 0, "put")

    def issue(
        self,
        peer: Peer,
        method: str,
        returns: int | None,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        rows: list[Row] | None,
    ) -> Any:
        """Send a call; return its ref, or the list of its refs if their number is given."""
        check_returns(returns, peer.name, method)
        rank = self._rank
        refs = tuple(_argument(a) if type(a) is Ref else None for a in args)
        named = {k: _argument(a) for k, a in kwargs.items() if type(a) is Ref}
        plain = None
        if None in refs or len(named) < len(kwargs):
            others = [a for a in args if type(a) is not Ref], {k: a for k, a in kwargs.items() if k not in named}
            plain = Kept.of(others)
        held = [a for a in (*args, *kwargs.values()) if type(a) is Ref]
        issued = Issued(peer, held, rows)
        with rank.changed:
            outs = tuple(rank.store.new_number() for _ in range(returns or 1))
            self._pending[outs[0]] = issued
            self.flush()
            issued_s = time.monotonic() + rank.store.shift_s
            described = None if plain is None else plain.described()
            head = CALL, peer.actor, method, returns, outs, refs, named, described, issued_s, rows is not None
            rank.messenger.send(peer.rank, head, () if plain is None else plain.buffers)
        found = [Ref(self, issued, number, index, method) for index, number in enumerate(outs)]
        return found[0] if returns is None else found

    def end(self, number: int, failed: bool, values: list[Kept] | None, rows: list[Row] | None) -> None:
        """Record that a call has ended. The caller holds the lock."""
        issued = self._pending.pop(number, None)
        if issued is None:
            return
        issued.failed, issued.values = failed, values
        if issued.rows is not None and rows:
            issued.rows.extend(rows)
        self._ended.append(issued)
        while (known := next(filter(_is_known, self._ended), None)) is not None:
            self._ended.remove(known)
            known.done, known.order, known.arguments = True, next(self._order), []
        self._rank.changed.notify_all()

    def get(self, refs: Any, timeout_s: float | None = None, context: MpiContext | None = None) -> Any:
        """Return the value of a ref, or the values of a sequence in order; ``context`` is the context of the waiting actor."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        if isinstance(refs, Sequence):
            return [self._value(ref, deadline_s, context) for ref in refs]
        return self._value(refs, deadline_s, context)

    def wait(self, refs: Sequence[Ref], count: int, timeout_s: float | None) -> tuple[list[Ref], list[Ref]]:
        """Return (done, pending) once ``count`` refs are done or the time is over."""
        count = min(count, len({id(ref) for ref in refs}))
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._rank.changed:
            while len({id(ref) for ref in refs if ref.issued.done}) < count:
                left_s = None if deadline_s is None else deadline_s - time.monotonic()
                if left_s is not None and left_s <= 0:
                    break
                self._rank.changed.wait(left_s)
            done = sorted((ref for ref in refs if ref.issued.done), key=lambda ref: (ref.issued.order, ref.index))
            return done, [ref for ref in refs if not ref.issued.done]

    def flush(self) -> None:
        """Report deleted refs to the ranks that keep their values. The caller holds the lock."""
        if not self.dropped:
            return
        numbers: dict[int, list[int]] = {}
        for _ in range(len(self.dropped)):
            owner, number = self.dropped.popleft()
            numbers.setdefault(owner, []).append(number)
        for owner, dropped in numbers.items():
            self._rank.messenger.send(owner, (DROP, dropped))

    def _value(self, ref: Ref, deadline_s: float | None, context: MpiContext | None) -> Any:
        issued, rank = ref.issued, self._rank
        with rank.changed:
            if context is not None and ref.peer.actor == context.actor and not issued.done:
                raise ref.own_call_error()
            self._await(lambda: issued.done, ref, deadline_s, context)
            kept = ref.kept or (issued.values[ref.index] if issued.values is not None else None)
            if kept is None:
                place = ref.peer.rank, ref.number
                slot = rank.store.borrow(place)
                try:
                    self._await(lambda: slot.value is not None, ref, deadline_s, context)
                finally:
                    rank.store.give_back(place)
                kept = slot.value
            assert kept is not None
            ref.kept = kept
        if context is not None and ref.peer.actor != context.actor:
            context.received_bytes += kept.array_bytes
        value = kept.open()
        if issued.failed:
            assert isinstance(value, Failure)
            raise value.exception()
        return value

    def _await(self, known: Any, ref: Ref, deadline_s: float | None, context: MpiContext | None) -> None:
        while not known():
            if context is not None:
                context.alive()
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise ref.time_limit_error()
            pause_s = _HEARTBEAT_S if context is not None else None
            self._rank.changed.wait(left_s if pause_s is None else min(pause_s, left_s or pause_s))


class Callers:
    """The engine inside an actor, for the handles that the actor received. One object serves all actors of a rank.

    Parameters
    ----------
    key : key of the engine.
    """

    def __init__(self, key: str, calls: Calls) -> None:
        self.key, self._calls = key, calls
        self._handles: dict[int, MpiActor] = {}

    def handle(self, rank: int, actor: int, name: str) -> MpiActor:
        """Return this rank's handle of an actor."""
        if actor not in self._handles:
            self._handles[actor] = MpiActor(self, Peer(rank, actor, name))
        return self._handles[actor]

    def place(self, peer: Peer) -> tuple[int, int, str]:
        """Return the values that are pickled with a handle."""
        return peer.rank, peer.actor, peer.name

    def call(self, peer: Peer, method: str, /, *args: Any, returns: int | None = None, **kwargs: Any) -> Any:
        """Issue a call. Methods of handles call this."""
        context = context_of_thread()
        if isinstance(context, MpiContext) and context.key != self.key:  # two engines may have actors on one rank
            raise foreign_handle(peer.name)
        return self._calls.issue(peer, method, returns, args, kwargs, None)


def _argument(ref: Ref) -> Argument:
    peer = ref.issued.peer
    return peer.rank, ref.number, peer.actor


def _is_known(issued: Issued) -> bool:
    """Return whether the ends of all calls whose results are the arguments are known."""
    return all(ref.issued.done for ref in issued.arguments)
