"""The engine as an actor on a rank sees it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.call import Preparation
from chimera.engines.mpi.messages import Row
from chimera.engines.mpi.transfers import aligned
from chimera.engines.mpi.wake_ups import word_of
from chimera.engines.shared_memory.memory import Memory
from chimera.engines.shared_memory.notifier import Notifier
from chimera.engines.thread_context import ThreadContext

if TYPE_CHECKING:
    from chimera.engines.mpi.rank import Rank


class Abandoned(BaseException):
    """Raised in the thread of an actor that was killed or closed. It is not an `Exception`, so that actors do not catch it."""


class MpiContext(Preparation, ThreadContext):
    """The engine as one actor sees it.

    Attributes
    ----------
    rank : the rank that hosts the actor.
    key : key of its engine.
    actor, name : number of the actor in the job, and its name.
    groups : the groups in which it is a member, by their tags.
    word : the word on which its thread sleeps, see `chimera.engines.mpi.wake_ups`.
    abandoned : whether the thread must end.
    memory, notifier : the memory that it shares with other actors of the machine, and the notifier for it; None without shared
        memory.
    waited_s, collective_bytes, sent_bytes, received_bytes : see `chimera.engines.collectives.Costs`; since the last row.
    parts : rows of the parts of the running call.
    """

    def __init__(self, rank: Rank, key: str, actor: int, name: str, memory: Memory | None) -> None:
        super().__init__()
        self.rank, self.key, self.actor, self.name = rank, key, actor, name
        self.groups: dict[int, Any] = {}
        self.word = word_of(actor)
        self.abandoned = False
        self.memory, self.notifier = memory, None if memory is None else Notifier(memory)
        self.waited_s, self.collective_bytes, self.sent_bytes, self.received_bytes = 0.0, 0, 0, 0
        self.parts: list[Row] = []

    def empty(self, size: int) -> NDArray[np.float32]:
        """Return aligned memory, which the members of a group can read if they are on this machine."""
        return aligned(4 * size).view(np.float32) if self.memory is None else self.memory.empty(size)

    def close(self) -> None:
        """Leave all groups, and release the memory. Arrays in the memory keep the parts that they need."""
        self.groups.clear()
        if self.memory is not None:
            self.memory.close()

    def get(self, refs: Any, timeout_s: float | None = None) -> Any:
        """Wait for results of this actor's calls on other actors."""
        began_s = time.monotonic()
        try:
            return self.rank.calls.get(refs, timeout_s, self)
        finally:
            self.waited_s += time.monotonic() - began_s

    def alive(self) -> None:
        """Record a heartbeat; raise `Abandoned` if the actor must end."""
        super().alive()
        if self.abandoned:
            raise Abandoned

    def record(self, name: str, began_s: float) -> None:
        """Add a row for a part of the running call."""
        shift_s = self.rank.store.shift_s
        times = began_s + shift_s, time.monotonic() + shift_s
        samples, self.work.samples = self.work.samples, 0
        self.parts.append((name, *times, 0.0, *self.take_costs(), samples, ""))

    def take_costs(self) -> tuple[float, int, int]:
        """Return the seconds of waiting, and the bytes in and out, since the last row, and set them to 0."""
        costs = (
            self.waited_s,
            self.received_bytes + self.collective_bytes,
            self.sent_bytes + self.collective_bytes,
        )
        self.waited_s, self.collective_bytes, self.sent_bytes, self.received_bytes = 0.0, 0, 0, 0
        return costs
