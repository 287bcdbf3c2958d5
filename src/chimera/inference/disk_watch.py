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
    """Checks of the disk and the folder of processes of a machine, and of the journal in it. They may show a warning.

    Parameters
    ----------
    folder : the folder.
    journal : the file of the journal in it, if the journal is a file. Processes keep a deleted file open until they end, so
        that results seem to be stored.

    Attributes
    ----------
    gone : error message once the folder or the journal was moved or deleted; empty before.
    warning : phrase while the space is short; empty while there is enough.
    """

    def __init__(self, folder: Path, journal: Path | None = None) -> None:
        self._folder, self._guard = folder, DiskGuard(folder)
        self._journal, self._file = journal, None if journal is None else _identity(journal)
        self._checked_s = 0.0
        self._missing = 0
        self.gone = self.warning = ""

    def start(self) -> None:
        """Do nothing."""

    def check(self, notify: Callable[[str], None]) -> None:
        """Set `gone`, and pass a warning to ``notify`` when the space becomes short, once each time."""
        if self._journal is not None and self._file is None:  # a coordinator creates it
            self._file = _identity(self._journal)
        if time.monotonic() < self._checked_s + _CHECK_S:
            return
        self._checked_s = time.monotonic()
        missing = self._find_missing()
        self._missing = self._missing + 1 if missing else 0
        self.gone = missing if self._missing >= _MISSING else ""
        before, self.warning = self.warning, self._guard.warning()
        if self.warning and not before:
            stops = "on a full disk, processes stop until there is space"
            notify(f"warning: {self.warning} for {self._folder}; {stops}")

    def _find_missing(self) -> str:
        if not (self._folder / "lock").exists():  # processes may create the folder again, with their logs only
            again = "all processes have ended; start them again with its new path"
            return f"the folder {self._folder} was moved or deleted while it was in use: {again}"
        if self._journal is None or self._file in (None, _identity(self._journal)):
            return ""
        log = f"{self._journal.name}-wal"  # of the former file; it would damage another one
        again = (
            f"the cluster has ended; put the file back, or delete {log} before you use a copy or start without its jobs"
        )
        return f"the journal {self._journal} was moved, deleted or replaced while it was in use: {again}"

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
