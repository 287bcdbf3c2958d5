"""The interface of the journal: ordered records, one result per batch, and the lease of the coordinator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from chimera.core.errors import RunError
from chimera.inference.journal.records import Record


class Fenced(RunError):  # noqa: N818 - it says what happened
    """Another coordinator has taken over: nothing was written, and this epoch is over."""


@dataclass(frozen=True)
class Lease:
    """The lease of the coordinator.

    Attributes
    ----------
    owner : name of the coordinator.
    epoch : increases with each new owner; never used twice.
    address : its address, ``http://host:port``.
    left_s : seconds until the lease ends unless it is renewed; 0 or less once it has ended.
    """

    owner: str
    epoch: int
    address: str
    left_s: float


@dataclass(frozen=True)
class Output:
    """The packed results of one batch, one value per query."""

    job: str
    batch: int
    first: int
    count: int
    body: bytes


class Journal(ABC):
    """The journal. The coordinator writes it, any process reads it. Each write checks the epoch in its transaction.

    A journal on several machines raises `Fenced` from reads too: while no majority of its voters answers, the content
    of the journal is unknown.
    """

    @abstractmethod
    def acquire(self, owner: str, address: str, lease_s: float) -> Lease | None:
        """Acquire the lease for ``lease_s`` seconds, in a new epoch; None while another coordinator's lease lasts.

        The lease of a process that is known to be dead is over.
        """

    @abstractmethod
    def renew(self, epoch: int, lease_s: float) -> None:
        """Renew the lease for ``lease_s`` seconds from now.

        Raises
        ------
        Fenced : another coordinator has taken over, even if its lease has ended already.
        """

    @abstractmethod
    def release(self, epoch: int) -> None:
        """End the lease at once; do nothing if another coordinator has taken over."""

    @abstractmethod
    def lease(self) -> Lease | None:
        """Return the last lease, even if it has ended; None if there never was one."""

    @abstractmethod
    def append(
        self,
        epoch: int,
        records: Sequence[Record],
        *,
        outputs: Sequence[Output] = (),
        inputs: Sequence[tuple[str, int, bytes]] = (),
    ) -> None:
        """Write records, results and inputs atomically, so that they survive a crash of the machine.

        Parameters
        ----------
        outputs : results; those of a batch that has results already are ignored.
        inputs : chunks of queries: the job, the index of the first query, the packed queries.

        Raises
        ------
        Fenced : another coordinator has taken over; nothing was written.
        """

    @abstractmethod
    def drop(self, epoch: int, jobs: Collection[str]) -> Iterator[None]:
        """Delete all data of dropped jobs; yield after each short transaction.

        If the iterator is not exhausted, the rest stays readable, and can be deleted later.

        Raises
        ------
        Fenced : another coordinator has taken over.
        """

    @abstractmethod
    def records(self) -> Iterator[Record]:
        """Yield all records in order."""

    @abstractmethod
    def outputs(self, job: str, first: int = 0) -> Iterator[Output]:
        """Yield the results of a job in the order of its queries, starting with the batch of query ``first``."""

    @abstractmethod
    def queries(self, job: str, first: int, count: int) -> list[Any]:
        """Return ``count`` queries of a job, from index ``first`` on."""

    @abstractmethod
    def chunks(self, job: str) -> list[tuple[int, int]]:
        """Return the index of the first query and the bytes of each chunk of a job's queries, in order."""

    @abstractmethod
    def chunk(self, job: str, first: int) -> list[Any]:
        """Return the queries of the chunk that begins with query ``first``."""

    def stored_queries(self, job: str) -> tuple[int, int]:
        """Return the number of a job's stored queries, and their bytes."""
        chunks = self.chunks(job)
        last = chunks[-1][0] if chunks else 0
        return last + (len(self.chunk(job, last)) if chunks else 0), sum(size for _, size in chunks)

    @abstractmethod
    def jobs_with_queries(self) -> set[str]:
        """Return the jobs that have stored queries, including jobs that were never accepted."""

    @abstractmethod
    def close(self) -> None:
        """Close files and connections."""
