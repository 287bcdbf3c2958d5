"""A callback that passes a run to trackers, in a thread, so that training does not wait for them."""

from __future__ import annotations

import math
import queue
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from chimera.core.counted import counted
from chimera.core.errors import ChimeraError
from chimera.core.private import write
from chimera.training.progress.callback import Callback, Event, Progress
from chimera.training.tracking.tracker import Tracked, Tracker

if TYPE_CHECKING:
    from chimera.training.artifacts.result import Run

FILE = "tracking.json"
"""The identity of the run in each tracker, by name; a resumed run continues there."""
END_S = 60.0
"""Seconds that the end of a run waits for trackers."""
_QUEUED = 1000
_SECRET = re.compile(r"token|password|secret|credential|key", re.IGNORECASE)
_ARTIFACTS = ("report.html", "experiment.toml", "summary.json")


class Tracking(Callback):
    """Passes metrics, events, figures of the system and the report of a run to trackers.

    A tracker that fails does not end the run: it is reported once, and not called again. Values that a slow tracker does not
    take in time are dropped; the number of dropped rows is reported.

    Parameters
    ----------
    trackers : trackers by name.
    settings : tables of the experiment.
    folder : returns the folder of the run, which is final when the run has begun.
    """

    def __init__(
        self,
        trackers: Mapping[str, Tracker],
        *,
        settings: Mapping[str, Any],
        folder: Callable[[], Path],
    ) -> None:
        self._trackers, self._folder = dict(trackers), folder
        self._settings = {key: value for key, value in flat(settings) if not _SECRET.search(key)}
        self._queue: queue.Queue[Callable[[str, Tracker], None] | None] = queue.Queue(_QUEUED)
        self._thread: threading.Thread | None = None
        self._failures: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._dropped = 0

    def on_start(self, progress: Progress) -> None:  # noqa: ARG002 - the values come with the first progress
        """Start the thread, and the record of the run in each tracker."""
        folder = self._folder()
        known = read_identities(folder)
        self._thread = threading.Thread(target=self._run, name="chimera tracking", daemon=True)
        self._thread.start()

        def begin(name: str, tracker: Tracker) -> None:
            run = Tracked(folder.name, folder, self._settings, known.get(name))
            known[name] = tracker.begin(run)
            write(folder / FILE, msgspec.json.format(msgspec.json.encode(known)))

        self._put(begin)

    def on_progress(self, progress: Progress) -> None:
        """Record metrics and figures of the system."""
        values, round_, seconds = dict(values_of(progress)), progress.rounds, progress.seconds
        self._put(lambda _, tracker: tracker.log(values, round_, seconds))
        self._report()

    def on_event(self, event: Event) -> None:
        """Record an event."""
        text = " ".join(part for part in (event.event, event.actor, event.detail) if part)
        self._put(lambda _, tracker: tracker.event(text, event.round))

    def on_end(self, run: Run) -> None:
        """Record the final figures and the report."""
        summary = {name: float(value) for name, value in flat(run.summary()) if is_number(value)}
        files = {name: run.run_dir / name for name in _ARTIFACTS if (run.run_dir / name).is_file()}
        self.close(summary, files, finished=True)

    def close(
        self,
        summary: Mapping[str, float] | None = None,
        files: Mapping[str, Path] | None = None,
        *,
        finished: bool = False,
    ) -> None:
        """End the record in each tracker, within `END_S`. A second call does nothing."""
        if self._thread is None:
            return
        thread, self._thread = self._thread, None
        deadline = time.monotonic() + END_S
        for last in (lambda _, tracker: tracker.end(summary or {}, files or {}, finished=finished), None):
            try:
                self._queue.put(last, timeout=max(deadline - time.monotonic(), 0))
            except queue.Full:
                break
        thread.join(max(deadline - time.monotonic(), 0))
        if thread.is_alive():
            _warn(
                f"{', '.join(self._trackers)}: not done within {END_S:g} s of the end of the run; some values are missing"
            )
        if self._dropped:
            _warn(
                f"{', '.join(self._trackers)}: {counted(self._dropped, 'row')} dropped, because the rows came too fast"
            )
        self._report()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _put(self, call: Callable[[str, Tracker], None]) -> None:
        try:
            self._queue.put_nowait(call)
        except queue.Full:
            self._dropped += 1

    def _run(self) -> None:
        working = dict(self._trackers)
        while (call := self._queue.get()) is not None:
            for name, tracker in list(working.items()):
                try:
                    call(name, tracker)
                except Exception as error:  # of the tracker's library, which must not end the run
                    del working[name]
                    reason = str(error) if isinstance(error, ChimeraError) else f"{type(error).__name__}: {error}"
                    self._failures.put(f"{name} failed, and records no more of this run: {reason.splitlines()[0]}")

    def _report(self) -> None:
        while not self._failures.empty():
            _warn(self._failures.get())


def values_of(progress: Progress) -> Iterator[tuple[str, float]]:
    """Yield the values of a row by name: losses, metrics of the test set, and figures of the system."""
    if progress.loss is not None:
        yield "train/loss", progress.loss
    for name, value in progress.metrics.items():
        yield f"test/{name}", value
    yield "system/epochs", progress.epochs
    yield "system/samples", float(progress.samples)
    yield "system/seconds", progress.seconds
    yield "system/bytes_up", float(progress.bytes_up)
    yield "system/bytes_down", float(progress.bytes_down)
    yield "system/workers", float(sum(state == "running" for state in progress.workers.values()))
    if progress.seconds > 0:
        yield "system/samples_per_second", progress.samples / progress.seconds
    if progress.tokens:
        yield "system/tokens", float(progress.tokens)


def flat(tables: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str | int | float | bool]]:
    """Yield plain values of nested mappings by dotted key; other values as texts."""
    for key, value in tables.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{key}.")
        elif isinstance(value, str | int | float | bool):
            yield f"{before}{key}", value
        elif isinstance(value, Sequence):
            yield f"{before}{key}", str(list(value))
        elif value is not None:
            yield f"{before}{key}", type(value).__qualname__


def is_number(value: object) -> bool:
    """Return whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def read_identities(folder: Path) -> dict[str, str]:
    """Return the identities of a run in trackers; none if the file is missing or not readable."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=dict[str, str])
    except (OSError, msgspec.MsgspecError):
        return {}


def _warn(line: str) -> None:
    warnings.warn(line, stacklevel=2)
