"""A process that was stopped while it held a lock of the journal's file; only its end frees the lock.

Leases cannot help there: it is the kernel that keeps the others out. So whoever takes over kills it, if it is the last
coordinator, its lease is over, and the kernel says that it is stopped.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """A process of this machine.

    Attributes
    ----------
    began : when it did, as the kernel counts; a later process with the same number has another one. Empty where the kernel does
        not tell.
    """

    pid: int
    began: str

    @classmethod
    def current(cls) -> Process:
        """Return the one that asks."""
        pid = os.getpid()
        return cls(pid, _stat(pid)[1])


def kill_if_stopped(process: Process | None) -> bool:
    """Kill a process that is stopped; returns whether it did. Where the kernel does not tell (not Linux), it never does."""
    if process is None or process.pid == os.getpid() or not process.began:
        return False
    state, began = _stat(process.pid)
    if state != "T" or began != process.began:
        return False
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(process.pid, signal.SIGKILL)
        return True
    return False


def _stat(pid: int) -> tuple[str, str]:
    """Return the state of a process, and when it began; both empty where it is not known."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], fields[19]
    except (OSError, IndexError):
        return "", ""
