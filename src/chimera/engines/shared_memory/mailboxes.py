"""Messages between the members of a group over shared memory: one place for each pair of sender and receiver."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from chimera.core.message import Encoded
from chimera.core.pickling import marshalled, unmarshalled
from chimera.engines.collectives import Costs, check_count
from chimera.engines.shared_memory.memory import Memory, fence
from chimera.engines.shared_memory.notifier import Notifier
from chimera.engines.shared_memory.values import Packed, is_plain, opened

SENT, PLACES = 3, 4  # words of a member's row in the table: number of sent messages, and offset of its places
_WORDS = 4  # words of a place: number of the last message to the receiver, offset and length of its description
_NUMBER, _OFFSET, _LENGTH = 0, 1, 2

_SPIN_S = 0.0  # sleep at once: other members compute meanwhile, and need this core


class Mailboxes:
    """Sends and receives messages in one member of a group.

    The sender's region holds a description of each message. Receivers read arrays in that region in place; the sender copies
    other arrays to it. A message exists as soon as the sender has counted it, and one count covers all receivers of a `send`.
    So all receivers agree on the message, also after the death of the sender, whose memory stays.

    Parameters
    ----------
    costs, memory, notifier : context, memory and notifier of this actor's process.
    rows : the first word of each member's row in the table of the group, and all words of the table.
    members : numbers of the members' regions, in rank order.
    rank : rank of this member.
    check : raises if a member is dead.
    """

    def __init__(
        self,
        costs: Costs,
        memory: Memory,
        notifier: Notifier,
        rows: tuple[memoryview[int], Sequence[int]],
        members: Sequence[int],
        rank: int,
        check: Callable[[], None],
    ) -> None:
        self._costs, self._memory, self._notifier, self._check = costs, memory, notifier, check
        (self._words, self._row_at), self._members, self._rank = rows, members, rank
        self._own: memoryview[int] | None = None  # the places of this sender
        self._places: dict[int, memoryview[int]] = {}  # places of the other senders for this member, by sender
        self._received = [0] * len(members)  # number of the last message from each member
        self._last: dict[int, tuple[bytes, Any, int]] = {}  # by sender: description of its last message, message, bytes
        self._described_before: dict[
            tuple[int, ...], tuple[Any, bytes, int]
        ] = {}  # by receivers: vectors in this region
        self._blocks: dict[Any, tuple[int, int]] = {}  # offset and size of memory for descriptions and copies

    def send(self, values: Mapping[int, Any]) -> None:
        """See `Group.send`."""
        receivers: dict[int, list[int]] = {}
        for rank, value in values.items():
            receivers.setdefault(id(value), []).append(rank)
        number = self._words[self._row_at[self._rank] + SENT] + 1
        places = self._own_places()
        sent = 0
        for ranks in receivers.values():
            description, nbytes = self._described(values[ranks[0]], tuple(ranks))
            sent += nbytes  # one copy for all, like the result of a call
            offset = self._block(("description", *ranks), len(description))
            self._memory.own.bytes[offset : offset + len(description)] = description
            for rank in ranks:
                at = rank * _WORDS
                places[at + _OFFSET], places[at + _LENGTH], places[at + _NUMBER] = offset, len(description), number
        fence()
        self._words[self._row_at[self._rank] + SENT] = number
        self._costs.sent_bytes += sent
        self._costs.alive()
        self._notifier.ring_members([self._members[rank] for rank in values])

    def receive(self, members: Sequence[int], count: int | None = None) -> dict[int, Any]:
        """See `Group.receive`."""
        wanted = check_count(members, count)
        if not self._arrived(members, wanted):
            self._costs.alive()
            began = time.monotonic()
            regions = [self._members[rank] for rank in members]
            self._notifier.await_members(lambda: self._arrived(members, wanted), self._check, regions, _SPIN_S)
            self._costs.waited_s += time.monotonic() - began
        fence()
        there = members if wanted == len(members) else [rank for rank in members if self._number(rank)][:wanted]
        return {rank: self._opened(rank) for rank in there}

    def _arrived(self, members: Sequence[int], wanted: int) -> bool:
        there = 0
        for rank in members:
            if self._number(rank):
                there += 1
                if there == wanted:
                    return True
        return False

    def _number(self, rank: int) -> int:
        """Return the number of a message from a member that has not been received; 0 if there is none."""
        sent: int = self._words[self._row_at[rank] + SENT]
        if sent <= self._received[rank]:
            return 0
        place = self._places.get(rank)
        if place is None:
            fence()
            region, at = self._memory.region(self._members[rank]), self._words[self._row_at[rank] + PLACES]
            at += self._rank * _WORDS * 8
            place = self._places[rank] = region.bytes[at : at + _WORDS * 8].cast("q")
        number: int = place[_NUMBER]
        return number if self._received[rank] < number <= sent else 0

    def _opened(self, rank: int) -> Any:
        """Take the message of a member out of its place; its arrays are read-only views of the sender's memory."""
        place, region = self._places[rank], self._memory.region(self._members[rank])
        self._received[rank] = place[_NUMBER]
        offset, length = place[_OFFSET], place[_LENGTH]
        description = region.bytes[offset : offset + length].tobytes()
        last = self._last.get(rank)
        if last is None or last[0] != description:
            form, stream, positions, nbytes = unmarshalled(description)
            value = opened(form, stream, [region.bytes[at : at + size].toreadonly() for at, size in positions])
            last = description, value, nbytes
            if is_plain(value):  # the next message may be the same arrays, with new content
                self._last[rank] = last
        self._costs.received_bytes += last[2]
        return last[1]

    def _described(self, value: Any, ranks: tuple[int, ...]) -> tuple[bytes, int]:
        """Return the description of a message, and its array bytes; arrays elsewhere are copied into the own region."""
        plain = type(value) is Encoded and value.plain and not value.meta
        vector = (value.codec, value.size, value.arrays[0].__array_interface__["data"][0]) if plain else None
        before = self._described_before.get(ranks)
        if plain and before is not None and before[0] == vector:
            return before[1:]
        packed = Packed(value)
        positions, copied = [], False
        for i, buffer in enumerate(packed.buffers):
            array = np.frombuffer(buffer, np.uint8)
            at = self._memory.locate(array) if buffer.nbytes else 0
            if at is None:
                copied = True
                at = self._block((i, *ranks), buffer.nbytes)
                self._memory.own.array[at : at + buffer.nbytes] = array
            positions.append((at, buffer.nbytes))
        nbytes = packed.array_bytes
        description = marshalled((packed.form, packed.stream, positions, nbytes))
        if plain and not copied:
            self._described_before[ranks] = vector, description, nbytes
        return description, nbytes

    def _block(self, key: Any, nbytes: int) -> int:
        """Return the offset of memory that messages to the same members share: each message is read before the next."""
        offset, size = self._blocks.get(key, (0, -1))
        if size < nbytes:
            offset = self._memory.heap.allocate(max(nbytes, 256))
            self._blocks[key] = offset, max(nbytes, 256)
        return offset

    def _own_places(self) -> memoryview[int]:
        if self._own is None:
            nbytes = len(self._members) * _WORDS * 8
            offset = self._memory.heap.allocate(nbytes)
            places = self._memory.own.bytes[offset : offset + nbytes].cast("q")
            for i in range(len(places)):
                places[i] = 0
            self._words[self._row_at[self._rank] + PLACES] = offset
            self._own = places
        return self._own
