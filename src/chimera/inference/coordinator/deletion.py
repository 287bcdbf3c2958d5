"""Deletion of dropped jobs from the journal, in a background thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Collection

from chimera.core.errors import ChimeraError
from chimera.inference.journal.journal import Fenced, Journal
from chimera.web.logs import status


class Deleter:
    """Deletes jobs from the journal, one request after another, in its own thread.

    Parameters
    ----------
    epoch : epoch of the coordinator. Once it is over, the next coordinator completes the deletion.
    """

    def __init__(self, journal: Journal, epoch: int) -> None:
        self._journal, self._epoch = journal, epoch
        self._jobs: queue.SimpleQueue[Collection[str] | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chimera-forget", daemon=True)
        self._thread.start()

    def delete(self, jobs: Collection[str]) -> None:
        """Delete jobs soon. The records that they are dropped must be written already."""
        if jobs:
            self._jobs.put(frozenset(jobs))

    def close(self) -> None:
        """Stop the thread; a deletion in progress is left unfinished."""
        self._closed.set()
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (jobs := self._jobs.get()) is not None:
            try:
                for _ in self._journal.drop(self._epoch, jobs):
                    if self._closed.is_set():
                        return
            except Fenced:
                return
            except ChimeraError as error:
                status().warning("job %s is not deleted yet: %s", ", ".join(jobs), error)
                continue
            status().info("deleted: job %s", ", ".join(jobs))
