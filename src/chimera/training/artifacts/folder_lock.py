"""The lock that keeps two runs from writing to one folder at the same time."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from chimera.core.errors import RunError

_WAIT_S = 6.0  # seconds; processes of a killed run may keep the folder open for a short time
_POLL_S = 0.05


class FolderLock:
    """An exclusive lock on a folder. The system releases it when the process and its forks have ended."""

    def __init__(self) -> None:
        self._descriptor: int | None = None

    def acquire(self, folder: Path) -> None:
        """Lock an existing folder. Do nothing on a file system without such locks.

        Raises
        ------
        RunError : another run has the lock.
        """
        deadline_s = time.monotonic() + _WAIT_S
        while not self.try_acquire(folder):
            if time.monotonic() > deadline_s:
                raise RunError(f"another run writes to {folder}: wait for its end, or choose another folder")
            time.sleep(_POLL_S)

    def try_acquire(self, folder: Path) -> bool:
        """Lock an existing folder if no other run has its lock; return whether this succeeded."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        if not _lock(descriptor):
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Unlock the folder, also if a process that was forked meanwhile has it open."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            _unlock(descriptor)
            os.close(descriptor)


def is_locked(folder: Path) -> bool:
    """Return whether a run writes to a folder now."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # it does not exist, or belongs to another user
        return False
    free = _lock(descriptor)
    if free:
        _unlock(descriptor)
    os.close(descriptor)
    return not free


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # the file system has no locks
        return True
    return True


def _unlock(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except OSError:  # the file system has no locks
        return
