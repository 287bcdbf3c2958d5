"""Progress file of a job: a callback that writes progress and events, and readers that follow the file."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from chimera.core.private import opener
from chimera.training.progress.callback import Callback, Event, Progress

INTERVAL_S = 0.2
"""Interval between two writes of progress without an evaluation, in seconds."""
_PART = 1 << 20
_TAIL = 1 << 16


class ProgressWriter(Callback):
    """Callback that appends progress and events of a run to a file, one JSON object per line.

    Parameters
    ----------
    file : progress file, to which each attempt appends.
    clock : monotonic clock, in seconds.
    """

    def __init__(self, file: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._clock, self._next_s = file, clock, 0.0
        self._last: Progress | None = None
        self._metrics: dict[str, float] = {}

    def on_wait(self, what: str) -> None:
        """Write what the run waits for before it starts."""
        self._write(wait=what)

    def on_start(self, progress: Progress) -> None:
        """Write the progress at the start."""
        self._write(start=progress)

    def on_progress(self, progress: Progress) -> None:
        """Write progress after an evaluation, and otherwise at most every `INTERVAL_S`."""
        now_s = self._clock()
        if now_s < self._next_s and progress.metrics == self._metrics:
            self._last = progress
            return
        self._next_s, self._metrics, self._last = now_s + INTERVAL_S, progress.metrics, None
        self._write(progress=progress)

    def on_event(self, event: Event) -> None:
        """Write an event."""
        self._write(event=event)

    def on_end(self, run: Any) -> None:
        """Write the last progress and the summary."""
        if self._last is not None:
            self._write(progress=self._last)
        self._write(summary=run.summary())

    def _write(self, **entry: Any) -> None:
        with open(self._file, "ab", buffering=0, opener=opener) as file:
            file.write(msgspec.json.encode(entry, enc_hook=_plain) + b"\n")


def read_fraction(file: Path) -> float | None:
    """Return the used fraction of a job's budget by its last progress; None without progress or budget."""
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, os.fstat(opened.fileno()).st_size - _TAIL))
            lines = opened.read().splitlines()
    except FileNotFoundError:
        return None
    for line in reversed(lines):
        try:
            entry = msgspec.json.decode(line)
            return float(next(iter(entry.values()))["fraction"])
        except (msgspec.DecodeError, TypeError, KeyError, AttributeError, ValueError):
            continue  # an incomplete line, an event, or no budget
    return None


class Tail:
    """Reader of the complete lines of a growing file.

    Parameters
    ----------
    file : the file; it may not exist yet.
    at : offset of the next line, in bytes.
    """

    def __init__(self, file: Path, at: int = 0) -> None:
        self._file, self.at = file, at

    def size(self) -> int:
        """Return the size of the file in bytes; 0 if it does not exist."""
        with contextlib.suppress(FileNotFoundError):
            return self._file.stat().st_size
        return 0

    def to_end(self) -> None:
        """Skip to the current end of the file."""
        self.at = self.size()

    def lines(self, *, last: bool = False) -> Iterator[bytes]:
        """Yield the new complete lines, up to 1 MiB; with ``last`` also an incomplete last line."""
        try:
            with self._file.open("rb") as opened:
                if self.at > os.fstat(opened.fileno()).st_size:  # the system may refuse such an offset
                    return
                opened.seek(self.at)
                part = opened.read(_PART)
        except FileNotFoundError:
            return
        whole = part.rfind(b"\n") + 1
        if not whole and (last or len(part) == _PART):
            whole = len(part)
        self.at += whole
        yield from part[:whole].splitlines()


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)
