"""The issue of calls, by the driver's thread and by the thread that issues calls of actors."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, TypeAlias

from chimera.core.pickling import marshalled
from chimera.engines.failure import Failure
from chimera.engines.local.process import Arrived, Out
from chimera.engines.local.refs import Channel, Ref
from chimera.engines.local.ring_buffers import ROWS, write_call
from chimera.engines.shared_memory.memory import DEAD, DRIVER, MAX_ACTORS, ROWS_WRITTEN, Memory, fence
from chimera.engines.shared_memory.notifier import Notifier
from chimera.engines.shared_memory.result_slots import publish, write_value
from chimera.engines.shared_memory.values import Packed

INLINE_BYTES = 1 << 14

Arguments: TypeAlias = tuple[list[Arrived | None], dict[str, Arrived], bytes | Arrived | None]
"""The arguments of a message: refs separately, and all other values packed, or in shared memory if large."""


class Calls:
    """The driver's writing side: slots, ring buffers of calls, and counters of readers.

    Attributes
    ----------
    lock : held by the writing thread, so that each word of the driver has one writer at a time.
    own : the channel of values that the driver puts.
    """

    def __init__(self, memory: Memory, notifier: Notifier, channels: list[Channel], began_s: float) -> None:
        self._memory, self._notifier, self._channels, self._began_s = memory, notifier, channels, began_s
        self.lock = threading.RLock()
        self.own = Channel(memory, DRIVER, "driver", -1)

    def put(self, value: Any) -> Ref:
        """Copy a value into shared memory, once. Readers of a `Failure` raise it."""
        packed = Packed(value)
        with self.lock:
            slot, generation = self.own.new_slot()
            write_value(self._memory, slot, generation, packed)
            publish(self._memory, slot, generation, int(type(value) is Failure))
        return Ref(self.own, slot, generation, "put", 0)

    def has_room(self, channel: Channel) -> bool:
        """Whether another call may be in flight: each needs an entry in the ring buffer of rows."""
        if channel.issued - channel.rows_read < ROWS:
            return True
        with self.lock:
            channel.keep_rows(self._began_s)
        return channel.dead or channel.issued - channel.rows_read < ROWS

    def calls_to_await(self, channel: Channel) -> int:
        """Return the number of calls in flight if a new call must wait for their slots; otherwise 0."""
        with self.lock:
            return channel.in_flight if channel.is_exhausted else 0

    def issue(
        self,
        channel: Channel,
        method: str,
        returns: int | None,
        outs: Sequence[Out],
        refs: list[Arrived | None],
        named: dict[str, Arrived],
        plain: bytes | Arrived | None,
    ) -> list[Ref]:
        """Send a call, and return the refs of its results, which will be in the slots ``outs``. The caller holds the lock."""
        results = [Ref(channel, slot, generation, method, channel.issued) for slot, generation in outs]
        message = marshalled([channel.issued, method, returns, outs, refs, named, plain])
        channel.issued += 1
        channel.calls.append(method)
        if (channel.backlog or not write_call(channel.region, message)) and not channel.dead:
            channel.backlog.append(message)
        fence()
        if self._memory.own.awaited[channel.actor] and not self._left_to_others(channel, refs, named):
            self._notifier.ring(channel.actor)
        return results

    def _left_to_others(self, channel: Channel, refs: list[Arrived | None], named: dict[str, Arrived]) -> bool:
        """Arrange that a sleeping actor is woken when a pending argument of its call is ready.

        The actor has no work before that. If it wakes for another reason, it finds the call and waits for the argument itself.
        """
        for arrival in (*refs, *named.values()):
            if arrival is not None:
                actor, slot, generation, number = arrival
                owner = self._memory.region(actor)
                if not owner.ready(slot, generation):
                    over, noted = owner.words[ROWS_WRITTEN], owner.concerns[channel.actor]
                    if over < noted <= number:
                        return not owner.words[DEAD]  # the actor is woken before
                    owner.concerns[channel.actor] = number + 1
                    fence()  # either the owner sees this, or this process sees that the value is ready
                    # The owner may have been about to read the note that this process has replaced.
                    return not (owner.ready(slot, generation) or owner.words[DEAD] or noted == over)
        return False

    def arguments(self, args: Sequence[Any], kwargs: dict[str, Any], channel: Channel) -> Arguments:
        """Return the message form of the arguments of a call. The caller holds the lock."""
        refs = [self.arrival(a, channel) if type(a) is Ref else None for a in args]
        named = {k: self.arrival(a, channel) for k, a in kwargs.items() if type(a) is Ref} if kwargs else {}
        if None not in refs and len(named) == len(kwargs):
            return refs, named, None
        plain = [a for a in args if type(a) is not Ref], {k: a for k, a in kwargs.items() if k not in named}
        packed = Packed(plain)
        if packed.buffers or len(packed.stream) > INLINE_BYTES:
            return refs, named, self.arrival(self.put(plain), channel)
        return refs, named, packed.stream

    def arrival(self, ref: Ref, channel: Channel) -> Arrived:
        """Count one more reader of a ref's value, and return its message form. The caller holds the lock."""
        region, place = ref.channel.region, ref.slot * MAX_ACTORS + channel.actor
        region.issued[place] = (region.issued[place] + 1) & 0xFFFF
        return ref.channel.actor, ref.slot, ref.generation, ref.number

    def send_backlogs(self) -> bool:
        """Send messages that had no room in the ring buffers; return whether some still wait."""
        waiting = False
        for channel in self._channels:
            if channel.backlog:
                with self.lock:
                    if channel.dead:
                        channel.backlog.clear()
                    while channel.backlog and write_call(channel.region, channel.backlog[0]):
                        channel.backlog.popleft()
                        self._notifier.ring(channel.actor)
                waiting = waiting or bool(channel.backlog)
        return waiting
