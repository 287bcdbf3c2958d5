"""The process of one cell: ``python -m chimera.training.comparison.cell PIPE``.

The parent process sends the experiment to stdin, by length and content, and keeps stdin open. When stdin closes, this process
exits at once with all processes that it has started. Events are written to the pipe, a JSON object a line.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from typing import IO, Any

import msgspec

from chimera.core.errors import ChimeraError, ConfigurationError
from chimera.core.pickling import unpickled
from chimera.core.stop_signals import PREEMPTIONS, ignore_stop_signals
from chimera.training.progress.callback import Callback, Event, Progress

PROGRESS_INTERVAL_S = 0.1  # minimum interval of progress messages without an evaluation
LENGTH_BYTES = 8
INTERRUPTED = 130  # exit code of a run that Ctrl-C ended, as in the command line


class EventText(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message of a cell; exactly one field is set."""

    progress: Progress | None = None
    event: Event | None = None
    failed: str | None = None


class _PipeWriter(Callback):
    """Writes progress to the pipe, at intervals and at every evaluation."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe, self._encoder = pipe, msgspec.json.Encoder()
        self._next_progress_at, self._metrics = 0.0, dict[str, float]()

    def on_start(self, progress: Progress) -> None:
        self._write(EventText(progress=progress))

    def on_progress(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.metrics != self._metrics or now >= self._next_progress_at:
            self._metrics, self._next_progress_at = progress.metrics, now + PROGRESS_INTERVAL_S
            self._write(EventText(progress=progress))

    def on_event(self, event: Event) -> None:
        self._write(EventText(event=event))

    def failed(self, reason: str) -> None:
        self._write(EventText(failed=" ".join(reason.split())))

    def _write(self, message: EventText) -> None:
        self._pipe.write(self._encoder.encode(message) + b"\n")
        self._pipe.flush()


def run(task: dict[str, Any], pipe: IO[bytes]) -> int:
    """Run the experiment of ``task`` in its folder, and return the exit code."""
    writer = _PipeWriter(pipe)
    try:
        experiment = unpickled(task["experiment"])
        experiment.trainer(callbacks=[writer], out=task["folder"], resume=task["resume"]).fit()
    except KeyboardInterrupt:
        return INTERRUPTED
    except ConfigurationError as error:
        writer.failed(str(error))
        return 2
    except Exception as error:  # user code may raise any exception
        own = isinstance(error, ChimeraError)
        if not own or error.__cause__ is not None:
            traceback.print_exc()
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        writer.failed(first if own and first else f"{type(error).__name__}: {first}".rstrip(": "))
        return 1
    return 0


def main() -> None:
    """Read the task from stdin, and run it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also if the parent process ignores it
    ignore_stop_signals(PREEMPTIONS)  # the parent process receives them, and interrupts this one
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    length = int.from_bytes(sys.stdin.buffer.read(LENGTH_BYTES), "big")
    content = sys.stdin.buffer.read(length)
    if not length or len(content) < length:
        sys.exit(1)  # the parent process has exited already
    threading.Thread(target=_exit_with_parent, name="parent-watch", daemon=True).start()
    task = unpickled(content)
    sys.argv = task["argv"]  # the run folder records the command line
    with open(descriptor, "wb") as pipe:
        sys.exit(run(task, pipe))


def _exit_with_parent() -> None:
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
