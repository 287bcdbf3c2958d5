"""The watch of the supervisor over the disk and the folder of a cluster."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

from chimera.web.disk_guard import DiskGuard

_CHECK_S = 1.0
_MISSING = (
    3  # consecutive checks without the folder or journal until it counts as gone; file systems can hide it briefly
)


class DiskWatch:
    """Checks of the disk, the folder and the journal of a cluster, for the supervisor. They start no process, and may warn.

    Parameters
    ----------
    folder : the folder.
    journal : the file of the journal in it, if the journal is a file. Processes keep a deleted file open until they end, so
        that results seem to be stored.

    Attributes
    ----------
    gone : error message once the folder or the journal was moved or deleted; empty before.
    """

    def __init__(self, folder: Path, journal: Path | None = None) -> None:
        self._folder, self._guard = folder, DiskGuard(folder)
        self._journal, self._file = journal, None if journal is None else _identity(journal)
        self._warned, self._checked_s = False, 0.0
        self._missing = 0
        self.gone = ""

    def start(self) -> None:
        """Do nothing."""

    def check(self, notify: Callable[[str], None]) -> None:
        """Set `gone`, and pass a warning to ``notify`` when the space becomes short, once each time."""
        if time.monotonic() < self._checked_s + _CHECK_S:
            return
        self._checked_s = time.monotonic()
        missing = self._find_missing()
        self._missing = self._missing + 1 if missing else 0
        self.gone = missing if self._missing >= _MISSING else ""
        warning = self._guard.warning()
        if warning and not self._warned:
            notify(f"warning: {warning} for {self._folder}; on a full disk the cluster stops until there is space")
        self._warned = bool(warning)

    def _find_missing(self) -> str:
        if not (self._folder / "lock").exists():  # processes may create the folder again, with their logs only
            again = "start it again with the new path of the folder"
            return (
                f"the folder {self._folder} was moved or deleted while its cluster ran: the cluster has ended; {again}"
            )
        found = None if self._journal is None else _identity(self._journal)
        self._file = self._file or found
        if found == self._file:
            return ""
        again = "the cluster has ended; put the file or a copy back, or start the cluster again without its jobs"
        return f"the journal {self._journal} was moved, deleted or replaced while its cluster ran: {again}"

    def signal(self, number: signal.Signals) -> None:
        """Do nothing."""

    def end(self, deadline_s: float) -> None:
        """Do nothing."""


def _identity(file: Path) -> tuple[int, int] | None:
    """Return what identifies a file on this machine; None if there is none."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
