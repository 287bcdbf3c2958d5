"""Storage of the queries and results of one job."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from chimera.inference.journal.journal import Journal, Output
from chimera.inference.scheduling.batch import Batch
from chimera.inference.worker.protocol import Piece


class JobStore(ABC):
    """The queries and results of one job.

    The coordinator's main thread calls all methods; other threads may call `queries` only.
    """

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
        RunError : the store does not have them.
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
    outputs : results are appended here; the coordinator writes them to the journal and clears the list.
    """

    def __init__(self, job: str, journal: Journal, outputs: list[Output]) -> None:
        self._job, self._journal, self._outputs = job, journal, outputs

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
