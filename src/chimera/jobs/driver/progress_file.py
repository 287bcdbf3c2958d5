"""What a job tells while it runs: a callback that writes progress and events down, and who reads them as they come."""

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

EVERY_S = 0.2
"""How often progress is written where nothing was evaluated."""
_PART = 1 << 20
_TAIL = 1 << 16


class Told(Callback):
    """Writes what happens to a run into a file, a JSON object a line.

    Parameters
    ----------
    file : it grows, attempt by attempt.
    """

    def __init__(self, file: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._clock, self._next_s = file, clock, 0.0
        self._last: Progress | None = None
        self._metrics: dict[str, float] = {}

    def on_wait(self, what: str) -> None:
        """Write what it waits for before it begins."""
        self._write(wait=what)

    def on_start(self, progress: Progress) -> None:
        """Write where it begins."""
        self._write(start=progress)

    def on_progress(self, progress: Progress) -> None:
        """Write it if there was an evaluation, or none of late."""
        now_s = self._clock()
        if now_s < self._next_s and progress.metrics == self._metrics:
            self._last = progress
            return
        self._next_s, self._metrics, self._last = now_s + EVERY_S, progress.metrics, None
        self._write(progress=progress)

    def on_event(self, event: Event) -> None:
        """Write what happened."""
        self._write(event=event)

    def on_end(self, run: Any) -> None:
        """Write the last progress, and the outcome."""
        if self._last is not None:
            self._write(progress=self._last)
        self._write(summary=run.summary())

    def _write(self, **told: Any) -> None:
        with open(self._file, "ab", buffering=0, opener=opener) as file:
            file.write(msgspec.json.encode(told, enc_hook=_plain) + b"\n")


def fraction_of(file: Path) -> float | None:
    """Return how much of the budget a job has used, by what it told last; None if it has told nothing, or has no budget."""
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, os.fstat(opened.fileno()).st_size - _TAIL))
            lines = opened.read().splitlines()
    except FileNotFoundError:
        return None
    for line in reversed(lines):
        try:
            told = msgspec.json.decode(line)
            return float(next(iter(told.values()))["fraction"])
        except (msgspec.DecodeError, TypeError, KeyError, AttributeError, ValueError):
            continue  # half a line, an event, or no budget
    return None


class Tail:
    """Reads a file that grows, by whole lines.

    Parameters
    ----------
    at : where to begin, in bytes.
    """

    def __init__(self, file: Path, at: int = 0) -> None:
        self._file, self.at = file, at

    def to_end(self) -> None:
        """Go on from where the file ends now."""
        with contextlib.suppress(FileNotFoundError):
            self.at = self._file.stat().st_size

    def lines(self, *, last: bool = False) -> Iterator[bytes]:
        """Yield the lines that are new, up to a megabyte; with ``last`` also one without an end."""
        try:
            with self._file.open("rb") as opened:
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
