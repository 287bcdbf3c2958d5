"""Disturbances of processes of this machine by signals, for engines whose actors are processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from chimera.core.engine import Disturbance

SLICE_S = 0.01
"""Seconds that a slowed process runs at a time; it is then stopped for ``factor - 1`` times as long."""

Key = TypeVar("Key")


@dataclass
class _ActiveDisturbance:
    """Progress of a disturbance. A slowed process accumulates ``owed_s`` while it runs, and is stopped for that long."""

    disturbance: Disturbance
    ends_s: float
    turned_s: float
    next_turn_s: float
    stopped: bool
    owed_s: float = 0.0


class Disturbances(Generic[Key]):
    """The active disturbances. The owner must call `tick` again after the number of seconds that `tick` returns.

    Parameters
    ----------
    send : sends a signal to a process; raises `ProcessLookupError` if the process has ended, which ends its disturbance.
    clock : returns the time in seconds.
    """

    def __init__(self, send: Callable[[Key, int], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._send, self._clock = send, clock
        self._active: dict[Key, _ActiveDisturbance] = {}

    def add(self, process: Key, disturbance: Disturbance) -> None:
        """Start a disturbance of a process, which replaces its current disturbance. Call `tick` after this."""
        now = self._clock()
        stopped = process in self._active and self._active[process].stopped
        self._active[process] = _ActiveDisturbance(disturbance, now + disturbance.for_s, now, now, stopped)
        self._turn(process, self._active[process], now)

    def forget(self, process: Key) -> None:
        """Drop the disturbance of a process that has ended; send no signal."""
        self._active.pop(process, None)

    def tick(self) -> float | None:
        """Stop and continue the processes that are due; return the seconds until the next call, or None for never."""
        now = self._clock()
        for process, active in list(self._active.items()):
            if now >= active.next_turn_s:
                self._turn(process, active, now)
        next_s = min((active.next_turn_s for active in self._active.values()), default=float("inf"))
        return None if next_s == float("inf") else max(next_s - now, 0.0)

    def _turn(self, process: Key, active: _ActiveDisturbance, now: float) -> None:
        over = now >= active.ends_s
        if over:
            stop, rest_s = False, 0.0
        elif active.disturbance.what != "slow":
            stop, rest_s = True, float("inf")
        else:
            spent_s = now - active.turned_s
            active.owed_s += -spent_s if active.stopped else (active.disturbance.factor - 1) * spent_s
            stop = active.owed_s > 0
            rest_s = active.owed_s if stop else SLICE_S
        active.turned_s, active.next_turn_s = now, min(now + rest_s, active.ends_s)
        try:
            if stop != active.stopped:
                self._send(process, signal.SIGSTOP if stop else signal.SIGCONT)
        except ProcessLookupError:
            over = True
        active.stopped = stop
        if over:
            self.forget(process)


Process = tuple[int, int]
"""A process id, and a value that distinguishes its process from others with this id; 0 if the system provides none."""


def this_process() -> Process:
    """Return the identification of this process for `send`."""
    return os.getpid(), _started(os.getpid())


def send(process: Process, number: int) -> None:
    """Send a signal to a process, which need not be a child, but never to another process that has reused its id.

    Raises
    ------
    ProcessLookupError : the process has ended.
    """
    pid, started = process
    if _started(pid) != started:
        raise ProcessLookupError(f"process {pid} is gone")
    os.kill(pid, number)


def is_gone(process: Process) -> bool:
    """Return whether a process has ended. A zombie, for which its parent has not waited, counts as ended."""
    pid, started = process
    fields = _fields(pid)
    return not fields or int(fields[19]) != started or fields[0] in "ZX"


def _started(pid: int) -> int:
    """Return the start time of a process in system ticks; 0 if it has ended or the system has no ``/proc``."""
    fields = _fields(pid)
    return int(fields[19]) if fields else 0


def _fields(pid: int) -> list[str]:
    """Return the fields of a process in ``/proc``, from its state on; an empty list if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
