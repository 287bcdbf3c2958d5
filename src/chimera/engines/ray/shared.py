"""The driver's side of the memory that it shares with the actors of its machine: mappings, slots, readers.

Each ref is a ref of Ray. However, a large array that an actor returns is in the actor's region of one sparse file, in a slot
that the driver granted with the call. Ray's object of the array is then empty.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from weakref import WeakSet

from chimera.core.errors import RunError
from chimera.engines.shared_memory.memory import (
    ACTORS,
    BEGUN,
    DEAD,
    DRIVER,
    DROPPED,
    GENERATION,
    MAX_ACTORS,
    NAME_AT,
    PID,
    SLOT_WORDS,
    STARTED,
    Memory,
    Region,
    create_file,
)
from chimera.engines.shared_memory.result_slots import ResultSlots, holds_value, read_value
from chimera.engines.shared_memory.shared_group import allocate_table
from chimera.engines.signals import is_gone

if TYPE_CHECKING:
    from chimera.engines.ray.refs import Ref

Out: TypeAlias = tuple[int, int]
"""A slot and its generation: where a result may be."""

Read: TypeAlias = tuple[int | str, int, int, int]
"""An argument that may be in a slot: its position or name in the call, the slot's region, the slot, its generation."""

SlotHeader: TypeAlias = tuple[int | None, list[Out], list[Read]]
"""The information about the memory that an actor gets with a call, see `CallSlots`."""

RefArgument: TypeAlias = "tuple[int | str, Ref]"
"""A ref among the arguments of a call: its position or name, and the ref."""


class Place(NamedTuple):
    """The location of the file.

    Attributes
    ----------
    machine : identifier of the machine, see `clock_of_this_machine`.
    pid, fd : the driver, and its descriptor of the file.
    key : the engine's key, which is written in the file.
    node : the driver's node in Ray.
    """

    machine: str
    pid: int
    fd: int
    key: str
    node: str


class Meeting(NamedTuple):
    """The location of a group's memory in the file.

    Attributes
    ----------
    table : result of `allocate_table`.
    regions : regions of the members, in rank order.
    """

    table: int
    regions: tuple[int, ...]


class Shared:
    """The file in the driver. There is none if processes cannot open one another's files, or cannot map this size.

    Attributes
    ----------
    place : data with which an actor maps the file, or None.
    """

    def __init__(self, key: str, machine: str, node: str) -> None:
        self.place: Place | None = None
        if not Path("/proc/self/fd").is_dir():
            return
        with contextlib.suppress(OSError):
            self._memory = Memory(create_file(), DRIVER)
            self._memory.own.words[ACTORS] = DRIVER + 1
            self._memory.own.bytes[NAME_AT : NAME_AT + len(key)] = key.encode()
            self.place = Place(machine, os.getpid(), self._memory.fd, key, node)

    def side_of(self, name: str) -> Side | None:
        """Return the driver's side of one more actor's region; None if no region is left."""
        if self.place is None or self._memory.actors() == MAX_ACTORS:
            return None
        actor = self._memory.actors()
        self._memory.own.words[ACTORS] = actor + 1
        return Side(self._memory, actor, name)

    def meeting_of(self, sides: Sequence[Side | None]) -> Meeting | None:
        """Return the location of a group's memory in the file; None if an actor has no region."""
        near = [side for side in sides if side is not None]
        if len(near) < len(sides):
            return None
        return Meeting(allocate_table(self._memory, len(near)), tuple(side.actor for side in near))

    def close(self) -> None:
        """Release the file; arrays in it keep the memory that they need."""
        if self.place is not None:
            self._memory.close()


