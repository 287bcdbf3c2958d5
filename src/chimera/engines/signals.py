"""Disturbing processes of this machine with signals, for engines whose actors are processes."""

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
"""How long a process that is slowed runs at a stretch; it is then stopped for ``factor - 1`` times as long."""

Key = TypeVar("Key")


@dataclass
class _Course:
    """How far a disturbance has come. A process that is slowed owes time: it is stopped until it owes none."""

    disturbance: Disturbance
    ends_s: float
    turned_s: float
    next_turn_s: float
    stopped: bool
    owed_s: float = 0.0


class Disturbances(Generic[Key]):
    """The disturbances that go on. It has no clock of its own: whoever has it calls `tick` when that has asked for it.

    Parameters
    ----------
    send : sends a process a signal; raises `ProcessLookupError` if it is gone, which ends its disturbance.
    clock : tells the time, in seconds.
    """

    def __init__(self, send: Callable[[Key, int], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._send, self._clock = send, clock
        self._courses: dict[Key, _Course] = {}

    def add(self, process: Key, disturbance: Disturbance) -> None:
        """Disturb a process from now on, in place of what disturbed it so far; call `tick` after this."""
        now = self._clock()
        stopped = process in self._courses and self._courses[process].stopped
        self._courses[process] = _Course(disturbance, now + disturbance.for_s, now, now, stopped)
        self._turn(process, self._courses[process], now)

    def forget(self, process: Key) -> None:
        """Disturb a process no more, and leave it as it is: it is gone."""
        self._courses.pop(process, None)

    def tick(self) -> float | None:
        """Stop and continue whom it is time to; return in how many seconds to call this again, or None for never."""
        now = self._clock()
        for process, course in list(self._courses.items()):
            if now >= course.next_turn_s:
                self._turn(process, course, now)
        next_s = min((course.next_turn_s for course in self._courses.values()), default=float("inf"))
        return None if next_s == float("inf") else max(next_s - now, 0.0)

    def _turn(self, process: Key, course: _Course, now: float) -> None:
        over = now >= course.ends_s
        if over:
            stop, rest_s = False, 0.0
        elif course.disturbance.what != "slow":
            stop, rest_s = True, float("inf")
        else:
            spent_s = now - course.turned_s
            course.owed_s += -spent_s if course.stopped else (course.disturbance.factor - 1) * spent_s
            stop = course.owed_s > 0
            rest_s = course.owed_s if stop else SLICE_S
        course.turned_s, course.next_turn_s = now, min(now + rest_s, course.ends_s)
        try:
            if stop != course.stopped:
                self._send(process, signal.SIGSTOP if stop else signal.SIGCONT)
        except ProcessLookupError:
            over = True
        course.stopped = stop
        if over:
            self.forget(process)


Process = tuple[int, int]
"""A process id, and what tells its process from others that bore or will bear this id; 0 where the system does not say."""


def this_process() -> Process:
    """Return what `send` knows this process by."""
    return os.getpid(), _started(os.getpid())


def send(process: Process, number: int) -> None:
    """Send a signal to a process that need not be a child, and to no other that has come by its id.

    Raises
    ------
    ProcessLookupError : it is gone.
    """
    pid, started = process
    if _started(pid) != started:
        raise ProcessLookupError(f"process {pid} is gone")
    os.kill(pid, number)


def is_gone(process: Process) -> bool:
    """Whether a process runs no more; one that nobody has waited for yet is gone too."""
    pid, started = process
    fields = _fields(pid)
    return not fields or int(fields[19]) != started or fields[0] in "ZX"


def _started(pid: int) -> int:
    """Return when a process started, in the system's ticks; 0 if it is gone or where there is no ``/proc``."""
    fields = _fields(pid)
    return int(fields[19]) if fields else 0


def _fields(pid: int) -> list[str]:
    """Return what ``/proc`` says of a process, from its state on; nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
