"""The last coordinator as the kernel reports it: dead, or stopped (SIGSTOP) while it held a lock of the journal.

In the second case a lease does not help, because the kernel holds the lock until the process ends. So the successor kills the
last coordinator if its lease is over and the kernel reports it as stopped.
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
    began : its process namespace, a slash, and its start time as the kernel counts it, which distinguish processes with the
        same number. Empty if unknown; without a namespace if an earlier version has written it.
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


def has_ended(process: Process | None) -> bool:
    """Return whether a process is known to be dead. Only Linux reports this; elsewhere return False."""
    if process is None or process.began.rpartition("/")[0] != _namespace() or not _namespace():
        return False
    state, began = _stat(process.pid)
    return began != process.began or state in ("Z", "X")


def _namespace() -> str:
    try:
        return Path("/proc/self/ns/pid").readlink().name
    except OSError:
        return ""


def _stat(pid: int) -> tuple[str, str]:
    """Return the state and the start time of a process; both empty if unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], f"{_namespace()}/{fields[19]}"
    except (OSError, IndexError):
        return "", ""