class Side(ResultSlots):
    """The driver's record of one actor's region.

    Attributes
    ----------
    groups : the groups of the actor that the driver uses: the other members may read messages that it sent before its death.
    """

    def __init__(self, memory: Memory, actor: int, name: str) -> None:
        super().__init__(memory, actor, name)
        self._issued = 0
        self._cleared = 0  # number of its slots without future readers
        self.groups: WeakSet[Any] = WeakSet()
        self._unwritten: set[tuple[int, int]] = (
            set()
        )  # uses of slots that will never be written, though the actor is alive

    @property
    def is_mapped(self) -> bool:
        """Whether the actor has mapped the file, and so is on the driver's machine."""
        return self.region.words[STARTED] != 0

    def lend(self, returns: int, reads: list[RefArgument], in_memory: bool) -> CallSlots | None:
        """Return the slots of memory for a call of this actor; None if it gets none.

        Parameters
        ----------
        returns : number of its results.
        reads : the arguments that may be in the memory.
        in_memory : whether its results may be in the memory.
        """
        mapped = self.is_mapped
        spots: list[Spot] = []
        if mapped and in_memory:
            with contextlib.suppress(RunError):  # if no slot is free, the results are Ray's
                spots = [Spot(self, *slot) for slot in self.new_slots(returns)]
        if not spots and not reads:
            return None
        slots = CallSlots(self._issued if mapped else None, spots, reads)
        self._issued += mapped
        return slots

    def count(self, spot: Spot) -> tuple[Region, int]:
        """Count the actor as a reader of an argument; return the region and the position of that count."""
        region, place = spot.side.region, spot.slot * MAX_ACTORS + self.actor
        region.issued[place] = (region.issued[place] + 1) & 0xFFFF
        return region, place

    def mark_unwritten(self, spot: Spot) -> None:
        """Record that a slot will not be written."""
        self._unwritten.add((spot.slot, spot.generation))

    def has_begun(self, number: int) -> bool:
        """Whether the actor has begun a call; an old call counts as begun."""
        return self._issued - number > BEGUN or self.region.begun[number % BEGUN] == number + 1

    def clear(self) -> bool:
        """Return whether nothing is left of an ended actor: neither its process, nor a use of its values, nor a group.

        After the end of the process, its slots as a reader can be reused; after the last use, its memory is released.
        """
        pid, started = self.region.words[PID : STARTED + 1]
        if not self.dead and started and not is_gone((pid, started)):
            return False
        self.region.words[DEAD] = 1
        while self._cleared < self._unused:
            generation, dropped = self.region.slots[self._cleared * SLOT_WORDS :][: DROPPED + 1]
            if dropped != generation or self.region.unread(self._cleared, self._memory.actors(), self._memory.dead):
                return False
            self._cleared += 1
        if self.groups:
            return False
        self.region.empty()
        return True

    def value(self, spot: Spot, stored: Any, ref: Any) -> Any:
        """Return the value of a slot, or Ray's object ``stored``; arrays of the value keep ``ref`` alive."""
        if not holds_value(self.region, spot.slot, spot.generation):
            return stored
        return read_value(self._memory, self.actor, spot.slot, release=functools.partial(_keep, ref))[0]

    def _is_free(self, slot: int) -> bool:
        use = slot, self.region.slots[slot * SLOT_WORDS + GENERATION]
        if use in self._unwritten:
            self._unwritten.discard(use)
            return True
        return super()._is_free(slot)


class Spot(NamedTuple):
    """One use of a slot: where a result may be."""

    side: Side
    slot: int
    generation: int


class CallSlots:
    """The slots of memory that a call was given.

    Parameters
    ----------
    number : number of the actor's call, if the actor counts its reads; otherwise the driver keeps the refs until the call has
        ended.
    spots : where the results may be; empty if they are Ray's.
    reads : which arguments may be in the memory.
    """

    __slots__ = ("_counts", "_kept", "_reads", "number", "spots")

    def __init__(self, number: int | None, spots: list[Spot], reads: list[RefArgument]) -> None:
        self.number, self.spots, self._reads = number, spots, reads
        self._counts: list[tuple[Region, int]] = []
        self._kept: list[Ref] = []

    def header(self) -> SlotHeader:
        """Return the information for the actor."""
        outs = [(spot.slot, spot.generation) for spot in self.spots]
        spots = [(where, ref.spot) for where, ref in self._reads]
        reads = [(where, spot.side.actor, spot.slot, spot.generation) for where, spot in spots if spot is not None]
        return self.number, outs, reads

    def give(self, side: Side | None) -> None:
        """Count the reads of the call, once it is issued."""
        refs, self._reads = [ref for _, ref in self._reads], []
        if side is None or self.number is None:
            self._kept = refs
        else:
            self._counts = [side.count(ref.spot) for ref in refs if ref.spot is not None]

    def refuse(self) -> None:
        """Take the slots back, because the call could not be issued."""
        for spot in self.spots:
            spot.side.mark_unwritten(spot)
            spot.side.drop(spot.slot, spot.generation)

    def take_back(self, side: Side | None) -> None:
        """Undo `give` for a call that Ray could not execute, unless the actor had begun the call."""
        if side is None or self.number is None or side.has_begun(self.number):
            return
        for region, place in self._counts:
            region.issued[place] = (region.issued[place] - 1) & 0xFFFF
        for spot in self.spots:
            spot.side.mark_unwritten(spot)


def _keep(_: Any) -> None:
    """Keep a ref alive as long as this bound method."""
