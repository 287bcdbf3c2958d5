"""The guard of the disk with a cluster's journal: it warns before the disk is full, and notices a missing folder."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from chimera.core.errors import NoSpaceError

WARN_BYTES, WARN_SHARE = 1 << 30, 0.1
"""The guard warns below this free space: the smaller one of a size and a share of the disk."""
RESERVED_BYTES, RESERVED_SHARE = 256 << 20, 0.05
"""New submissions are refused below this free space, so that results of accepted jobs can still be stored."""
_CHECK_S = 1.0
_MISSING = 3  # consecutive checks without the folder until it counts as gone; shared file systems can hide it briefly


class DiskGuard:
    """Watches the free space of one disk.

    Parameters
    ----------
    folder : a folder of that disk.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def warning(self) -> str:
        """Return a phrase if little space is left; empty if there is enough, or if it is unknown."""
        free, total = self._space()
        if free >= min(WARN_BYTES, WARN_SHARE * total):
            return ""
        return f"the disk is nearly full: {free >> 20} MiB are left"

    def is_full(self) -> bool:
        """Return whether not even a page of a file can be written."""
        return self._space()[0] < 64 << 10

    def check_submission(self) -> None:
        """Raise NoSpaceError if the space that is left is reserved for the results of accepted jobs."""
        free, total = self._space()
        if free < min(RESERVED_BYTES, RESERVED_SHARE * total):
            raise NoSpaceError(
                f"the disk of {self._folder} is nearly full ({free >> 20} MiB are left): no queries are accepted until "
                "there is more space"
            )

    def _space(self) -> tuple[int, int]:
        """Return the free and the total bytes; unknown free space counts as enough."""
        try:
            usage = shutil.disk_usage(self._folder)
        except OSError:
            return 1 << 62, 0
        return usage.free, usage.total


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
