"""Upload of a run's files to an object store, in a thread beside training.

A checkpoint is uploaded when it is complete on this machine, after the rows of metrics, events and trace that it counts. A run
can therefore resume from each checkpoint in the store. A store that fails never stops training.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from chimera.training.artifacts.checkpoint import Checkpoints
from chimera.training.artifacts.growing_file import GrowingFile
from chimera.training.artifacts.object_store import CHECKPOINTS, ObjectStore, StoreError
from chimera.training.progress.callback import Callback, Event, Progress, notify
from chimera.training.progress.history import FILES as GROWING
from chimera.training.progress.history import History

INTERVAL_S = 15.0
"""Seconds between uploads without a new checkpoint, and between attempts while the store fails."""
PATIENCE_S = 30.0
"""Seconds for which uploads that fail are repeated at the end of a run."""
STALL_S = 120.0
"""Seconds without progress after which an upload at the end of a run is cancelled."""
_POLL_S, _PAUSE_S = 0.5, 2.0
_SMALL_BYTES = 1 << 20  # larger files that do not grow are uploaded at the end of the run only


class Mirror:
    """Uploads the files of one run, from its creation to `end`.

    The growing files then have their length at the checkpoint from which the run resumes.

    Parameters
    ----------
    store : the folder of the run in its store.
    folder : the folder in which the run writes.

    Attributes
    ----------
    reports : pairs of event and detail about the store. Another thread reads and removes them.
    """

    def __init__(self, store: ObjectStore, folder: Path) -> None:
        self._store, self._folder = store, folder
        self._growing = [GrowingFile(store, folder / name) for name in GROWING]
        self._checkpoints = Checkpoints(str(folder / CHECKPOINTS))
        self._sent: dict[Path, tuple[int, int]] = {}  # size and time of files that do not grow
        self._available, self._finished = True, False
        self._failure: StoreError | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
        self.reports: deque[tuple[str, str]] = deque()
        self._sent |= {path: _state(path) for path in self._newest()}  # downloaded by a run that resumes
        self._thread.start()

    def end(self, *, finished: bool) -> None:
        """Upload the rest, and end the thread; after a failed run upload only what its last checkpoint needs.

        Raises
        ------
        StoreError : the store did not accept the files in `PATIENCE_S` seconds, or an upload makes no progress.
        """
        self._finished = finished
        self._ended.set()
        began = time.monotonic()
        while self._thread.is_alive():
            self._thread.join(_POLL_S)
            if time.monotonic() - max(began, self._store.active_at) > STALL_S:
                raise StoreError(f"an upload to {self._store.url} made no progress in {STALL_S:.0f} s")
        if self._failure is not None:
            raise self._failure

    def missing(self) -> list[str]:
        """Return the names of the files whose present content is not in the store."""
        growing = [name for name, file in zip(GROWING, self._growing, strict=True) if file.pending(whole=False)]
        others = [path.name for path in self._others() if self._sent.get(path) != _state(path)]
        return growing + [path.name for path in self._new_checkpoints()] + others

    def _run(self) -> None:
        due = time.monotonic() + INTERVAL_S
        while not self._ended.wait(_POLL_S):
            if (self._available and self._new_checkpoints()) or time.monotonic() >= due:
                failure = self._attempt(finished=False)
                self._report(failure is None, f"{failure}; the run continues and tries again")
                due = time.monotonic() + INTERVAL_S
        until = time.monotonic() + PATIENCE_S
        while (failure := self._attempt(finished=self._finished)) and time.monotonic() + _PAUSE_S < until:
            time.sleep(_PAUSE_S)
        self._failure = failure

    def _attempt(self, *, finished: bool) -> StoreError | None:
        """Upload new content; return the error if that fails."""
        try:
            self._upload(finished=finished)
        except StoreError as error:
            return error
        except Exception as error:  # of a file on this machine: the thread must continue, and the run must report it
            return StoreError(f"the files in {self._folder} cannot be uploaded: {error}")
        return None

    def _report(self, available: bool, detail: str) -> None:
        """Report a change of state, once."""
        if available != self._available:
            self._available = available
            self.reports.append(("object store available", "") if available else ("object store unavailable", detail))

    def _upload(self, *, finished: bool) -> None:
        checkpoints = self._new_checkpoints()  # first: the growing files then have all rows that it counts
        for file in self._growing:
            file.send(whole=finished)
        for path in checkpoints:
            self._send_checkpoint(path)
        for path in self._others():  # the summary, by which a run counts as finished, is the last one
            if finished or path.stat().st_size <= _SMALL_BYTES:
                self._send(path)

    def _send_checkpoint(self, path: Path) -> None:
        """Upload a checkpoint, then delete the checkpoints in the store that the run itself has deleted."""
        try:
            self._send(path)
        except (FileNotFoundError, StoreError):
            if not path.exists():  # newer ones have replaced it
                return
            raise
        kept = {Path(each).name for each in self._checkpoints.paths()}
        stale = [name for name in self._store.checkpoints() if name not in kept and name < path.name]
        self._store.delete(f"{CHECKPOINTS}/{name}" for name in stale)

    def _send(self, path: Path) -> None:
        state = _state(path)
        if self._sent.get(path) != state:
            self._store.put_file(path, path.relative_to(self._folder).as_posix())
            self._sent[path] = state

    def _newest(self) -> list[Path]:
        """Return the newest checkpoint on this machine, if there is one."""
        return [Path(path) for path in self._checkpoints.paths()[-1:]]

    def _new_checkpoints(self) -> list[Path]:
        """Return the newest checkpoint, unless the store has it with the same content."""
        with suppress(FileNotFoundError):  # the run deletes checkpoints meanwhile
            return [path for path in self._newest() if self._sent.get(path) != _state(path)]
        return []

    def _others(self) -> Iterator[Path]:
        """Yield the files in the run's folder that do not grow; the summary is the last one."""
        for path in sorted(self._folder.iterdir(), key=lambda path: (path.name == "summary.json", path.name)):
            hidden = path.name.startswith(".") or path.suffix == ".part" or path.is_symlink()
            if path.name not in GROWING and not hidden and path.is_file():
                yield path


class StoreEvents(Callback):
    """A callback that records in the history, and passes to other callbacks, that a store fails or works again."""

    def __init__(self, mirror: Mirror, history: History, callbacks: Sequence[Callback]) -> None:
        self._mirror, self._history, self._callbacks = mirror, history, callbacks

    def on_progress(self, progress: Progress) -> None:
        """Record what the thread has reported."""
        while self._mirror.reports:
            what, detail = self._mirror.reports.popleft()
            event = Event(what, progress.seconds, progress.rounds, "", detail)
            self._history.add_event(event)
            notify(self._callbacks, "on_event", event)


def _state(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns
