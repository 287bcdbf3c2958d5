"""Writing of checkpoints in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from chimera.core.errors import RunError
from chimera.training.artifacts.checkpoint import Checkpoints, Content, frozen

_CHECK_S = 0.1
"""Seconds between two checks during a wait. A signal that arrives just before a wait, or that the system delivers to another
thread, does not end the wait; the main thread handles the signal at the next check."""


class CheckpointWriter:
    """Writes checkpoints in a thread, one at a time, while the run continues.

    As a context manager, it waits at its end for the last write. After Ctrl-C or a preemption it does not wait, since a second
    signal ends a run at once. Call `finish` before the first signal raises.

    Parameters
    ----------
    checkpoints : writes the files.
    check_stop : called repeatedly during a wait; it raises to end the wait.
    before : called in the thread before each write. A checkpoint is written only when it returns.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        check_stop: Callable[[], None] = lambda: None,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self._checkpoints, self._check_stop, self._before = checkpoints, check_stop, before
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    @property
    def busy(self) -> bool:
        """Whether a write is under way."""
        return self._thread is not None and self._thread.is_alive()

    def write(self, round_: int, state: Mapping[str, Any]) -> None:
        """Wait for the last write, and start to write a state. The state may change after this call.

        Raises
        ------
        RunError : the last checkpoint could not be written.
        """
        self.finish()
        self._thread = threading.Thread(
            target=self._write, args=(round_, frozen(state)), name="chimera checkpoint", daemon=True
        )
        self._thread.start()

    def check(self) -> None:
        """Raise the error of the last write, if it has failed.

        Raises
        ------
        RunError : a checkpoint could not be written. Older checkpoints are unchanged.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error

    def finish(self) -> None:
        """Wait for the last write, and raise its error as `check` does."""
        if self._thread is not None:
            while self._thread.is_alive():
                self._check_stop()
                self._thread.join(_CHECK_S)
            self._thread = None
        self.check()

    def _write(self, round_: int, content: Content) -> None:
        try:
            self._before()
            self._checkpoints.write_content(round_, content)
        except RunError as error:
            self._error = error
        except Exception as error:  # of any file system library
            self._error = RunError(f"the checkpoint of round {round_} cannot be written: {error}")
            self._error.__cause__ = error

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
        elif isinstance(error, Exception):
            try:
                self.finish()
            except RunError as failed:
                error.add_note(str(failed))
