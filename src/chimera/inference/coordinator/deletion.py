"""Jobs that ended long ago are forgotten, beside all else that the coordinator does."""

from __future__ import annotations

import queue
import threading
from collections.abc import Collection

from chimera.core.errors import ChimeraError
from chimera.inference.journal.journal import Fenced, Journal
from chimera.web.logs import status


class Forgetting:
    """Takes jobs out of the journal, one after another, in a thread of its own.

    Parameters
    ----------
    epoch : of the coordinator; once it is over, the next one goes on.
    """

    def __init__(self, journal: Journal, epoch: int) -> None:
        self._journal, self._epoch = journal, epoch
        self._jobs: queue.SimpleQueue[Collection[str] | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="chimera-forget", daemon=True)
        self._thread.start()

    def forget(self, jobs: Collection[str]) -> None:
        """Let nothing of jobs be left, soon; that they are dropped is written down already."""
        if jobs:
            self._jobs.put(frozenset(jobs))

    def close(self) -> None:
        """Do no more."""
        self._closed.set()
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (jobs := self._jobs.get()) is not None:
            try:
                for _ in self._journal.drop(self._epoch, jobs):
                    if self._closed.is_set():
                        return
            except Fenced:
                return
            except ChimeraError as error:
                status().warning("job %s is not forgotten yet: %s", ", ".join(jobs), error)
                continue
            status().info("forgotten: job %s", ", ".join(jobs))
