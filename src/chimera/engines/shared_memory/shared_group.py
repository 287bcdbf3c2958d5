"""Collectives over shared memory: each member reduces its shard of the vector for all members."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ActorLost
from chimera.core.parameters import reduce_in_order, shard_bounds
from chimera.engines.collectives import Costs, Op, check_root, check_sizes, flat_of, scale_of
from chimera.engines.shared_memory.mailboxes import Mailboxes
from chimera.engines.shared_memory.memory import DEAD, DRIVER, Memory, fence
from chimera.engines.shared_memory.notifier import Notifier

SPIN_S = 100e-6
_WORDS = 8  # a cache line for each member
_ARRIVALS, _OFFSET, _SIZE = 0, 1, 2
_CHUNK = 1 << 16  # elements reduced at a time, so that the partial sum stays in cache


def allocate_table(memory: Memory, size: int) -> int:
    """Allocate the words that a group of ``size`` members shares, in the driver's region; return their offset."""
    table = memory.heap.allocate(_table_bytes(size))
    memory.block(DRIVER, table, _table_bytes(size))[:] = 0
    return table


class SharedGroup:
    """A group inside one of its members. All members map the file of ``memory``.

    Parameters
    ----------
    costs : the context of this actor.
    memory, notifier : memory and notifier of this actor's process.
    table : result of `allocate_table`.
    members, names : numbers of the members' regions, and names of the actors, in rank order.
    look : called repeatedly while this member waits; it may raise `ActorLost`.
    """

    def __init__(
        self,
        costs: Costs,
        memory: Memory,
        notifier: Notifier,
        table: int,
        members: Sequence[int],
        names: Sequence[str],
        look: Callable[[], None] | None = None,
    ) -> None:
        self._costs, self._memory, self._notifier = costs, memory, notifier
        self._members, self._names, self._look = tuple(members), tuple(names), look
        self._rank = self._members.index(memory.me)
        words = memory.block(DRIVER, table, _table_bytes(self.size))
        self._words = memoryview(words).cast("q")  # type: ignore[arg-type]
        rows = range(0, self.size * _WORDS, _WORDS)
        self._arrival_words = [row + _ARRIVALS for row in rows]
        self._mailboxes = Mailboxes(
            costs, memory, notifier, (self._words, rows), members, self._rank, self._ensure_alive
        )
        self._arrivals = 0
        self._staging: NDArray[np.float32] | None = None
        self._partial = np.empty(_CHUNK, np.float32)

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self._members)

    def barrier(self) -> None:
        """Return when all members have arrived."""
        self._arrivals += 1
        arrivals, words, places = self._arrivals, self._words, self._arrival_words
        fence()
        words[self._rank * _WORDS] = arrivals

        def all_here() -> bool:
            return all(words[place] >= arrivals for place in places)

        self._costs.alive()
        self._notifier.ring_members(self._members)
        began = time.monotonic()
        try:
            # Any death fails the barrier, even of a member that had arrived: later barriers cannot complete.
            self._notifier.await_members(all_here, self._ensure_alive, self._members, SPIN_S)
        finally:
            self._costs.waited_s += time.monotonic() - began
        fence()

    def all_reduce(self, array: NDArray[np.float32], op: Op = "mean") -> NDArray[np.float32]:
        """Reduce in place over all members, in rank order; every member gets the same bits."""
        scale = scale_of(op, self.size)
        vectors, own = self._meet(array)
        begin, end = shard_bounds(array.size, self.size)[self._rank : self._rank + 2]
        for low in range(begin, end, _CHUNK):
            high = min(low + _CHUNK, end)
            pieces = [vector[low:high] for vector in vectors]
            total = reduce_in_order(pieces, self._partial[: high - low], scale)
            for piece in pieces:
                np.copyto(piece, total)
        self._costs.collective_bytes += 2 * array.nbytes * (self.size - 1) // self.size
        return self._part(array, own)

    def broadcast(self, array: NDArray[np.float32], root: int = 0) -> NDArray[np.float32]:
        """Overwrite ``array`` with the array of member ``root``, in place."""
        check_root(root, self.size)
        vectors, own = self._meet(array)
        if self._rank != root:
            own[:] = vectors[root]
            self._costs.collective_bytes += array.nbytes
        return self._part(array, own)

    def _meet(self, array: NDArray[np.float32]) -> tuple[list[NDArray[np.float32]], NDArray[np.float32]]:
        """Wait until all members have provided their vectors; return all vectors, and this member's."""
        flat = flat_of(array)
        offset = self._memory.locate(flat)
        if offset is None:  # not in shared memory: use a copy
            if self._staging is None or self._staging.size < flat.size:
                self._staging = self._costs.empty(flat.size)
            offset = self._memory.locate(self._staging)
            self._staging[: flat.size] = flat
        row = self._rank * _WORDS
        self._words[row + _OFFSET], self._words[row + _SIZE] = offset or 0, flat.size
        self.barrier()
        sizes = [self._words[i * _WORDS + _SIZE] for i in range(self.size)]
        if len(set(sizes)) > 1:
            self.barrier()  # no member changes its row before all have read it
            check_sizes(sizes)
        vectors = [
            self._memory.block(member, self._words[i * _WORDS + _OFFSET], 4 * flat.size).view(np.float32)
            for i, member in enumerate(self._members)
        ]
        return vectors, vectors[self._rank]

    def _part(self, array: NDArray[np.float32], own: NDArray[np.float32]) -> NDArray[np.float32]:
        """Wait until all members are done with the vectors; if this member's was a copy, write it back to ``array``."""
        self.barrier()
        self._check()  # the memory of a dead member may have been freed before all members had read it
        if self._memory.locate(array) is None:
            array.reshape(-1)[:] = own
        return array

    def send(self, values: Mapping[int, Any]) -> None:
        """See `Group.send`."""
        self._mailboxes.send(values)

    def receive(self, members: Sequence[int], count: int | None = None) -> dict[int, Any]:
        """See `Group.receive`."""
        return self._mailboxes.receive(members, count)

    def _ensure_alive(self) -> None:
        if self._look is not None:
            self._look()
        self._check()

    def _check(self) -> None:
        for member, name in zip(self._members, self._names, strict=True):
            if self._memory.region(member).words[DEAD]:
                raise ActorLost(f"{name} died, and its group with it")


def _table_bytes(size: int) -> int:
    return size * _WORDS * 8
