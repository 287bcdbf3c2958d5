"""One sparse file that every process of an engine maps, where they are on one machine.

Each actor owns one region of it, and the driver owns region 0. A region holds words that say how its owner is doing, slots
that say where results lie, counters of who still reads them, a ring for the calls that the driver sends, a ring for trace
rows, a table of the driver's answers to calls that the owner makes on other actors, and a heap for data. Every word has one
writer, so no locks are needed between processes. The file has no name: it vanishes with the last process that has it open,
however that process ends.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_ACTORS = 256
SLOTS = 1 << 14
DRIVER = 0

_MIB = 1 << 20
_REGION = 32 << 30  # virtual: pages that nobody touched cost nothing
NAME_AT, NAME_BYTES = 2048, 512
_WORDS = 1024
_GATHERING_AT = 1024
BELL_AT = 1536
_AWAITED_AT = 4096
_CONCERNS_AT = 6144
_SLOTS_AT = 8192
_BEGUN_AT = _SLOTS_AT + _MIB + _MIB // 2
_ISSUED_AT = 2 * _MIB
_DONE_AT = 10 * _MIB
ROWS_AT = 18 * _MIB
_ANSWERS_AT = 20 * _MIB
CALLS_AT = 24 * _MIB
CALLS_BYTES = 8 * _MIB
_HEAP_AT = 32 * _MIB

# Words in the first page of a region, by writer.
DEAD = 0  # driver: 1 when the owner is dead
ACTORS = 1  # driver, in its own region: how many actors there are, itself included
ROWS_WRITTEN = 2  # owner: trace rows so far
CALLS_WRITTEN = 3  # driver: end of what was written to the ring of calls
CALLS_READ = 4  # owner: end of what it took from it
SIGN_NS = 5  # owner: when it gave its last sign of life, on the monotonic clock
PID, STARTED = 6, 7  # owner: which process it is, as `this_process` says, once it has mapped the file

# Words of a slot, by writer.
SLOT_WORDS = 8
GENERATION = 0  # driver: which use of the slot this is
DROPPED = 1  # driver: the generation whose ref is gone
STATE = 2  # owner: twice the generation once the result stands, plus one if it is an error
OFFSET, NBYTES, ARRAY_BYTES, DONE_NS = (
    3,
    4,
    5,
    6,
)  # owner: where the result lies, its size, its array bytes, when it stood

# Words of an answer, all written by the driver: which ticket it answers, and where its value will stand.
ANSWERS, ANSWER_WORDS = 1 << 14, 8
TICKET = 0

BEGUN = 1 << 14
"""Of so many of the latest calls it is known whether they have begun."""

_barrier = threading.Lock()


def fence() -> None:
    """Order memory accesses before it and after it; a lock's atomic instructions are a full barrier."""
    _barrier.acquire()
    _barrier.release()


def create_file() -> int:
    """Return the descriptor of a new sparse file that has no name and is not on a disk where the system allows it."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("chimera", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile(prefix="chimera-") as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, MAX_ACTORS * _REGION)
    return fd


class Region:
    """One actor's region, as this process sees it."""

    def __init__(self, fd: int, actor: int) -> None:
        self.actor = actor
        self._mapping = mmap.mmap(fd, _REGION, offset=actor * _REGION)
        self.array = np.frombuffer(self._mapping, np.uint8)
        self.address: int = self.array.__array_interface__["data"][0]
        view = self.bytes = memoryview(self.array)  # type: ignore[arg-type]
        self.words = view[:_WORDS].cast("q")
        # What others wait for, each writing its own place: until this many of the owner's calls are over, or (a flag) until
        # it arrives at the barrier of a group. Nothing is awaited where there is a zero.
        self.awaited = view[_AWAITED_AT : _AWAITED_AT + MAX_ACTORS * 8].cast("q")
        # The driver's: whom a call of the owner's concerns that has to wait for it, by how many are over then.
        self.concerns = view[_CONCERNS_AT : _CONCERNS_AT + MAX_ACTORS * 8].cast("q")
        self.gathering = view[_GATHERING_AT : _GATHERING_AT + MAX_ACTORS]
        self.slots = view[_SLOTS_AT : _SLOTS_AT + SLOTS * SLOT_WORDS * 8].cast("q")
        self.answers = view[_ANSWERS_AT : _ANSWERS_AT + ANSWERS * ANSWER_WORDS * 8].cast("q")
        self.begun = view[_BEGUN_AT : _BEGUN_AT + BEGUN * 8].cast("q")
        self.issued = view[_ISSUED_AT : _ISSUED_AT + SLOTS * MAX_ACTORS * 2].cast("H")
        self.done = view[_DONE_AT : _DONE_AT + SLOTS * MAX_ACTORS * 2].cast("H")

    def sign(self) -> None:
        """Let the owner give a sign of life."""
        self.words[SIGN_NS] = time.monotonic_ns()

    def ready(self, slot: int, generation: int) -> bool:
        """Whether the result of this use of the slot stands."""
        return self.slots[slot * SLOT_WORDS + STATE] >> 1 == generation

    def empty(self) -> None:
        """Give the memory of the heap back to the system; its owner is gone, and nobody reads it."""
        if hasattr(mmap, "MADV_REMOVE"):
            self._mapping.madvise(mmap.MADV_REMOVE, _HEAP_AT, _REGION - _HEAP_AT)

    def unread(self, slot: int, actors: int, dead: Callable[[], Sequence[int]]) -> bool:
        """Whether some living reader still has this slot's value, or will ask for it."""
        low = slot * MAX_ACTORS
        issued, done = self.issued[low : low + actors], self.done[low : low + actors]
        if issued.tobytes() == done.tobytes():
            return False
        gone = dead()
        return any(issued[i] != done[i] for i in range(actors) if i not in gone)


