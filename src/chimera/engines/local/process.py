"""The loop of an actor's process: take a call, wait for its arguments, run it, publish the result, notify waiting processes."""

from __future__ import annotations

import time
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chimera.core import call
from chimera.core.errors import ActorLost
from chimera.core.pickling import unmarshalled, unpickled
from chimera.engines.failure import Failure
from chimera.engines.handle import CONSTRUCT, results
from chimera.engines.local.memory_limit import MemoryLimit
from chimera.engines.local.ring_buffers import has_call, read_call, write_part, write_row
from chimera.engines.shared_memory.memory import (
    ARRAY_BYTES,
    DEAD,
    DRIVER,
    NAME_AT,
    NAME_BYTES,
    SLOT_WORDS,
    Memory,
    Region,
    fence,
)
from chimera.engines.shared_memory.notifier import Notifier
from chimera.engines.shared_memory.result_slots import count_done, publish, read_value, write_value
from chimera.engines.shared_memory.values import Packed

SPIN_S = 20e-6  # seconds of polling for the next call; also in the driver

Out = tuple[int, int]
"""A slot and its generation: the place of a result."""


Arrived: TypeAlias = tuple[int, int, int, int]
"""A ref in a message: the owner of the slot, the slot, its generation, and the number of the owner's call that fills it."""


class FailedArgumentError(Exception):
    """An argument that will never have a value. Its failure becomes the failure of the call's results."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure


class LocalContext(call.Preparation, call.ActorContext):
    """The local engine as an actor sees it.

    Attributes
    ----------
    nested_calls : makes calls on other actors (`chimera.engines.local.nested_calls.NestedCalls`).
    waited_s, collective_bytes, sent_bytes, received_bytes : see `chimera.engines.collectives.Costs`.
    recorded_s : the end of the last part of the running call that has a row of its own; 0 if there is none.
    """

    def __init__(self, memory: Memory, notifier: Notifier, nested_calls: Any) -> None:
        super().__init__()
        self.memory, self.notifier, self.nested_calls = memory, notifier, nested_calls
        self.waited_s, self.collective_bytes, self.sent_bytes, self.received_bytes = 0.0, 0, 0, 0
        self.recorded_s = 0.0
        self.groups: dict[int, Any] = {}

    def alive(self) -> None:
        """Write a heartbeat for the driver."""
        self.memory.own.sign()

    def empty(self, size: int) -> NDArray[np.float32]:
        """Return memory that the other processes can map."""
        return self.memory.empty(size)

    def record(self, name: str, began_s: float) -> None:
        """Add a row for a part of the running call; if the driver has read too few, its costs count in the next row."""
        end, costs = time.monotonic(), (self.waited_s, *self.bytes_so_far(), self.work.samples)
        if write_part(self.memory.own, (0, began_s, end, 0.0, *costs, name.encode()[:24])):
            self.take_costs()
            self.work.samples = 0
            self.recorded_s = end

    def bytes_so_far(self) -> tuple[int, int]:
        """Return the bytes that came in and went out since the last row."""
        received = self.received_bytes + self.collective_bytes + self.nested_calls.received_bytes
        return received, self.sent_bytes + self.collective_bytes

    def take_costs(self) -> tuple[float, int, int]:
        """Return the seconds of waiting, and the bytes in and out, since the last row, and set them to 0."""
        costs = self.waited_s, *self.bytes_so_far()
        self.waited_s, self.collective_bytes, self.sent_bytes, self.received_bytes = 0.0, 0, 0, 0
        self.nested_calls.received_bytes = 0
        return costs

    def get(self, refs: Any, timeout_s: float | None = None) -> Any:
        """Wait for results of this actor's calls on other actors."""
        began = time.monotonic()
        try:
            return self.nested_calls.get(refs, timeout_s)
        finally:
            self.waited_s += time.monotonic() - began


