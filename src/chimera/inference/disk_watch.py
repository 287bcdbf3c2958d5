"""The watch of the supervisor over the disk and the folder of a cluster."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

from chimera.web.disk_guard import DiskGuard

_CHECK_S = 1.0
_MISSING = 3  # consecutive checks without the folder until it counts as gone; shared file systems can hide it briefly


class DiskWatch:
    """Checks of the disk and the folder of a cluster, for the supervisor. They start no process, and may warn.

    Attributes
    ----------
    gone : whether the folder was moved or deleted.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._guard = folder, DiskGuard(folder)
        self._warned, self._checked_s = False, 0.0
        self._missing = 0
        self.gone = False

    def start(self) -> None:
        """Do nothing."""

    def check(self, notify: Callable[[str], None]) -> None:
        """Set `gone`, and pass a warning to ``notify`` when the space becomes short, once each time."""
        if time.monotonic() < self._checked_s + _CHECK_S:
            return
        self._checked_s = time.monotonic()
        is_there = (self._folder / "lock").exists()  # processes may create the folder again, with their logs only
        self._missing = 0 if is_there else self._missing + 1
        self.gone = self._missing >= _MISSING
        warning = self._guard.warning()
        if warning and not self._warned:
            notify(f"warning: {warning} for {self._folder}; on a full disk the cluster stops until there is space")
        self._warned = bool(warning)

    def signal(self, number: signal.Signals) -> None:
        """Do nothing."""

    def end(self, deadline_s: float) -> None:
        """Do nothing."""
