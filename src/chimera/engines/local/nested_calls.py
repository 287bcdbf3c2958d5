"""The actor's side of calls on other actors. The actor sends requests to the driver, which issues the calls.

Only the driver writes to the ring buffers. A request is a datagram. The driver writes the place of the result into the actor's
table of answers. So a call returns at once, and only `NestedCalls.get` waits.
"""

from __future__ import annotations

import functools
import itertools
import socket
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from chimera.core.errors import ActorLost, EngineClosedError, RunError
from chimera.core.pickling import marshalled
from chimera.engines.handle import ActorHeldRef, check_returns, receive_handles
from chimera.engines.local.calls import INLINE_BYTES
from chimera.engines.local.process import SPIN_S, actor_name
from chimera.engines.local.refs import LocalActor
from chimera.engines.shared_memory.memory import (
    ANSWER_WORDS,
    ANSWERS,
    ARRAY_BYTES,
    DEAD,
    DRIVER,
    SLOT_WORDS,
    TICKET,
    Memory,
    fence,
)
from chimera.engines.shared_memory.notifier import Notifier
from chimera.engines.shared_memory.result_slots import publish, read_value, write_value
from chimera.engines.shared_memory.values import Packed

_GRANTS = 4


class Peer(NamedTuple):
    """Another actor, as a handle inside an actor refers to it."""

    actor: int
    name: str


class HeldRef(ActorHeldRef):
    """A ref that an actor holds: an entry in its table of answers, and the ticket of the request."""

    __slots__ = ("__weakref__", "entry", "method", "nested_calls", "peer", "ticket")

    def __init__(self, nested_calls: NestedCalls, entry: int, ticket: int, peer: Peer, method: str) -> None:
        self.nested_calls, self.entry, self.ticket, self.peer, self.method = nested_calls, entry, ticket, peer, method

    def __del__(self) -> None:
        self.nested_calls.dropped.append(self.entry)