class ActorProcess:
    """The loop of one actor."""

    def __init__(self, memory: Memory, notifier: Notifier, nested_calls: Any, name: str, limit: MemoryLimit) -> None:
        self._memory, self._notifier, self._name, self._nested_calls, self._limit = (
            memory,
            notifier,
            name,
            nested_calls,
            limit,
        )
        self._actor_context = LocalContext(memory, notifier, nested_calls)
        self._target: Any = None
        self._constructor_failure: Failure | None = None  # why the constructor failed; every call fails with it
        self._there_s = 0.0  # when the last argument of the running call was ready
        call.enter(self._actor_context)

    def run(self) -> NoReturn:
        """Serve calls until the process is killed."""
        region = self._memory.own
        while True:
            self._notifier.await_calls(lambda: has_call(region), {DRIVER: 1}, SPIN_S)
            self._serve(*unmarshalled(read_call(region)))

    def _serve(
        self,
        number: int,
        method: str,
        returns: int | None,
        outs: list[Out],
        refs: list[Arrived | None],
        named: dict[str, Arrived],
        plain: bytes | Arrived | None,
    ) -> None:
        self._memory.own.sign()  # no notification is needed at the end of the call: another call or a sleep follows
        start = self._there_s = time.monotonic()
        bytes_in, error = 0, b""
        failed = 0
        try:
            others = unpickled(plain) if isinstance(plain, bytes) else None  # while the awaited call is running
            arrivals = [ref for ref in (*refs, *named.values()) if ref is not None]
            if isinstance(plain, tuple):  # too large for the ring buffer
                arrivals.append(plain)
            values, bytes_in = self._received(arrivals)
            if isinstance(plain, tuple):
                others = values.pop()
            args, kwargs = _arranged(refs, named, values, others)
            del values, others
            start = time.monotonic()
            outcome = self._call(method, returns, args, kwargs)
            del args, kwargs  # values that the call did not keep are released before the result is published
            bytes_out = self._write(outs, [Packed(value) for value in outcome])
            del outcome
        except FailedArgumentError as argument:
            start = self._there_s = time.monotonic()
            failed, error = 1, argument.failure.kind.encode()[:24]
            bytes_out = self._write(outs, [Packed(argument.failure)] * len(outs))
        except (Exception, SystemExit) as exception:
            start = max(start, self._there_s)
            failure = Failure(self._limit.named(exception, self._name), self._name, method)
            if method == CONSTRUCT:
                self._constructor_failure = failure
            failed, error = 1, failure.kind.encode()[:24]
            bytes_out = self._write(outs, [Packed(failure)] * len(outs))
        actor_context = self._actor_context
        end = time.monotonic()
        waited, received, went = actor_context.take_costs()
        counts = bytes_in + received, bytes_out + went, call.take_work().samples
        begin, actor_context.recorded_s = actor_context.recorded_s or start, 0.0
        write_row(self._memory.own, (number, begin, end, start - self._there_s, waited, *counts, error))
        for slot, generation in outs:  # after the row: a process that knows a result also finds the row of its call
            publish(self._memory, slot, generation, failed)
        self._notifier.ring_for_call(number + 1)
        self._nested_calls.flush()
        actor_context.prepare()

    def _received(self, arguments: list[Arrived]) -> tuple[list[Any], int]:
        """Wait until all values are ready; return them, and the number of their array bytes from other processes.

        Each value is opened as it arrives, so that little work is left after the last arrival.
        """
        values, arrived, failure = [], 0, None
        for position, (actor, slot, generation, number) in enumerate(arguments, start=1):
            region = self._memory.region(actor)
            if not region.ready(slot, generation):
                try:
                    self._await(region, slot, generation, number)
                except FailedArgumentError:
                    for other, later, *_ in arguments[position:]:  # they are not read: their slots can be reused
                        count_done(self._memory.region(other), later, self._memory.me)
                    raise
                self._there_s = time.monotonic()
            fence()
            if actor != self._memory.me:
                arrived += region.slots[slot * SLOT_WORDS + ARRAY_BYTES]
            value, failed = read_value(self._memory, actor, slot)
            if failed and failure is None:
                failure = value
            values.append(value)
        if failure is not None:
            raise FailedArgumentError(failure)
        return values, arrived

    def _await(self, region: Region, slot: int, generation: int, number: int) -> None:
        """Wait until a value is ready, or raise if it never will be."""

        def known() -> bool:
            return region.ready(slot, generation) or region.words[DEAD] == 1

        self._notifier.await_calls(
            known, {region.actor: number + 1}, 0
        )  # a value rarely arrives within such a short time
        if not region.ready(slot, generation):
            lost = ActorLost(f"{actor_name(self._memory, region.actor)} died before its result was ready")
            raise FailedArgumentError(Failure(lost, self._name, "argument"))

    def _call(self, method: str, returns: int | None, args: Any, kwargs: Any) -> list[Any]:
        if method == CONSTRUCT:
            factory, *rest = args
            self._target = factory(*rest, **kwargs)
            return [None]
        if self._constructor_failure is not None:
            raise FailedArgumentError(self._constructor_failure)
        return results(getattr(self._target, method)(*args, **kwargs), self._name, method, returns)

    def _write(self, outs: list[Out], values: list[Packed]) -> int:
        for (slot, generation), packed in zip(outs, values, strict=True):
            write_value(self._memory, slot, generation, packed)
        return sum(packed.array_bytes for packed in values)


def _arranged(
    refs: list[Arrived | None],
    named: dict[str, Arrived],
    values: list[Any],
    others: tuple[list[Any], dict[str, Any]] | None,
) -> tuple[list[Any], dict[str, Any]]:
    """Return all arguments in order: the values of the refs, and ``others``, if there are any."""
    if others is None and not named:
        return values, {}
    received = iter(values)
    plain, kwargs = (iter(others[0]), others[1]) if others is not None else (iter(()), {})
    args = [next(plain) if ref is None else next(received) for ref in refs]
    return args, {**kwargs, **{name: next(received) for name in named}}


def actor_name(memory: Memory, actor: int) -> str:
    """Return the name that the driver gave an actor."""
    return bytes(memory.region(actor).bytes[NAME_AT : NAME_AT + NAME_BYTES]).rstrip(b"\0").decode(errors="ignore")
