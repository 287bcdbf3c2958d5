"""Collectives over shared memory: each member reduces its share of the vector for all of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from chimera.core import call
from chimera.core.errors import ActorLost, ConfigurationError
from chimera.core.parameters import reduce_in_order, shard_bounds
from chimera.engines.local.process import LocalSurroundings, actor_name
from chimera.engines.shared_memory import DEAD, DRIVER, Memory, fence

SPIN_S = 100e-6
_WORDS = 8  # a cache line for each member
_ARRIVALS, _OFFSET, _SIZE = 0, 1, 2
_CHUNK = 1 << 16  # elements reduced at a time, so that the partial sum stays in cache


class GroupHandle:
    """A group as the driver holds it. Travels as an argument; inside a member it becomes a `LocalGroup`."""

    def __init__(self, memory: Memory, members: Sequence[int]) -> None:
        self._members = tuple(members)
        self._table = memory.heap.allocate(len(members) * _WORDS * 8)
        memory.block(DRIVER, self._table, len(members) * _WORDS * 8)[:] = 0

    @property
    def size(self) -> int:
        """How many members."""
        return len(self._members)

    def __reduce__(self) -> tuple[Any, ...]:
        return _join, (self._table, self._members)


def _join(table: int, members: tuple[int, ...]) -> LocalGroup:
    surroundings = call._surroundings
    if not isinstance(surroundings, LocalSurroundings):
        raise ConfigurationError("a group works inside the actors that are its members")
    if table not in surroundings.groups:  # the count of arrivals goes on from call to call
        surroundings.groups[table] = LocalGroup(surroundings, table, members)
    group: LocalGroup = surroundings.groups[table]
    return group


class LocalGroup:
    """A group inside one of its members."""

    def __init__(self, surroundings: LocalSurroundings, table: int, members: tuple[int, ...]) -> None:
        memory = surroundings.memory
        if memory.me not in members:
            raise ConfigurationError(f"{actor_name(memory, memory.me)} is not a member of this group")
        self._surroundings, self._memory, self._members = surroundings, memory, members
        self._rank = members.index(memory.me)
        words = memory.block(DRIVER, table, len(members) * _WORDS * 8)
        self._words = memoryview(words).cast("q")  # type: ignore[arg-type]
        self._arrival_words = range(_ARRIVALS, len(members) * _WORDS, _WORDS)
        self._arrivals = 0
        self._staging: NDArray[np.float32] | None = None
        self._partial = np.empty(_CHUNK, np.float32)

    @property
    def size(self) -> int:
        """How many members."""
        return len(self._members)

    def barrier(self) -> None:
        """Return when all members have arrived."""
        self._arrivals += 1
        arrivals, words, places = self._arrivals, self._words, self._arrival_words
        fence()
        words[self._rank * _WORDS] = arrivals

        def all_here() -> bool:
            return all(words[place] >= arrivals for place in places)

        def check() -> None:
            for (
                member
            ) in self._members:  # whoever died, arrived or not: the rest of what they do together cannot be done
                if self._memory.region(member).words[DEAD]:
                    raise ActorLost(f"{actor_name(self._memory, member)} died, and its group with it")

        self._surroundings.alive()
        self._surroundings.doorbell.ring_members(self._members)
        began = time.monotonic()
        self._surroundings.doorbell.await_members(all_here, check, self._members, SPIN_S)
        self._surroundings.waited_s += time.monotonic() - began
        fence()

    def all_reduce(self, array: NDArray[np.float32], op: Literal["mean", "sum"] = "mean") -> NDArray[np.float32]:
        """Reduce in place over all members, in rank order; every member gets the same bits."""
        if op not in ("mean", "sum"):
            raise ConfigurationError(f"all_reduce has no operation {op!r}; it has mean and sum")
        vectors, mine = self._meet(array)
        scale = 1 / self.size if op == "mean" else 1.0
        begin, end = shard_bounds(array.size, self.size)[self._rank : self._rank + 2]
        for low in range(begin, end, _CHUNK):
            high = min(low + _CHUNK, end)
            pieces = [vector[low:high] for vector in vectors]
            total = reduce_in_order(pieces, self._partial[: high - low], scale)
            for piece in pieces:
                np.copyto(piece, total)
        self.barrier()
        self._surroundings.collective_bytes += 2 * array.nbytes * (self.size - 1) // self.size
        return self._bring_back(array, mine)

    def broadcast(self, array: NDArray[np.float32], root: int = 0) -> NDArray[np.float32]:
        """Fill ``array`` with that of member ``root``, in place."""
        vectors, mine = self._meet(array)
        if self._rank != root:
            mine[:] = vectors[root]
            self._surroundings.collective_bytes += array.nbytes
        self.barrier()
        return self._bring_back(array, mine)

    def _meet(self, array: NDArray[np.float32]) -> tuple[list[NDArray[np.float32]], NDArray[np.float32]]:
        """Return the vectors of all members, and this one's, once all have brought theirs."""
        flat = array.reshape(-1)
        offset = self._place(flat)
        if offset is None:  # not in shared memory: bring a copy
            if self._staging is None or self._staging.size < flat.size:
                self._staging = self._surroundings.empty(flat.size)
            offset = self._memory.locate(self._staging)
            self._staging[: flat.size] = flat
        row = self._rank * _WORDS
        self._words[row + _OFFSET], self._words[row + _SIZE] = offset or 0, flat.size
        self.barrier()
        sizes = [self._words[i * _WORDS + _SIZE] for i in range(self.size)]
        if len(set(sizes)) > 1:
            self.barrier()  # nobody changes its row before all have seen it
            raise ConfigurationError(f"the members of a group brought vectors of unequal sizes: {sizes}")
        vectors = [
            self._memory.block(member, self._words[i * _WORDS + _OFFSET], 4 * flat.size).view(np.float32)
            for i, member in enumerate(self._members)
        ]
        return vectors, vectors[self._rank]

    def _place(self, flat: NDArray[np.float32]) -> int | None:
        """Return where in this member's shared memory the vector lies, if it does."""
        if flat.dtype != np.float32 or not flat.flags.c_contiguous:
            raise ConfigurationError("a collective needs a contiguous float32 array")
        return self._memory.locate(flat)

    def _bring_back(self, array: NDArray[np.float32], mine: NDArray[np.float32]) -> NDArray[np.float32]:
        if self._place(array.reshape(-1)) is None:
            array.reshape(-1)[:] = mine
        return array