class NestedCalls:
    """The engine inside an actor, for the handles that the actor received.

    Parameters
    ----------
    requests : a datagram socket that the driver reads.

    Attributes
    ----------
    dropped : table entries of deleted refs that were not reported to the driver yet.
    received_bytes : array bytes that `get` brought from other actors.
    """

    def __init__(self, memory: Memory, notifier: Notifier, requests: socket.socket) -> None:
        self._memory, self._notifier, self._requests = memory, notifier, requests
        self.key = actor_name(memory, DRIVER)
        self.dropped: deque[int] = deque()
        self.received_bytes = 0
        self._me = Peer(memory.me, actor_name(memory, memory.me))
        self._answers = memory.own.answers
        self._tickets = itertools.count(1)
        self._free: list[int] = []
        self._unused = 0
        self._grants: deque[HeldRef] = deque()  # slots of this actor, for arguments in shared memory
        self._handles: dict[int, LocalActor] = {}
        receive_handles(self)

    def handle(self, actor: int, name: str) -> LocalActor:
        """Return this process's handle of an actor."""
        if actor not in self._handles:
            self._handles[actor] = LocalActor(self, Peer(actor, name))
        return self._handles[actor]

    def place(self, peer: Peer) -> tuple[int, str]:
        """Return the values that are pickled with a handle."""
        return peer.actor, peer.name

    def call(self, peer: Peer, method: str, /, *args: Any, returns: int | None = None, **kwargs: Any) -> Any:
        """Request a call. Methods of handles call this."""
        check_returns(returns, peer.name, method)
        entries = [a.entry if type(a) is HeldRef else None for a in args]
        named = {k: a.entry for k, a in kwargs.items() if type(a) is HeldRef}
        plain: bytes | int | None = None
        grants: list[tuple[int, int]] = []
        if None in entries or len(named) < len(kwargs):
            packed = Packed(
                ([a for a in args if type(a) is not HeldRef], {k: a for k, a in kwargs.items() if k not in named})
            )
            plain = packed.stream
            if packed.buffers or len(packed.stream) > INLINE_BYTES:
                granted, grants = self._granted()
                _, slot, generation, _ = self._place(granted)
                write_value(self._memory, slot, generation, packed)
                publish(self._memory, slot, generation)
                plain = granted.entry
        refs = [self._new_ref(peer, method) for _ in range(returns or 1)]
        outs = [(ref.entry, ref.ticket) for ref in refs]
        self._send((peer.actor, method, returns, outs, entries, named, plain), grants)
        return refs[0] if returns is None else refs

    def get(self, refs: Any, timeout_s: float | None = None) -> Any:
        """Return the value of a ref, or the values of a sequence; arrays are read-only views of shared memory."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        if isinstance(refs, Sequence):
            return [self._value(ref, deadline) for ref in refs]
        return self._value(refs, deadline)

    def flush(self) -> None:
        """Report deleted refs to the driver, so that their slots and memory can be reused."""
        if self.dropped:
            self._send(None, [])

    def _value(self, ref: HeldRef, deadline: float | None) -> Any:
        self._await_answer(ref, deadline, DRIVER if ref.peer.actor == self._me.actor else ref.peer.actor)
        actor, slot, generation, number = self._place(ref)
        region = self._memory.region(actor)

        def known() -> bool:
            return region.ready(slot, generation) or region.words[DEAD] == 1

        if actor == self._memory.me and not region.ready(slot, generation):
            raise ref.own_call_error()
        if not self._notifier.await_calls(known, {actor: number + 1}, SPIN_S, deadline):
            raise ref.time_limit_error()
        fence()
        if not region.ready(slot, generation):
            raise ActorLost(f"{ref.peer.name} died; its call {ref.method!r} has no result")
        if actor != self._memory.me:
            self.received_bytes += region.slots[slot * SLOT_WORDS + ARRAY_BYTES]
        value, failed = read_value(self._memory, actor, slot, release=functools.partial(_keep, ref))
        if failed:
            raise value.exception()
        return value

    def _granted(self) -> tuple[HeldRef, list[tuple[int, int]]]:
        """Return a granted slot of this actor, and the number of slots to request, so that this actor need not wait later."""
        asked: list[tuple[int, int]] = []
        if not self._grants:
            self._send(None, self._ask_for_grants(_GRANTS))
        elif not self._is_answered(self._grants[0]):
            asked += self._ask_for_grants(1)
        granted = self._grants.popleft()
        self._await_answer(granted, None, DRIVER)
        if self._place(granted)[0] != self._memory.me:
            self._value(granted, None)  # raises the error that explains the missing slot
        return granted, asked + self._ask_for_grants(1)

    def _ask_for_grants(self, count: int) -> list[tuple[int, int]]:
        refs = [self._new_ref(self._me, "put") for _ in range(count)]
        self._grants.extend(refs)
        return [(ref.entry, ref.ticket) for ref in refs]

    def _new_ref(self, peer: Peer, method: str) -> HeldRef:
        if not self._free and self._unused == ANSWERS:
            self.flush()
        if self._free:
            entry = self._free.pop()
        elif self._unused < ANSWERS:
            entry, self._unused = self._unused, self._unused + 1
        else:
            raise RunError(f"{self._me.name} holds {ANSWERS} refs: delete refs that are no longer needed")
        return HeldRef(self, entry, next(self._tickets), peer, method)

    def _send(self, new_call: tuple[Any, ...] | None, grants: list[tuple[int, int]]) -> None:
        """Request a call and slots, and report deleted refs, whose entries are free after that."""
        dropped = [self.dropped.popleft() for _ in range(len(self.dropped))]
        try:
            self._requests.send(marshalled([self._memory.me, dropped, new_call, grants]))
        except OSError as error:
            raise EngineClosedError("the local engine is closed") from error
        self._free.extend(dropped)

    def _is_answered(self, ref: HeldRef) -> bool:
        return self._answers[ref.entry * ANSWER_WORDS + TICKET] == ref.ticket

    def _await_answer(self, ref: HeldRef, deadline: float | None, ringer: int) -> None:
        """Wait until the place of a value is known.

        Parameters
        ----------
        ringer : the process that wakes this one: the driver after it has answered, or the called actor after a call.
        """
        if not self._notifier.await_calls(lambda: self._is_answered(ref), {ringer: 1}, SPIN_S, deadline):
            raise ref.time_limit_error()
        fence()

    def _place(self, ref: HeldRef) -> tuple[int, int, int, int]:
        """Return the place of the value of an answered ref."""
        at = ref.entry * ANSWER_WORDS + TICKET + 1
        actor, slot, generation, number = self._answers[at : at + 4]
        return actor, slot, generation, number


def _keep(ref: HeldRef) -> None:
    """Keep a ref alive as long as this bound method."""
