"""Memory that the actors of an engine share on the driver's machine, for their groups."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import NamedTuple

from chimera.engines.mpi.wake_ups import WakeUps
from chimera.engines.shared_memory.memory import ACTORS, DRIVER, MAX_ACTORS, Memory, Region, create_file
from chimera.engines.shared_memory.shared_group import allocate_table


class Place(NamedTuple):
    """An actor's region of the file.

    Attributes
    ----------
    pid, fd : the driver, and its descriptor of the file.
    region : index of the region.
    """

    pid: int
    fd: int
    region: int

    def open(self) -> Memory:
        """Map the file in the process of the actor."""
        fd = os.dup(self.fd) if self.pid == os.getpid() else os.open(f"/proc/{self.pid}/fd/{self.fd}", os.O_RDWR)
        return Memory(fd, self.region)


class Meeting(NamedTuple):
    """The location of a group's memory in the file.

    Attributes
    ----------
    table : result of `allocate_table`.
    regions : regions of the members, in the order of the group.
    """

    table: int
    regions: tuple[int, ...]


class SharedFile:
    """The file of one engine in the driver.

    Parameters
    ----------
    ranks : ranks that can map the file, see `ranks_that_share`; if there are none, there is no file.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        self._ranks = ranks
        self._memory = Memory(create_file(), DRIVER) if ranks else None
        self._regions: dict[int, int] = {}
        if self._memory is not None:
            self._memory.own.words[ACTORS] = DRIVER + 1

    def place_of(self, actor: int, rank: int) -> Place | None:
        """Return the region of a new actor on a rank; None if it cannot share memory, or no region is left."""
        if self._memory is None or rank not in self._ranks or self._memory.actors() == MAX_ACTORS:
            return None
        region = self._regions[actor] = self._memory.actors()
        self._memory.own.words[ACTORS] = region + 1
        return Place(os.getpid(), self._memory.fd, region)

    def meeting_of(self, actors: Sequence[int]) -> Meeting | None:
        """Return the location for a group of these actors; None if one of them has no region."""
        if self._memory is None or not all(actor in self._regions for actor in actors):
            return None
        return Meeting(allocate_table(self._memory, len(actors)), tuple(self._regions[actor] for actor in actors))

    def close(self) -> None:
        """Release the file. Arrays in the file keep the memory that they need."""
        if self._memory is not None:
            self._memory.close()


def can_map() -> bool:
    """Return whether this process can map a region: a limit of its address space (``ulimit -v``) may forbid that."""
    with contextlib.suppress(OSError):
        fd = create_file()
        try:
            Region(fd, DRIVER)
            return True
        finally:
            os.close(fd)
    return False


def ranks_that_share(wake_ups: WakeUps, can_map: Sequence[bool]) -> list[int]:
    """Return the ranks that can map a file of this rank, this one among them."""
    return [rank for rank, can in enumerate(can_map) if can and wake_ups.near(rank)]
