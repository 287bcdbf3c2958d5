"""What runs in an actor's process: take a call, wait for its arguments, run it, publish the result, ring."""

from __future__ import annotations

import marshal
import pickle
import time
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chimera.core import call
from chimera.core.errors import ActorLost
from chimera.engines.failure import Failure
from chimera.engines.handle import results
from chimera.engines.local.doorbell import Doorbell
from chimera.engines.local.memory_limit import MemoryLimit
from chimera.engines.local.rings import has_call, read_call, write_row
from chimera.engines.shared_memory import (
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
from chimera.engines.slots import publish, read_value, write_value
from chimera.engines.values import Packed

SPIN_S = 20e-6  # for the next call, and in the driver
CONSTRUCT = "__init__"

Out = tuple[int, int]
"""A slot and its generation: where a result goes."""


Arrived: TypeAlias = tuple[int, int, int, int]
"""A ref as it reaches an actor: whose slot holds the value, which slot, its generation, and which of the owner's calls puts
it there."""


class FailedArgumentError(Exception):
    """An argument that will never have a value; carries the failure that the call's own results now share."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure


class LocalSurroundings(call.Surroundings):
    """The local engine as an actor sees it.

    Attributes
    ----------
    asking : makes calls on other actors (`chimera.engines.local.asking.Asking`).
    waited_s, collective_bytes : what the collectives and the waits of the running call have cost so far.
    """

    def __init__(self, memory: Memory, doorbell: Doorbell, asking: Any) -> None:
        super().__init__()
        self.memory, self.doorbell, self.asking = memory, doorbell, asking
        self.waited_s, self.collective_bytes = 0.0, 0
        self.groups: dict[int, Any] = {}

    def alive(self) -> None:
        """Give a sign of life where the driver looks for it."""
        self.memory.own.sign()

    def empty(self, size: int) -> NDArray[np.float32]:
        """Return memory that the other processes can map."""
        offset = self.memory.heap.allocate(4 * size)
        return self.memory.block(self.memory.me, offset, 4 * size).view(np.float32)

    def get(self, refs: Any, timeout_s: float | None = None) -> Any:
        """Wait for what this actor has called on others."""
        began = time.monotonic()
        try:
            return self.asking.get(refs, timeout_s)
        finally:
            self.waited_s += time.monotonic() - began


class ActorProcess:
    """The loop of one actor."""

    def __init__(self, memory: Memory, doorbell: Doorbell, asking: Any, name: str, limit: MemoryLimit) -> None:
        self._memory, self._doorbell, self._name, self._asking, self._limit = memory, doorbell, name, asking, limit
        self._surroundings = LocalSurroundings(memory, doorbell, asking)
        self._target: Any = None
        self._unmade: Failure | None = None  # why the constructor failed; every call then fails alike
        call.enter(self._surroundings)

    def run(self) -> NoReturn:
        """Serve calls until the process is killed."""
        region = self._memory.own
        while True:
            self._doorbell.await_calls(lambda: has_call(region), {DRIVER: 1}, SPIN_S)
            self._serve(*marshal.loads(read_call(region)))

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
        self._memory.own.sign()  # the end of the call needs none: another call or a sleep follows
        began = start = time.monotonic()
        bytes_in, error = 0, b""
        failed = 0
        try:
            put = [plain] if isinstance(plain, tuple) else []  # too large for the ring
            others = pickle.loads(plain) if isinstance(plain, bytes) else None  # while what it waits for is under way
            bytes_in = self._await_arguments([ref for ref in (*refs, *named.values(), *put) if ref is not None])
            began = time.monotonic()
            args, kwargs = self._arguments(refs, named, self._resolve(put[0]) if put else others)
            start = time.monotonic()
            values = self._call(method, returns, args, kwargs)
            del args, kwargs  # what the call did not keep goes back to its owner before the result is known
            bytes_out = self._write(outs, [Packed(value) for value in values])
        except FailedArgumentError as argument:
            began = start = time.monotonic()
            failed, error = 1, argument.failure.kind.encode()[:24]
            bytes_out = self._write(outs, [Packed(argument.failure)] * len(outs))
        except (Exception, SystemExit) as exception:
            failure = Failure(self._limit.named(exception, self._name), self._name, method)
            if method == CONSTRUCT:
                self._unmade = failure
            failed, error = 1, failure.kind.encode()[:24]
            bytes_out = self._write(outs, [Packed(failure)] * len(outs))
        surroundings = self._surroundings
        end = time.monotonic()
        collective, waited = surroundings.collective_bytes, surroundings.waited_s
        surroundings.collective_bytes, surroundings.waited_s = 0, 0.0
        received, self._asking.received_bytes = self._asking.received_bytes, 0
        counts = bytes_in + collective + received, bytes_out + collective, call.take_work().samples
        write_row(self._memory.own, (number, start, end, start - began, waited, *counts, error))
        for slot, generation in outs:  # after the row: whoever knows a result also finds the row of its call
            publish(self._memory, slot, generation, failed)
        self._doorbell.ring_for_call(number + 1)
        self._asking.flush()

    def _arguments(
        self, refs: list[Arrived | None], named: dict[str, Arrived], others: tuple[list[Any], dict[str, Any]] | None
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return the values of all arguments, in their places: of the refs and of the ``others``, if there are any."""
        kwargs = {name: self._resolve(ref) for name, ref in named.items()}
        if others is None:
            return [self._resolve(ref) for ref in refs if ref is not None], kwargs
        rest = iter(others[0])
        return [next(rest) if ref is None else self._resolve(ref) for ref in refs], {**others[1], **kwargs}

    def _call(self, method: str, returns: int | None, args: Any, kwargs: Any) -> list[Any]:
        if method == CONSTRUCT:
            factory, *rest = args
            self._target = factory(*rest, **kwargs)
            return [None]
        if self._unmade is not None:
            raise FailedArgumentError(self._unmade)
        return results(getattr(self._target, method)(*args, **kwargs), self._name, method, returns)

    def _await_arguments(self, arguments: list[Arrived]) -> int:
        """Wait until all stand, and return how many array bytes of them came from elsewhere."""
        arrived = 0
        for actor, slot, generation, number in arguments:
            region = self._memory.region(actor)
            if not region.ready(slot, generation):

                def known(region: Region = region, slot: int = slot, generation: int = generation) -> bool:
                    return region.ready(slot, generation) or region.words[DEAD] == 1

                self._doorbell.await_calls(known, {actor: number + 1}, 0)  # it seldom comes within so short a time
                if not region.ready(slot, generation):
                    lost = ActorLost(f"{actor_name(self._memory, actor)} died before its result stood")
                    raise FailedArgumentError(Failure(lost, self._name, "argument"))
            if actor != self._memory.me:
                arrived += region.slots[slot * SLOT_WORDS + ARRAY_BYTES]
        fence()
        return arrived

    def _resolve(self, argument: Arrived) -> Any:
        value, failed = read_value(self._memory, argument[0], argument[1])
        if failed:
            raise FailedArgumentError(value)
        return value

    def _write(self, outs: list[Out], values: list[Packed]) -> int:
        for (slot, generation), packed in zip(outs, values, strict=True):
            write_value(self._memory, slot, generation, packed)
        return sum(packed.array_bytes for packed in values)


def actor_name(memory: Memory, actor: int) -> str:
    """Return the name that the driver gave an actor."""
    return bytes(memory.region(actor).bytes[NAME_AT : NAME_AT + NAME_BYTES]).rstrip(b"\0").decode()
