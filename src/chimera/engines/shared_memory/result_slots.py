"""ResultSlots: places in shared memory for the results of an actor.

The driver allocates a slot before the call, the actor writes the value, and holders of the ref read it. A slot is free
again when its value has no readers.
"""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from chimera.core.errors import ActorLost, RunError
from chimera.engines.shared_memory.memory import (
    ARRAY_BYTES,
    DEAD,
    DONE_NS,
    DROPPED,
    GENERATION,
    MAX_ACTORS,
    NBYTES,
    OFFSET,
    SLOT_WORDS,
    SLOTS,
    STATE,
    Memory,
    Region,
    fence,
)
from chimera.engines.shared_memory.values import Packed, unpack


class ResultSlots:
    """The driver's side of one actor's slots.

    Attributes
    ----------
    closed : whether the engine is closed. The slots need no bookkeeping then.
    """

    def __init__(self, memory: Memory, actor: int, name: str) -> None:
        self.actor, self.name = actor, name
        self.region = memory.region(actor)
        self.closed = False
        self._memory = memory
        self._unused = 0
        self._dropped: deque[int] = deque()

    @property
    def dead(self) -> bool:
        """Whether the actor is known to be dead."""
        return self.region.words[DEAD] == 1

    def new_slot(self) -> tuple[int, int]:
        """Return a free slot and the generation of this use.

        Raises
        ------
        RunError : all slots are in use.
        """
        slot = self._recycled(2)
        if slot is None and self._unused < SLOTS:
            slot, self._unused = self._unused, self._unused + 1
        if slot is None:
            slot = self._recycled(len(self._dropped))
        if slot is None:
            raise RunError(f"{SLOTS} values of {self.name} are alive: delete refs that are no longer needed")
        at = slot * SLOT_WORDS + GENERATION
        generation = self.region.slots[at] + 1
        self.region.slots[at] = generation
        return slot, generation

    def new_slots(self, count: int) -> list[tuple[int, int]]:
        """Return ``count`` free slots with their generations; allocate none if that fails."""
        slots: list[tuple[int, int]] = []
        try:
            slots.extend(self.new_slot() for _ in range(count))
        except RunError:
            for slot, generation in slots:
                self.region.slots[slot * SLOT_WORDS + GENERATION] = generation - 1
                self._dropped.append(slot)
            raise
        return slots

    @property
    def is_full(self) -> bool:
        """Whether every slot has been used."""
        return self._unused == SLOTS

    @property
    def is_exhausted(self) -> bool:
        """Whether every slot has been used, and the slots that were dropped first are not free yet."""
        return self.is_full and not any(self._is_free(self._dropped[i]) for i in range(min(2, len(self._dropped))))

    @property
    def expects_slots(self) -> bool:
        """Whether slots were dropped, which become free when their readers are done."""
        return bool(self._dropped)

    def drop(self, slot: int, generation: int) -> None:
        """Record that the value's ref was deleted: no later call receives the value."""
        if not self.closed:
            self.region.slots[slot * SLOT_WORDS + DROPPED] = generation
            self._dropped.append(slot)

    def _recycled(self, attempts: int) -> int | None:
        for _ in range(min(attempts, len(self._dropped))):
            slot = self._dropped.popleft()
            if self._is_free(slot):
                return slot
            self._dropped.append(slot)
        return None

    def _is_free(self, slot: int) -> bool:
        """Return whether a dropped slot will never be read or written again."""
        slots, at = self.region.slots, slot * SLOT_WORDS
        if slots[at + STATE] >> 1 == slots[at + GENERATION]:
            return not self.region.unread(slot, self._memory.actors(), self._memory.dead)
        return self.dead  # a dead actor never stores the value


def write_value(memory: Memory, slot: int, generation: int, packed: Packed) -> None:
    """Write a value for a slot of this process. Readers may use it after `publish`."""
    offset = memory.heap.lend(packed.nbytes, slot, generation)
    packed.write(memory.block(memory.me, offset, packed.nbytes))
    slots, at = memory.own.slots, slot * SLOT_WORDS
    slots[at + OFFSET], slots[at + NBYTES], slots[at + ARRAY_BYTES] = offset, packed.nbytes, packed.array_bytes


def write_nothing(memory: Memory, slot: int) -> None:
    """Record that the value of a slot of this process is stored elsewhere."""
    memory.own.slots[slot * SLOT_WORDS + NBYTES] = 0


def publish(memory: Memory, slot: int, generation: int, failed: int = 0) -> None:
    """Mark the value of a slot as done, so that readers may use it."""
    slots, at = memory.own.slots, slot * SLOT_WORDS
    slots[at + DONE_NS] = time.monotonic_ns()
    fence()
    slots[at + STATE] = 2 * generation + failed


def read_value(memory: Memory, actor: int, slot: int, release: Callable[[], None] | None = None) -> tuple[Any, bool]:
    """Return the published value of a slot, and whether it is a `Failure`."""
    region, at = memory.region(actor), slot * SLOT_WORDS
    _, _, state, offset, nbytes = region.slots[at : at + 5]
    release = release or functools.partial(count_done, region, slot, memory.me)
    return unpack(memory.block(actor, offset, nbytes), release), bool(state & 1)


def copy_value(memory: Memory, actor: int, slot: int, generation: int) -> Any:
    """Return a copy of a published value, for a reader that is not counted.

    Raises
    ------
    ActorLost : the value's ref was deleted during the copy, so the value may have been overwritten. This happens only if the
        driver counts the reading actor as dead.
    """
    region, at = memory.region(actor), slot * SLOT_WORDS
    block = memory.block(actor, *region.slots[at + OFFSET : at + NBYTES + 1]).copy()
    fence()
    if region.slots[at + GENERATION] != generation or region.slots[at + DROPPED] == generation:
        raise ActorLost("an argument was removed, because the driver counts this actor as dead")
    return unpack(block, None)


def holds_value(region: Region, slot: int, generation: int) -> bool:
    """Return whether the value of this use of the slot is published and stored in shared memory."""
    return region.ready(slot, generation) and region.slots[slot * SLOT_WORDS + NBYTES] > 0


def count_done(region: Region, slot: int, reader: int) -> None:
    """Count one finished read of a slot by ``reader``."""
    place = slot * MAX_ACTORS + reader
    region.done[place] = (region.done[place] + 1) & 0xFFFF