class Lease(np.ndarray[Any, np.dtype[np.uint8]]):
    """The bytes of a block that somebody reads. When the last view of them goes, the reader is counted as done."""

    release: Any

    def __del__(self) -> None:
        release = getattr(self, "release", None)  # views of a lease are leases without a release of their own
        if release is not None:
            release()


class Memory:
    """The whole file, as this process sees it; regions are mapped when first used."""

    def __init__(self, fd: int, me: int) -> None:
        self.fd, self.me = fd, me
        self._regions: dict[int, Region] = {}
        self.own = self.region(me)
        self.heap = _Heap(self)

    def region(self, actor: int) -> Region:
        """Return an actor's region."""
        region = self._regions.get(actor)
        if region is None:
            region = self._regions[actor] = Region(self.fd, actor)
        return region

    def block(self, actor: int, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Return the bytes of a block in an actor's heap, shape (nbytes,); writing is for the owner."""
        return self.region(actor).array[offset : offset + nbytes]

    def empty(self, size: int) -> NDArray[np.float32]:
        """Return float32 memory of this process's own region, uninitialised, shape (size,), for good."""
        return self.block(self.me, self.heap.allocate(4 * size), 4 * size).view(np.float32)

    def locate(self, array: NDArray[Any]) -> int | None:
        """Return the offset in this process's own region at which an array lies, or None if it lies elsewhere."""
        offset: int = array.__array_interface__["data"][0] - self.own.address
        return offset if 0 <= offset <= _REGION - array.nbytes else None

    def dead(self) -> list[int]:
        """Return the ids of the actors that are known to be dead."""
        return [i for i in range(1, self.actors()) if self.region(i).words[DEAD]]

    def actors(self) -> int:
        """How many actors there are, the driver included."""
        return self.region(DRIVER).words[ACTORS]

    def close(self) -> None:
        """Forget all mappings; memory that arrays still view stays until they go."""
        self._regions.clear()
        with contextlib.suppress(OSError):
            os.close(self.fd)


class _Heap:
    """Blocks in this process's own region, used again as soon as nobody reads them."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._end = _HEAP_AT
        self._lent: dict[int, deque[tuple[int, int, int]]] = {}  # by size: (offset, slot, generation)

    def allocate(self, nbytes: int) -> int:
        """Return the offset of a block of at least ``nbytes`` for good, 256-byte aligned."""
        offset, end = self._end, self._end + _rounded(nbytes)
        if end > _REGION:
            raise MemoryError(
                f"one actor's values fill its {_REGION >> 30} GiB of shared memory: keep fewer refs alive"
            )
        self._end = end
        return offset

    def lend(self, nbytes: int, slot: int, generation: int) -> int:
        """Return the offset of a block for the value of a slot; it comes back by itself once its readers are done."""
        lent = self._lent.setdefault(_rounded(nbytes), deque())
        offset = None
        for _ in range(min(len(lent), 4)):
            old, old_slot, old_generation = lent.popleft()
            if self._is_free(old_slot, old_generation):
                offset = old
                break
            lent.append((old, old_slot, old_generation))
        if offset is None:
            offset = self.allocate(nbytes)
        lent.append((offset, slot, generation))
        return offset

    def _is_free(self, slot: int, generation: int) -> bool:
        region, at = self._memory.own, slot * SLOT_WORDS
        if region.slots[at + GENERATION] != generation:
            return True  # the driver gives a slot anew only when its value is free
        if region.slots[at + DROPPED] != generation:
            return False
        return not region.unread(slot, self._memory.actors(), self._memory.dead)


def _rounded(nbytes: int) -> int:
    """Round up so that sizes repeat: to an eighth of the power of two below, at least 256."""
    step = max(256, 1 << max(nbytes.bit_length() - 4, 0))
    return max(-(-nbytes // step) * step, 256)
