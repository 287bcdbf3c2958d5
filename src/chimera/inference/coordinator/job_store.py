"""Storage of the queries and results of one job."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from chimera.inference.coordinator.file_queries import FileQueries
from chimera.inference.journal.journal import Journal, Output
from chimera.inference.journal.records import Accepted
from chimera.inference.scheduling.batch import Batch
from chimera.inference.worker.protocol import Piece

MAX_BATCH_BYTES = 8 << 20
"""Maximum size of the queries of a batch, unless a single query is larger."""


class JobStore(ABC):
    """The queries and results of one job.

    The coordinator's main thread calls all methods; other threads may call `queries` only.
    """

    @abstractmethod
    def fitting(self, batch: Batch) -> int:
        """Return how many queries of a new batch are within `MAX_BATCH_BYTES`, from its first one on; at least 1."""

    @abstractmethod
    def dispatched(self, batch: Batch) -> None:
        """Note that a batch is dispatched, for the first time or again."""

    @abstractmethod
    def split(self, batch: Batch, parts: Sequence[Batch]) -> None:
        """Note that ``parts`` replace a dispatched batch; each will be dispatched again."""

    @abstractmethod
    def queries(self, batch: Batch) -> list[Any]:
        """Return the queries of a dispatched batch.

        Raises
        ------
        RunError : the store does not have them, or cannot read them now.
        DataError : they can never be read.
        """

    @abstractmethod
    def deliver(self, batch: Batch, body: bytes) -> None:
        """Store the results of a batch: a packed list of ``{"result": value}`` or ``{"error": text}``, one per query."""

    def take(self, piece: Piece) -> None:  # noqa: B027
        """Pass on a part of the text of an answer that is being generated. Default: ignore it."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """Raise an error in all callers that wait for results."""


class JournalStore(JobStore):
    """The store of a job whose queries and results are in the journal.

    Parameters
    ----------
    accepted : the record of the job.
    outputs : results are appended here; the coordinator writes them to the journal and clears the list.
    """

    def __init__(self, accepted: Accepted, journal: Journal, outputs: list[Output]) -> None:
        self._job, self._journal, self._outputs = accepted.job, journal, outputs
        self._starts: array[int] | None = None  # first queries of the chunks
        self._ends: array[int] = array("q")  # bytes of the chunks up to each one

    def fitting(self, batch: Batch) -> int:
        """Count whole chunks, whose sizes are known; a chunk is small, or is a single query."""
        starts = self._starts if self._starts is not None else self._read_chunks()
        at = bisect_right(starts, batch.first) - 1
        if at < 0:
            return batch.count  # the queries are missing; their reader reports this
        before = self._ends[at - 1] if at else 0
        end = max(bisect_right(self._ends, before + MAX_BATCH_BYTES), at + 1)
        return batch.count if end == len(starts) else min(batch.count, starts[end] - batch.first)

    def _read_chunks(self) -> array[int]:
        chunks = self._listed()
        self._starts, self._ends = array("q", [first for first, _ in chunks]), array("q")
        for _, size in chunks:
            self._ends.append(size + (self._ends[-1] if self._ends else 0))
        return self._starts

    def _listed(self) -> list[tuple[int, int]]:
        return self._journal.chunks(self._job)

    def dispatched(self, batch: Batch) -> None:
        """Do nothing: the position of each query is fixed."""

    def split(self, batch: Batch, parts: Sequence[Batch]) -> None:
        """Do nothing, for the same reason."""

    def queries(self, batch: Batch) -> list[Any]:  # noqa: D102
        return self._journal.queries(self._job, batch.first, batch.count)

    def deliver(self, batch: Batch, body: bytes) -> None:  # noqa: D102
        self._outputs.append(Output(self._job, batch.number, batch.first, batch.count, body))

    def fail(self, error: Exception) -> None:
        """Do nothing: clients poll the journal."""


class FileStore(JournalStore):
    """The store of a job whose results are in the journal, and whose queries stay in their files."""

    def __init__(self, accepted: Accepted, journal: Journal, outputs: list[Output]) -> None:
        super().__init__(accepted, journal, outputs)
        self._queries, self._chunks = FileQueries(accepted.files), accepted.chunks

    def queries(self, batch: Batch) -> list[Any]:  # noqa: D102
        return self._queries.read(batch.first, batch.count)

    def fail(self, error: Exception) -> None:  # noqa: ARG002 - no caller waits
        """Close the open file."""
        self._queries.close()

    def _listed(self) -> list[tuple[int, int]]:
        return self._chunks
