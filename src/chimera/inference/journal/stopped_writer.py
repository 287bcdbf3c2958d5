"""Killing a coordinator that was stopped (SIGSTOP) while it held a lock of the journal's file.

A lease does not help, because the kernel holds the lock until the process ends. So the successor kills the last coordinator if
its lease is over and the kernel reports it as stopped.
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
    began : start time as the kernel counts it; it distinguishes processes with the same number. Empty if unknown.
    """

    pid: int
    began: str

    @classmethod
    def current(cls) -> Process:
        """Return the calling process."""
        pid = os.getpid()
        return cls(pid, _stat(pid)[1])


def kill_if_stopped(process: Process | None) -> bool:
    """Kill a process if it is stopped; return whether it was killed. Only Linux reports this; elsewhere return False."""
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
    """Return the state and the start time of a process; both empty if unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], fields[19]
    except (OSError, IndexError):
        return "", ""
