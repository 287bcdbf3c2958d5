"""The journal: records in order, results once each, and the lease of whoever may write."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from chimera.core.errors import RunError
from chimera.inference.journal.records import Record


class Fenced(RunError):  # noqa: N818 - it says what happened
    """Another coordinator has taken over: nothing of the write was kept, and nothing more may be done in this epoch."""


@dataclass(frozen=True)
class Lease:
    """Who is the coordinator.

    Attributes
    ----------
    owner : its name.
    epoch : higher for each new owner; never used twice.
    address : where it answers, ``http://host:port``.
    left_s : how long the lease lasts unless it is renewed; 0 or less once it is over.
    """

    owner: str
    epoch: int
    address: str
    left_s: float


@dataclass(frozen=True)
class Output:
    """The packed results of one batch, a value a query."""

    job: str
    batch: int
    first: int
    count: int
    body: bytes


class Journal(ABC):
    """Kept by the coordinator, read by anybody. Every write checks the epoch in its own transaction."""

    @abstractmethod
    def acquire(self, owner: str, address: str, lease_s: float) -> Lease | None:
        """Become the coordinator for so many seconds, in a new epoch; None while another one's lease lasts."""

    @abstractmethod
    def renew(self, epoch: int, lease_s: float) -> None:
        """Stay the coordinator for so many seconds from now.

        Raises
        ------
        Fenced : another one has taken over, though it may be dead again.
        """

    @abstractmethod
    def release(self, epoch: int) -> None:
        """Let the next one take over at once; nothing if another one has."""

    @abstractmethod
    def lease(self) -> Lease | None:
        """Return the last lease, also when it is over; None if there never was one."""

    @abstractmethod
    def append(
        self,
        epoch: int,
        records: Sequence[Record],
        *,
        outputs: Sequence[Output] = (),
        inputs: Sequence[tuple[str, int, bytes]] = (),
    ) -> None:
        """Keep records, results and inputs, all or none, so that they outlast a crash of the machine.

        Parameters
        ----------
        outputs : results; those of a batch that has some already are left out.
        inputs : packed queries of a job: its name, the number of the first query, the queries.

        Raises
        ------
        Fenced : another coordinator has taken over; nothing was kept.
        """

    @abstractmethod
    def drop(self, epoch: int, jobs: Collection[str]) -> Iterator[None]:
        """Let nothing be left of jobs that records say are dropped; yields after each piece of that, which is short.

        If it is not taken to its end, what is left can be read, and dropped later.

        Raises
        ------
        Fenced : another coordinator has taken over.
        """

    @abstractmethod
    def records(self) -> Iterator[Record]:
        """Yield all records in order."""

    @abstractmethod
    def outputs(self, job: str, first: int = 0) -> Iterator[Output]:
        """Yield the results of a job in the order of its queries, from the batch on that has query ``first``."""

    @abstractmethod
    def queries(self, job: str, first: int, count: int) -> list[Any]:
        """Return queries of a job."""

    @abstractmethod
    def jobs_with_queries(self) -> set[str]:
        """Return the jobs that have queries here, also those of which no record says that they were taken on."""

    @abstractmethod
    def close(self) -> None:
        """Let go of files and connections."""
