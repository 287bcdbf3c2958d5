"""Processes: variables for their threads, ends of processes, descriptions of exits, pauses between starts."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables that set the number of threads of NumPy and PyTorch."""
_PR_SET_PDEATHSIG = 1
SHORT_RUNS = 3
"""Short runs in a row after which a process counts as failing."""
_SHORT_RUN_S, _FIRST_PAUSE_S, _MAX_PAUSE_S = 2.0, 0.1, 10.0


_last_steps: list[Callable[[], None]] = []  # see `before_exit`


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def end_with_parent(parent: int) -> None:
    """Kill this process when its parent ends, also if that is killed; only on Linux.

    Parameters
    ----------
    parent : process ID of the parent, for the case that it has ended already.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def before_exit(step: Callable[[], None]) -> None:
    """Call ``step`` last if `end_process` does not finalize the interpreter, in place of a function of ``Py_AtExit``."""
    _last_steps.append(step)


def end_process(code: int) -> NoReturn:
    """End this process from its main thread: wait for all threads except daemons, and run the exit handlers.

    If daemon threads still run then, the interpreter is not finalized. Its finalization ends each thread that acquires the GIL,
    and such an end in compiled C++ code, for instance in PyTorch, aborts the process.
    """
    threading._shutdown()  # type: ignore[attr-defined] # pools of threads register with it
    atexit._run_exitfuncs()
    if not any(thread.daemon for thread in threading.enumerate() if thread is not threading.current_thread()):
        sys.exit(code)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or the reader has exited
            stream.flush()
    for step in _last_steps:
        step()
    os._exit(code)


def start_of(pid: int) -> str:
    """Return the time at which a process has started, as a text; empty if it does not run or the system does not report it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def kill_process(pid: int, start: str) -> None:
    """Kill a process, unless it has ended and another process has its ID.

    Parameters
    ----------
    start : `start_of` the process while it ran; empty if unknown.
    """
    if not start or start_of(pid) == start:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def exited_children() -> Iterator[tuple[int, int]]:
    """Yield the process ID and the wait status of each child that has ended, without waiting for others."""
    with contextlib.suppress(ChildProcessError):  # there are no children
        while (exited := os.waitpid(-1, os.WNOHANG))[0]:
            yield exited


def describe_exit(code: int) -> str:
    """Return how a process ended, as a phrase; ``code`` is its exit code, or minus the number of the signal that killed it."""
    return f"exited with code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"


class RestartPause:
    """The pause before a process is started again. After runs of less than 2 s it doubles, from 0.1 s up to its maximum.

    Parameters
    ----------
    short_run_s : runs of fewer seconds are short. From `SHORT_RUNS` short runs in a row on, each doubles the pause, too.
    max_pause_s : maximum pause in seconds.

    Attributes
    ----------
    short_runs : number of short runs in a row.
    pause_s : the last pause in seconds.
    """

    def __init__(self, short_run_s: float = _SHORT_RUN_S, max_pause_s: float = _MAX_PAUSE_S) -> None:
        self._short_run_s, self._max_pause_s = short_run_s, max_pause_s
        self._started_s = self._until_s = self.pause_s = 0.0
        self.short_runs = 0

    def start(self, now_s: float) -> None:
        """Record a start of the process."""
        self._started_s = now_s

    def exit(self, now_s: float) -> None:
        """Record an exit of the process; the pause begins."""
        run_s = now_s - self._started_s
        self.short_runs = self.short_runs + 1 if run_s < self._short_run_s else 0
        pauses = run_s < _SHORT_RUN_S or self.short_runs >= SHORT_RUNS
        self.pause_s = min(max(2 * self.pause_s, _FIRST_PAUSE_S), self._max_pause_s) if pauses else 0.0
        self._until_s = now_s + self.pause_s

    def is_over(self, now_s: float) -> bool:
        """Return whether the process may be started."""
        return now_s >= self._until_s
