"""Shared memory of an engine's processes on one machine: a sparse file that each of them maps.

Each actor owns one region of the file, and the driver owns region 0. A region holds:

- words with the state of its owner;
- slots with the positions of results, and counters of their readers;
- a ring for the calls that the driver sends, a ring for trace rows, and one for trace rows of parts of calls;
- a table of the driver's answers to calls that the owner makes on other actors;
- a heap for data.

Every word has one writer, so processes need no locks. The file has no name: the system deletes it when the last process
that has it open ends, for any reason.
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
_REGION = 32 << 30  # virtual: pages that no process touched use no memory
NAME_AT, NAME_BYTES = 2048, 512
_WORDS = 1024
_GATHERING_AT = 1024
BELL_AT = 1536
_AWAITED_AT = 4096
_WAIT_TARGETS_AT = 6144
_SLOTS_AT = 8192
_BEGUN_AT = _SLOTS_AT + _MIB + _MIB // 2
_ISSUED_AT = 2 * _MIB
_DONE_AT = 10 * _MIB
ROWS_AT = 18 * _MIB
_ANSWERS_AT = 20 * _MIB
PARTS_AT = 21 * _MIB
CALLS_AT = 24 * _MIB
CALLS_BYTES = 8 * _MIB
_HEAP_AT = 32 * _MIB

# Words in the first page of a region, by writer.
DEAD = 0  # driver: 1 when the owner is dead
ACTORS = 1  # driver, in its own region: number of actors, including the driver
ROWS_WRITTEN = 2  # owner: trace rows written so far
CALLS_WRITTEN = 3  # driver: position in the ring of calls up to which it has written
CALLS_READ = 4  # owner: position in the ring of calls up to which it has read
HEARTBEAT_NS = 5  # owner: time of its last heartbeat, on the monotonic clock
PID, STARTED = 6, 7  # owner: its process as returned by `this_process`, set after it has mapped the file
PARTS_WRITTEN = 8  # owner: rows of parts of calls written so far
PARTS_READ = 9  # driver: rows of parts of calls read so far

# Words of a slot, by writer.
SLOT_WORDS = 8
GENERATION = 0  # driver: number of the current use of the slot
DROPPED = 1  # driver: the last generation whose ref was deleted
STATE = 2  # owner: twice the generation after the result was stored, plus one if the result is an error
OFFSET, NBYTES, ARRAY_BYTES, DONE_NS = (
    3,
    4,
    5,
    6,
)  # owner: position of the result, its size, its array bytes, the time at which it was stored

# Words of an answer, all written by the driver: the ticket that it answers, and the slot of its value.
ANSWERS, ANSWER_WORDS = 1 << 14, 8
TICKET = 0

BEGUN = 1 << 14
"""Number of the latest calls of which it is known whether they have begun."""

_barrier = threading.Lock()


def fence() -> None:
    """Order the memory accesses before and after this call. A lock's atomic instructions are a full barrier."""
    _barrier.acquire()
    _barrier.release()


