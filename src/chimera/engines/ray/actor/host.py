"""The code in Ray's process: the host of the actor, which creates the user's object, calls it and measures the calls."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core import call
from chimera.engines.failure import Failure
from chimera.engines.handle import CONSTRUCT, results
from chimera.engines.machine_clock import clock_of_this_machine
from chimera.engines.ray.actor.mapped_memory import MappedMemory
from chimera.engines.ray.actor.nested_calls import NestedCalls
from chimera.engines.ray.heartbeat import send_heartbeats
from chimera.engines.ray.row_format import ROW, packed_rows, row_of_call
from chimera.engines.ray.shared import Place, SlotHeader
from chimera.engines.shared_memory.memory import Memory
from chimera.engines.shared_memory.notifier import Notifier
from chimera.engines.threads import limit_threads_of_process

Header = tuple[str, int | None, Sequence[int] | None, SlotHeader | None]
"""Method, number of results, positional arguments that this actor made itself, and slots of shared memory of the call."""

_NO_SLOTS: SlotHeader = None, [], []


class RayContext(call.ActorContext):
    """The Ray engine as an actor sees it.

    Attributes
    ----------
    me : this actor's key, its name in Ray.
    nested_calls : makes calls on other actors (`chimera.engines.ray.actor.nested_calls.NestedCalls`).
    moved_s : seconds of data transfers in the running call, since its last row.
    waited_s, collective_bytes, sent_bytes, received_bytes : see `chimera.engines.collectives.Costs`; since the last row.
    parts : packed rows of the parts of the running call, by name.
    groups : the groups in which this actor has met others, by key.
    memory : the driver's shared file, as this actor maps it; None if it cannot map the file.
    heartbeat_s : time of the running call's last heartbeat, on this machine's monotonic clock; None between calls.
    """

    def __init__(self, me: str, nested_calls: Any, memory: Memory | None, shift_s: float) -> None:
        super().__init__()
        self.me, self.nested_calls, self.memory, self._shift_s = me, nested_calls, memory, shift_s
        self.waited_s, self.moved_s, self.collective_bytes, self.sent_bytes, self.received_bytes = 0.0, 0.0, 0, 0, 0
        self.parts: dict[str, bytearray] = {}
        self.groups: dict[str, Any] = {}
        self._notifier: Notifier | None = None
        self.heartbeat_s: float | None = None

    def alive(self) -> None:
        """Record a heartbeat, which the thread of `heartbeats` sends."""
        if self.heartbeat_s is not None:
            self.heartbeat_s = time.monotonic()

    def empty(self, size: int) -> NDArray[np.float32]:
        """Return memory that the other processes can map, if there is any."""
        if self.memory is None:
            return super().empty(size)
        return self.memory.empty(size)

    def notifier(self) -> Notifier:
        """Return the object by which this process waits for others that map the memory, and wakes them."""
        if self._notifier is None:
            assert self.memory is not None
            self._notifier = Notifier(self.memory)
        return self._notifier

    def get(self, refs: Any, timeout_s: float | None = None) -> Any:
        """Wait for results of this actor's calls on other actors."""
        began_s = time.monotonic()
        try:
            return self.nested_calls.get(refs, timeout_s)
        finally:
            self.waited_s += time.monotonic() - began_s

    def record(self, name: str, began_s: float) -> None:
        """Add a row for a part of the running call."""
        times = began_s + self._shift_s, time.monotonic() + self._shift_s
        costs, self.work.samples = (*self.take_costs(), self.work.samples), 0
        self.parts.setdefault(name, bytearray()).extend(ROW.pack(*times, times[0], *costs, b""))

    def take_costs(self) -> tuple[float, float, int, int]:
        """Return seconds moving data, seconds waiting, and bytes in and out since the last row, and reset them."""
        received = self.received_bytes + self.nested_calls.received_bytes
        bytes_in, bytes_out = received + self.collective_bytes, self.sent_bytes + self.collective_bytes
        costs = self.moved_s, self.waited_s, bytes_in, bytes_out
        self.waited_s, self.moved_s, self.collective_bytes, self.sent_bytes, self.received_bytes = 0.0, 0.0, 0, 0, 0
        self.nested_calls.received_bytes = 0
        return costs


