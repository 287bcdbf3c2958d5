"""Where the queries of a job lie, and where its results go."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from chimera.inference.journal.journal import Journal, Output
from chimera.inference.scheduling.job import Batch


class Store(ABC):
    """Of one job. The coordinator's brain calls it, and only `queries` may be called by other threads as well."""

    @abstractmethod
    def compose(self, batch: Batch) -> None:
        """Take note that a batch is dispatched, for the first time or again."""

    @abstractmethod
    def queries(self, batch: Batch) -> list[Any]:
        """Return the queries of a batch that was dispatched.

        Raises
        ------
        RunError : they are not there.
        """

    @abstractmethod
    def deliver(self, batch: Batch, body: bytes) -> None:
        """Take the results of a batch: packed, ``{"result": value}`` or ``{"error": text}`` for each query."""

    @abstractmethod
    def refuse(self, error: Exception) -> None:
        """Let nobody wait for results any more."""


class JournalStore(Store):
    """Of a job whose queries and results the journal keeps.

    Parameters
    ----------
    outputs : results are put here; whoever writes the journal empties it.
    """

    def __init__(self, job: str, journal: Journal, outputs: list[Output]) -> None:
        self._job, self._journal, self._outputs = job, journal, outputs

    def compose(self, batch: Batch) -> None:
        """Do nothing: every query has its place."""

    def queries(self, batch: Batch) -> list[Any]:  # noqa: D102
        return self._journal.queries(self._job, batch.first, batch.count)

    def deliver(self, batch: Batch, body: bytes) -> None:  # noqa: D102
        self._outputs.append(Output(self._job, batch.number, batch.first, batch.count, body))

    def refuse(self, error: Exception) -> None:
        """Do nothing: who waits looks into the journal."""
