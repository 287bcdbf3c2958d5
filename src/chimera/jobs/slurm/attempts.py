"""File ``attempts`` of a job on Slurm: the script adds a line at its start and at its end."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct

_TAIL = 1 << 16
_TIME_DIGITS = 12


class Mark(Struct, frozen=True):
    """One line of the file.

    Attributes
    ----------
    kind : ``start`` or ``end``.
    job : Slurm's number of the job.
    at_s : time, in seconds since the epoch.
    value : nodes of the job at its start; exit code at its end.
    """

    kind: str
    job: str
    at_s: float
    value: str


class Attempts(Struct, frozen=True):
    """The lines of the file.

    Attributes
    ----------
    count : number of starts.
    last : last line; None if there is none.
    """

    count: int = 0
    last: Mark | None = None

    @property
    def exit_code(self) -> int | None:
        """Exit code of the last attempt; None while it runs, and before the first one."""
        ended = self.last is not None and self.last.kind == "end" and self.last.value.isdecimal()
        return int(self.last.value) if ended and self.last is not None else None


def read_attempts(file: Path) -> Attempts:
    """Read the file; a file that does not exist has no lines."""
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, os.fstat(opened.fileno()).st_size - _TAIL))
            lines = opened.read().decode("ascii", "replace").split("\n")
    except FileNotFoundError:
        return Attempts()
    marks = [mark for line in lines[:-1] if (mark := _mark(line)) is not None]  # the last line may be incomplete
    return Attempts(sum(mark.kind == "start" for mark in marks), marks[-1] if marks else None)


def _mark(line: str) -> Mark | None:
    kind, _, rest = line.partition(" ")
    parts = rest.split(" ", 3)  # job, restarts, time, value
    if kind not in ("start", "end") or len(parts) != 4:
        return None
    job, _, time, value = parts
    if not (time.isascii() and time.isdigit() and len(time) <= _TIME_DIGITS):
        return None
    return Mark(kind, job, float(time), value)