class Host:
    """The Ray actor: an object of the user's class, and its clock.

    Parameters
    ----------
    key, name : Ray's name and the user's name of the actor.
    threads : number of threads for its arithmetic.
    path : the driver's import path; existing folders of it are searched, too.
    clock : machine and offset of the driver's clock, see `clock_of_this_machine`.
    place : location of the driver's shared memory; None without any.
    region : index of this actor's region in it.
    """

    def __init__(
        self,
        key: str,
        name: str,
        threads: int,
        path: list[str],
        clock: tuple[str, float],
        place: Place | None,
        region: int | None,
    ) -> None:
        sys.path.extend(entry for entry in path if entry not in sys.path and Path(entry).is_dir())
        limit_threads_of_process(threads)
        self._name = name
        self._target: Any = None
        self._constructor_failure: Failure | None = None  # why the constructor failed; every call fails with it
        machine, offset_s = clock_of_this_machine()
        self._shift_s = 0.0 if machine == clock[0] else offset_s - clock[1]
        self._nested_calls = NestedCalls(key, self._shift_s)
        self._mapped = MappedMemory(place, machine, region)
        self._actor_context = RayContext(key, self._nested_calls, self._mapped.memory, self._shift_s)
        self._idle_s = 0.0  # start of the idle time, on the driver's clock
        self._rows: list[tuple[str, bytes]] = []
        call.enter(self._actor_context)
        send_heartbeats(key, lambda: (self._actor_context.heartbeat_s or time.monotonic()) + self._shift_s)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Run a call; return the trace row followed by the results.

        Parameters
        ----------
        args : the `Header`, then the method's own arguments.
        """
        start_s = self._actor_context.heartbeat_s = time.monotonic()
        (method, returns, own, slots), *given = args
        del args
        number, outs, reads = slots or _NO_SLOTS
        failure = self._constructor_failure
        try:
            self._mapped.take(number, reads, given, kwargs)
        except Exception as error:  # any reason why they cannot be read
            failure = Failure(error, self._name, method)
        bytes_in = sum(call.nbytes(a) for i, a in enumerate(given) if own is None or i not in own)
        bytes_in += sum(call.nbytes(a) for a in kwargs.values())
        self._actor_context.received_bytes = bytes_in
        failure = next((a for a in (*given, *kwargs.values()) if type(a) is Failure), failure)
        values: list[Any] = []
        bytes_out = 0
        if failure is None:
            try:
                values = self._values(method, returns, given, kwargs)
                bytes_out = sum(map(call.nbytes, values))
                values = self._mapped.lay(outs, values)
            except (Exception, SystemExit) as error:
                failure = Failure(error, self._name, method)
        if failure is not None:
            if method == CONSTRUCT:
                self._constructor_failure = failure
            values, bytes_out = self._mapped.lay(outs, [failure] * (returns or 1)), 0
        self._mapped.publish(outs)
        moved_s, waited_s, bytes_in, sent_bytes = self._actor_context.take_costs()
        self._actor_context.heartbeat_s = None
        start_s, end_s = start_s + self._shift_s, time.monotonic() + self._shift_s
        times = start_s, end_s, self._idle_s, moved_s, waited_s
        self._idle_s = end_s
        counts = bytes_in, bytes_out + sent_bytes, call.take_work().samples
        parts, self._actor_context.parts = self._actor_context.parts, {}
        return (packed_rows((*times, *counts, failure.kind.encode()[:24] if failure else b""), parts), *values)

    def call_of_actor(self, asked_s: float | None, _: bytes | None, /, *args: Any, **kwargs: Any) -> Any:
        """Run a call of another actor, and keep its row; return the results.

        Parameters
        ----------
        asked_s : when it was issued, on the driver's clock; None if it has refs among its arguments.
        _ : refs for which the call had to wait.
        """
        packed, *values = self.call(*args, **kwargs)
        start_s, end_s, idle_s, *costs = row_of_call(packed)
        idle_s = start_s if asked_s is None else max(asked_s, idle_s)
        self._rows.append((args[0][0], ROW.pack(start_s, end_s, idle_s, *costs) + packed[ROW.size :]))
        return values[0] if len(values) == 1 else values

    def give_rows(self) -> list[tuple[str, bytes]]:
        """Return method and row of each call by other actors since the last call of this method."""
        rows, self._rows = self._rows, []
        return rows

    def _values(self, method: str, returns: int | None, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
        if method == CONSTRUCT:
            self._target = args[0](*args[1:], **kwargs)
            return [None]
        return results(getattr(self._target, method)(*args, **kwargs), self._name, method, returns)
