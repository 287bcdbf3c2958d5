"""How calls are issued, by the driver's thread and by the thread that issues them for actors."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, TypeAlias

from chimera.core.pickling import marshalled
from chimera.engines.doorbell import Doorbell
from chimera.engines.failure import Failure
from chimera.engines.local.process import Arrived, Out
from chimera.engines.local.refs import Lane, Ref
from chimera.engines.local.rings import ROWS, write_call
from chimera.engines.shared_memory import DEAD, DRIVER, MAX_ACTORS, ROWS_WRITTEN, Memory, fence
from chimera.engines.slots import publish, write_value
from chimera.engines.values import Packed

INLINE_BYTES = 1 << 14

Arguments: TypeAlias = tuple[list[Arrived | None], dict[str, Arrived], bytes | Arrived | None]
"""The arguments of a message: refs separately, and all other values packed, or in shared memory if large."""


class Calls:
    """The driver's writing side: slots, ring buffers of calls, and counters of readers.

    Attributes
    ----------
    lock : held by the writing thread, so that each word of the driver has one writer at a time.
    own : the lane of values that the driver puts.
    """

    def __init__(self, memory: Memory, doorbell: Doorbell, lanes: list[Lane], began_s: float) -> None:
        self._memory, self._doorbell, self._lanes, self._began_s = memory, doorbell, lanes, began_s
        self.lock = threading.RLock()
        self.own = Lane(memory, DRIVER, "driver", -1)

    def put(self, value: Any) -> Ref:
        """Copy a value into shared memory, once. Readers of a `Failure` raise it."""
        packed = Packed(value)
        with self.lock:
            slot, generation = self.own.new_slot()
            write_value(self._memory, slot, generation, packed)
            publish(self._memory, slot, generation, int(type(value) is Failure))
        return Ref(self.own, slot, generation, "put", 0)

    def has_room(self, lane: Lane) -> bool:
        """Whether another call may be in flight: each needs an entry in the ring buffer of rows."""
        if lane.issued - lane.rows_read < ROWS:
            return True
        with self.lock:
            lane.keep_rows(self._began_s)
        return lane.dead or lane.issued - lane.rows_read < ROWS

    def crowd(self, lane: Lane) -> int:
        """Return the number of calls in flight if a new call must wait for their slots; otherwise 0."""
        with self.lock:
            return lane.under_way if lane.is_crowded else 0

    def issue(
        self,
        lane: Lane,
        method: str,
        returns: int | None,
        outs: Sequence[Out],
        refs: list[Arrived | None],
        named: dict[str, Arrived],
        plain: bytes | Arrived | None,
    ) -> list[Ref]:
        """Send a call, and return the refs of its results, which will be in the slots ``outs``. The caller holds the lock."""
        results = [Ref(lane, slot, generation, method, lane.issued) for slot, generation in outs]
        message = marshalled([lane.issued, method, returns, outs, refs, named, plain])
        lane.issued += 1
        lane.calls.append(method)
        if (lane.backlog or not write_call(lane.region, message)) and not lane.dead:
            lane.backlog.append(message)
        fence()
        if self._memory.own.awaited[lane.actor] and not self._left_to_others(lane, refs, named):
            self._doorbell.ring(lane.actor)
        return results

    def _left_to_others(self, lane: Lane, refs: list[Arrived | None], named: dict[str, Arrived]) -> bool:
        """Have a sleeping actor woken when a pending argument of its call is ready.

        The actor can do nothing before. If it wakes for another reason, it finds the call and waits for the argument itself.
        """
        for arrival in (*refs, *named.values()):
            if arrival is not None:
                actor, slot, generation, number = arrival
                owner = self._memory.region(actor)
                if not owner.ready(slot, generation):
                    over, noted = owner.words[ROWS_WRITTEN], owner.concerns[lane.actor]
                    if over < noted <= number:
                        return not owner.words[DEAD]  # the actor is woken before
                    owner.concerns[lane.actor] = number + 1
                    fence()  # either the owner sees this, or this process sees that the value is ready
                    # The owner may have been about to read the note that this one replaced.
                    return not (owner.ready(slot, generation) or owner.words[DEAD] or noted == over)
        return False

    def arguments(self, args: Sequence[Any], kwargs: dict[str, Any], lane: Lane) -> Arguments:
        """Return the message form of the arguments of a call. The caller holds the lock."""
        refs = [self.arrival(a, lane) if type(a) is Ref else None for a in args]
        named = {k: self.arrival(a, lane) for k, a in kwargs.items() if type(a) is Ref} if kwargs else {}
        if None not in refs and len(named) == len(kwargs):
            return refs, named, None
        plain = [a for a in args if type(a) is not Ref], {k: a for k, a in kwargs.items() if k not in named}
        packed = Packed(plain)
        if packed.buffers or len(packed.stream) > INLINE_BYTES:
            return refs, named, self.arrival(self.put(plain), lane)
        return refs, named, packed.stream

    def arrival(self, ref: Ref, lane: Lane) -> Arrived:
        """Count one more reader of a ref's value, and return its message form. The caller holds the lock."""
        region, place = ref.lane.region, ref.slot * MAX_ACTORS + lane.actor
        region.issued[place] = (region.issued[place] + 1) & 0xFFFF
        return ref.lane.actor, ref.slot, ref.generation, ref.number

    def send_backlogs(self) -> bool:
        """Send messages that had no room in the ring buffers; return whether some still wait."""
        waiting = False
        for lane in self._lanes:
            if lane.backlog:
                with self.lock:
                    if lane.dead:
                        lane.backlog.clear()
                    while lane.backlog and write_call(lane.region, lane.backlog[0]):
                        lane.backlog.popleft()
                        self._doorbell.ring(lane.actor)
                waiting = waiting or bool(lane.backlog)
        return waiting
