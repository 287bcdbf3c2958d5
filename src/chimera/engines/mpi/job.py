"""The MPI job of this process: rank 0 drives, the others host actors until rank 0 has ended."""

from __future__ import annotations

import atexit
import itertools
import os
import threading
from collections import Counter
from collections.abc import Sequence

from chimera.core.errors import ConfigurationError, RunError
from chimera.core.processes import end_with_parent
from chimera.core.stop_signals import ignore_stop_signals
from chimera.engines.machine_clock import clock_of_this_machine
from chimera.engines.mpi import messages
from chimera.engines.mpi.library import MPI
from chimera.engines.mpi.rank import DRIVER, Rank
from chimera.engines.mpi.shared import can_map, ranks_that_share
from chimera.engines.mpi_launch import launch_of

_lock = threading.Lock()
_job: Job | None = None


class Job:
    """All ranks. Every rank creates this object once.

    Attributes
    ----------
    rank : this process.
    placed : for the driver, the rank of each actor of its open engines, by the actor's number.
    sharing : the ranks that can map files of this rank.
    """

    def __init__(self) -> None:
        comm = MPI.COMM_WORLD
        if comm.size != launch_of().size > 1:
            raise ConfigurationError(
                f"the launcher started {launch_of().size} ranks, but the MPI library of mpi4py joins {comm.size}: "
                "use the mpiexec of the library that mpi4py has loaded (python -m mpi4py --mpi-lib-version)"
            )
        if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
            raise ConfigurationError(
                "the engine mpi needs an MPI library with MPI_THREAD_SERIALIZED: this one allows calls of one thread only"
            )
        machine, offset_s = clock_of_this_machine()
        driver_machine, driver_offset_s = comm.bcast((machine, offset_s), DRIVER)
        shift_s = 0.0 if machine == driver_machine else offset_s - driver_offset_s
        able = comm.allgather(can_map())  # before the messenger starts, whose thread calls MPI
        self.rank = Rank(comm, shift_s)
        self.placed: dict[int, int] = {}
        self.sharing = ranks_that_share(self.rank.messenger.wake_ups, able)
        self._actors, self._tags = itertools.count(), 0
        self._max_tags: int = comm.Get_attr(MPI.TAG_UB) or 32767
        self._process = os.getpid()

    @property
    def size(self) -> int:
        """The number of ranks."""
        size: int = self.rank.messenger.size
        return size

    def place(self, ranks: Sequence[int]) -> tuple[int, int]:
        """Return the least loaded of these ranks, and the number of a new actor on it."""
        load, actor = self.load(), next(self._actors)
        rank = self.placed[actor] = min(ranks, key=lambda rank: (load[rank], rank == DRIVER, rank))
        return rank, actor

    def load(self) -> Counter[int]:
        """Return the number of living actors on each rank."""
        with self.rank.changed:
            return Counter(rank for actor, rank in self.placed.items() if actor not in self.rank.dead)

    def new_tags(self, count: int) -> int:
        """Return the first of ``count`` tags that no other group has.

        Raises
        ------
        RunError : the job has made too many groups.
        """
        first, self._tags = self._tags, self._tags + count
        if self._tags > self._max_tags:
            raise RunError(f"the groups of this job need more than the {self._max_tags} tags of its MPI library")
        return first

    def end(self) -> None:
        """End the other ranks; on rank 0, at its exit."""
        if os.getpid() == self._process:  # not in a process forked from it
            for rank in range(self.size - 1, -1, -1):
                self.rank.messenger.send(rank, (messages.END,))
            self.rank.messenger.end()


def lead() -> Job:
    """Return the job of this process, which is rank 0; join it at the first call."""
    global _job
    with _lock:
        if _job is None:
            _job = Job()
            atexit.register(_job.end)
    return _job


def host(preload: Sequence[str] = ()) -> None:
    """Host actors until rank 0 has ended. This process is another rank.

    Parameters
    ----------
    preload : modules that a thread imports as soon as the job has begun; rank 0 later sends the modules of its run.
    """
    ignore_stop_signals()  # rank 0 writes a checkpoint and ends the job
    end_with_parent(os.getppid())
    job = Job()
    job.rank.import_early(preload)
    job.rank.ended.wait()
    job.rank.stop_imports()  # otherwise they could delay the exit after MPI has ended, and the launcher would kill this rank
    job.rank.messenger.end()
