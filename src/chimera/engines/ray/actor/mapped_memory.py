"""The actor's side of the memory that the driver shares with the actors of its machine."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Sequence
from typing import Any

from chimera.core.errors import ActorLost
from chimera.engines.ray.failure import translated
from chimera.engines.ray.shared import Out, Place, Read
from chimera.engines.shared_memory.memory import (
    BEGUN,
    DRIVER,
    NAME_AT,
    PID,
    STARTED,
    Memory,
    fence,
)
from chimera.engines.shared_memory.result_slots import (
    copy_value,
    count_done,
    holds_value,
    publish,
    read_value,
    write_nothing,
    write_value,
)
from chimera.engines.shared_memory.values import Packed, is_plain
from chimera.engines.signals import this_process

_LARGE_BYTES = 1 << 16
"""Smaller values are sent in Ray's messages."""


class MappedMemory:
    """The driver's file as an actor maps it, if it can.

    Parameters
    ----------
    place : location of the file; None if there is none.
    machine : identifier of this machine, see `clock_of_this_machine`.
    region : index of this actor's region; None if it has none.

    Attributes
    ----------
    memory : the file; None if this process cannot map it.
    """

    def __init__(self, place: Place | None, machine: str, region: int | None) -> None:
        self._place = place
        self._copied_there: Callable[..., Any] | None = None
        self.memory = None if place is None or region is None else opened(place, machine, region)
        if self.memory is not None:
            words = self.memory.own.words
            words[PID], started = this_process()
            fence()
            words[STARTED] = started  # the driver reads here that it is mapped

    def take(self, number: int | None, reads: Sequence[Read], args: list[Any], kwargs: dict[str, Any]) -> None:
        """Replace arguments in shared memory by their values.

        Parameters
        ----------
        number : number of the call, if the driver has counted this actor among the readers.

        Raises
        ------
        ActorLost : a value no longer exists.
        """
        memory = self.memory
        if memory is not None and number is not None:
            memory.own.begun[number % BEGUN] = number + 1
            found = _views(memory, reads)
        elif memory is not None:
            found = _copies(memory, reads)
        else:
            found = self._fetched(reads) if reads else {}
        for where, value in found.items():
            if isinstance(where, str):
                kwargs[where] = value
            else:
                args[where] = value

    def _fetched(self, reads: Sequence[Read]) -> dict[int | str, Any]:
        """Copy the values on the driver's machine, and fetch them through Ray's object store."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if self._copied_there is None:
            assert self._place is not None
            there = NodeAffinitySchedulingStrategy(self._place.node, soft=False)
            self._copied_there = ray.remote(num_cpus=0, scheduling_strategy=there)(_copied_there).remote
        try:
            found: dict[int | str, Any] = ray.get(self._copied_there(self._place, list(reads)))
        except ray.exceptions.RayError as error:
            raise translated(error, "copy of an argument", _no_name) from None
        return found

    def lay(self, outs: Sequence[Out], values: list[Any]) -> list[Any]:
        """Write the large results of a call to their slots, and return the rest for Ray."""
        memory = self.memory
        if memory is None or not outs:
            return values
        left: list[Any] = []
        for (slot, generation), value in zip(outs, values, strict=True):
            if is_plain(value) and value.nbytes > _LARGE_BYTES:
                write_value(memory, slot, generation, Packed(value))
                left.append(None)
            else:
                write_nothing(memory, slot)
                left.append(value)
        return left

    def publish(self, outs: Sequence[Out]) -> None:
        """Publish the results of a call."""
        if self.memory is not None:
            for slot, generation in outs:
                publish(self.memory, slot, generation)


def _views(memory: Memory, reads: Sequence[Read]) -> dict[int | str, Any]:
    """Return the values in shared memory without a copy; this process counts when it has released each."""
    found: dict[int | str, Any] = {}
    for where, actor, slot, generation in reads:
        region = memory.region(actor)
        if holds_value(region, slot, generation):
            found[where] = read_value(memory, actor, slot)[0]
        else:
            count_done(region, slot, memory.me)
    return found


def _copies(memory: Memory, reads: Sequence[Read]) -> dict[int | str, Any]:
    """Return copies of values in shared memory, for a reader that is not counted."""
    return {
        where: copy_value(memory, actor, slot, generation)
        for where, actor, slot, generation in reads
        if holds_value(memory.region(actor), slot, generation)
    }


def _copied_there(place: Place, reads: Sequence[Read]) -> dict[int | str, Any]:
    """Return such copies. This is a Ray task on the driver's machine."""
    memory = opened(place, place.machine, DRIVER)
    if memory is None:
        raise ActorLost("the driver is gone")
    with contextlib.closing(memory):
        return _copies(memory, reads)


def opened(place: Place, machine: str, region: int) -> Memory | None:
    """Map the driver's file, if this process can reach it."""
    if machine != place.machine:
        return None
    with contextlib.suppress(OSError):
        fd = os.open(f"/proc/{place.pid}/fd/{place.fd}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        if stat.S_ISREG(os.fstat(fd).st_mode) and os.pread(fd, len(place.key), NAME_AT) == place.key.encode():
            return Memory(fd, region)
        os.close(fd)
    return None


def _no_name(_: str) -> None:
    """Return no name: a task is no actor."""
