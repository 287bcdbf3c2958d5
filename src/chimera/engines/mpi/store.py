"""The values of a rank: results of its actors, which other ranks fetch, and copies of values of other ranks."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable
from typing import TypeAlias

from chimera.engines.mpi.messages import FETCH, VALUE
from chimera.engines.mpi.messenger import Messenger
from chimera.engines.mpi.values import Kept

_INLINE_BYTES = 2048

Place: TypeAlias = tuple[int, int]
"""The rank that keeps a value, and the value's number, which is unique in the job."""


class StoredValue:
    """A value, present or awaited.

    Attributes
    ----------
    value : the value; None while it is awaited.
    failed : whether it is a `Failure`.
    ready_s : when it was ready, on the driver's clock.
    actor : the actor whose result it is; -1 for a value that was put, or a copy.
    users : calls of this rank that use a copy.
    """

    __slots__ = ("actor", "dropped", "failed", "ready_s", "users", "value", "waiting")

    def __init__(self, actor: int = -1) -> None:
        self.value: Kept | None = None
        self.failed, self.ready_s, self.actor, self.users = False, 0.0, actor, 0
        self.waiting: list[int] = []  # ranks that have asked for it
        self.dropped = False  # before it was ready


class Store:
    """The slots of this rank. A thread that uses it holds ``changed``, which is notified when a value arrives.

    Parameters
    ----------
    shift_s : seconds by which the driver's clock is ahead of this machine's.
    """

    def __init__(self, messenger: Messenger, changed: threading.Condition, shift_s: float) -> None:
        self._messenger, self._changed, self.shift_s = messenger, changed, shift_s
        self._numbers = itertools.count()
        self._own: dict[int, StoredValue] = {}
        self._copies: dict[int, StoredValue] = {}

    def now_s(self) -> float:
        """Return the time on the driver's clock."""
        return time.monotonic() + self.shift_s

    def new_number(self) -> int:
        """Return a number for a value that a call of this rank creates anywhere."""
        number: int = next(self._numbers) * self._messenger.size + self._messenger.rank
        return number

    def expect(self, number: int, actor: int) -> None:
        """Add a result of an actor of this rank, which is not ready yet."""
        self._own.setdefault(number, StoredValue()).actor = actor

    def fill(self, number: int, value: Kept, failed: bool) -> None:
        """Store a result, and send it to the ranks that wait for it."""
        slot = self._own.setdefault(number, StoredValue())
        slot.value, slot.failed, slot.ready_s = value, failed, self.now_s()
        for rank in slot.waiting:
            self._send(rank, number, slot)
        if slot.dropped:
            del self._own[number]
        self._changed.notify_all()

    def fetch(self, rank: int, number: int) -> None:
        """Send a value to another rank, now or when it is ready. Its call may not have arrived yet."""
        slot = self._own.setdefault(number, StoredValue())
        if slot.value is None:
            slot.waiting.append(rank)
        else:
            self._send(rank, number, slot)

    def arrive(self, number: int, value: Kept, failed: bool, ready_s: float) -> None:
        """Store a copy that this rank has asked for."""
        slot = self._copies.get(number)
        if slot is not None:
            slot.value, slot.failed, slot.ready_s = value, failed, ready_s
            self._changed.notify_all()

    def borrow(self, place: Place) -> StoredValue:
        """Return a value for one user. Request a copy from its rank unless this rank has the value or a copy."""
        owner, number = place
        if owner == self._messenger.rank:
            return self._own.setdefault(number, StoredValue())
        slot = self._copies.get(number)
        if slot is None:
            slot = self._copies[number] = StoredValue()
            self._messenger.send(owner, (FETCH, number))
        slot.users += 1
        return slot

    def give_back(self, place: Place) -> None:
        """Forget a copy that has no more users."""
        owner, number = place
        slot = self._copies.get(number) if owner != self._messenger.rank else None
        if slot is not None:
            slot.users -= 1
            if slot.users == 0:
                del self._copies[number]

    def drop(self, numbers: Iterable[int]) -> None:
        """Free values that have no more readers."""
        for number in numbers:
            slot = self._own.get(number)
            if slot is None:
                continue
            if slot.value is None:
                slot.dropped = True
            else:
                del self._own[number]

    def drop_actors(self, actors: Iterable[int]) -> None:
        """Free all results of actors of a closed engine."""
        closed = frozenset(actors)
        self._own = {number: slot for number, slot in self._own.items() if slot.actor not in closed}

    def _send(self, rank: int, number: int, slot: StoredValue) -> None:
        assert slot.value is not None
        message = VALUE, number, slot.failed, slot.ready_s, slot.value.described()
        self._messenger.send(rank, message, slot.value.buffers)


def fits_in_message(values: Iterable[Kept]) -> bool:
    """Return whether results are so small that they are sent with the notice that they are ready."""
    return sum(len(value.stream) + value.array_bytes for value in values) <= _INLINE_BYTES
