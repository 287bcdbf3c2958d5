"""Copies of the files of runs that are elsewhere, for a page that follows the runs."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from pathlib import Path

from chimera.core.errors import ChimeraError


class CopiedRun(ABC):
    """A copy of the files that a page shows of a run. `refresh` updates it.

    Parameters
    ----------
    folder : a private folder for the copy.
    every_s : minimum seconds between two updates.
    """

    def __init__(self, folder: Path, every_s: float) -> None:
        self._folder, self._every_s = folder, every_s
        self._next_s, self._note, self._lock = 0.0, "", threading.Lock()

    @abstractmethod
    def download(self) -> None:
        """Download new data; raises ChimeraError or OSError if the source cannot be read."""

    def refresh(self) -> str:
        """Download new data, at most every ``every_s`` seconds; return a sentence if the source cannot be read."""
        if time.monotonic() < self._next_s or not self._lock.acquire(blocking=False):
            return self._note
        try:
            self.download()
            self._note = ""
        except (ChimeraError, OSError) as error:
            self._note = f"{error}; trying again."
        finally:
            self._next_s = time.monotonic() + self._every_s
            self._lock.release()
        return self._note