def create_file() -> int:
    """Return the descriptor of a new sparse file without a name; it is in memory if the system supports that.

    Raises
    ------
    OSError : a limit does not allow its size; the message names the limit.
    """
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("chimera", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile(prefix="chimera-") as file:
            fd = os.dup(file.fileno())
    try:
        os.ftruncate(fd, MAX_ACTORS * _REGION)
    except OSError as error:
        os.close(fd)
        what = f"shared memory needs a sparse file of {MAX_ACTORS * _REGION >> 30:,} GiB, which uses much less"
        raise OSError(error.errno, f"{error.strerror}: {what}; raise the limit 'ulimit -f'") from error
    return fd


class Region:
    """One actor's region, mapped into this process.

    Raises
    ------
    OSError : a limit does not allow its size; the message names the limit.
    """

    def __init__(self, fd: int, actor: int) -> None:
        self.actor = actor
        try:
            self._mapping = mmap.mmap(fd, _REGION, offset=actor * _REGION)
        except OSError as error:
            what = f"shared memory needs {_REGION >> 30} GiB of addresses for each actor, and much less memory"
            raise OSError(error.errno, f"{error.strerror}: {what}; raise the limit 'ulimit -v'") from error
        self.array = np.frombuffer(self._mapping, np.uint8)
        self.address: int = self.array.__array_interface__["data"][0]
        view = self.bytes = memoryview(self.array)  # type: ignore[arg-type]
        self.words = view[:_WORDS].cast("q")
        # Actors that wait for the owner; each writes its own place. `awaited` has the number of the owner's calls that must
        # have ended. `gathering` is a flag: the actor waits for the owner at a barrier of a group. 0: it does not wait.
        self.awaited = view[_AWAITED_AT : _AWAITED_AT + MAX_ACTORS * 8].cast("q")
        # Written by the driver: for each actor that waits for a call of the owner, how many of the owner's calls have ended
        # by then.
        self.concerns = view[_WAIT_TARGETS_AT : _WAIT_TARGETS_AT + MAX_ACTORS * 8].cast("q")
        self.gathering = view[_GATHERING_AT : _GATHERING_AT + MAX_ACTORS]
        self.slots = view[_SLOTS_AT : _SLOTS_AT + SLOTS * SLOT_WORDS * 8].cast("q")
        self.answers = view[_ANSWERS_AT : _ANSWERS_AT + ANSWERS * ANSWER_WORDS * 8].cast("q")
        self.begun = view[_BEGUN_AT : _BEGUN_AT + BEGUN * 8].cast("q")
        self.issued = view[_ISSUED_AT : _ISSUED_AT + SLOTS * MAX_ACTORS * 2].cast("H")
        self.done = view[_DONE_AT : _DONE_AT + SLOTS * MAX_ACTORS * 2].cast("H")

    def sign(self) -> None:
        """Record a heartbeat of the owner."""
        self.words[HEARTBEAT_NS] = time.monotonic_ns()

    def ready(self, slot: int, generation: int) -> bool:
        """Return whether the result of this use of the slot is stored."""
        return self.slots[slot * SLOT_WORDS + STATE] >> 1 == generation

    def empty(self) -> None:
        """Return the memory of the heap to the system. The owner must be dead, and no process may read its values."""
        if hasattr(mmap, "MADV_REMOVE"):
            self._mapping.madvise(mmap.MADV_REMOVE, _HEAP_AT, _REGION - _HEAP_AT)

    def unread(self, slot: int, actors: int, dead: Callable[[], Sequence[int]]) -> bool:
        """Return whether a living reader still uses this slot's value, or will read it."""
        low = slot * MAX_ACTORS
        issued, done = self.issued[low : low + actors], self.done[low : low + actors]
        if issued.tobytes() == done.tobytes():
            return False
        gone = dead()
        return any(issued[i] != done[i] for i in range(actors) if i not in gone)


class Lease(np.ndarray[Any, np.dtype[np.uint8]]):
    """The bytes of a block in use by a reader. Deleting the last view of them calls ``release``."""

    release: Any

    def __del__(self) -> None:
        release = getattr(self, "release", None)  # views of a lease are leases without a release of their own
        if release is not None:
            release()


class Memory:
    """The whole file in this process. Each region is mapped when it is first used."""

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
        """Return the bytes of a block in an actor's heap, shape (nbytes,). Only the owner may write to them."""
        return self.region(actor).array[offset : offset + nbytes]

    def empty(self, size: int) -> NDArray[np.float32]:
        """Allocate float32 memory in this process's own region, uninitialised, shape (size,). It is never freed."""
        return self.block(self.me, self.heap.allocate(4 * size), 4 * size).view(np.float32)

    def locate(self, array: NDArray[Any]) -> int | None:
        """Return the offset of an array in this process's own region, or None if it is not there."""
        offset: int = array.__array_interface__["data"][0] - self.own.address
        return offset if 0 <= offset <= _REGION - array.nbytes else None

    def dead(self) -> list[int]:
        """Return the ids of the actors that are known to be dead."""
        return [i for i in range(1, self.actors()) if self.region(i).words[DEAD]]

    def actors(self) -> int:
        """Return the number of actors, including the driver."""
        return self.region(DRIVER).words[ACTORS]

    def close(self) -> None:
        """Drop all mappings. Memory that arrays still view stays mapped until they are deleted."""
        self._regions.clear()
        with contextlib.suppress(OSError):
            os.close(self.fd)


class _Heap:
    """Blocks in this process's own region. A block is used again when it has no readers."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._end = _HEAP_AT
        self._lent: dict[int, deque[tuple[int, int, int]]] = {}  # by size: (offset, slot, generation)

    def allocate(self, nbytes: int) -> int:
        """Return the offset of a new block of at least ``nbytes``, 256-byte aligned. The block is never freed."""
        offset, end = self._end, self._end + _rounded(nbytes)
        if end > _REGION:
            raise MemoryError(
                f"one actor's values fill its {_REGION >> 30} GiB of shared memory: keep fewer refs alive"
            )
        self._end = end
        return offset

    def lend(self, nbytes: int, slot: int, generation: int) -> int:
        """Return the offset of a block for the value of a slot. The heap reuses the block when its readers are done."""
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
            return True  # the driver reuses a slot only when its value has no readers
        if region.slots[at + DROPPED] != generation:
            return False
        return not region.unread(slot, self._memory.actors(), self._memory.dead)


def _rounded(nbytes: int) -> int:
    """Round a size up to a multiple of a power of two, at least 256, so that sizes repeat."""
    step = max(256, 1 << max(nbytes.bit_length() - 4, 0))
    return max(-(-nbytes // step) * step, 256)
