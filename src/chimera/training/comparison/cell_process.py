"""A running cell, as seen by its parent process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from chimera.core.pickling import pickled_by_value
from chimera.core.private import opener
from chimera.core.stop_signals import blocked_stop_signals
from chimera.training.comparison.cell import INTERRUPTED, LENGTH_BYTES, EventText
from chimera.training.comparison.grid import Cell

State: TypeAlias = Literal["waiting", "running", "finished", "failed", "interrupted"]
_CHUNK_BYTES = 1 << 16
_decoder = msgspec.json.Decoder(EventText)


class CellProcess:
    """The process of one cell, in its own session, so that Ctrl-C reaches it through `interrupt` only.

    Parameters
    ----------
    out : folder of the run, or its URL in an object store.
    log : file for the output of the run; removed if it stays empty. With a URL, it is uploaded as ``<out>.log``.
    resume : whether to resume from the last checkpoint in the folder, if there is one.
    """

    def __init__(self, cell: Cell, out: Path | str, log: Path, *, resume: bool) -> None:
        self.cell, self._log = cell, log
        self._shown_log = f"{out}.log"
        self._rest, self._reason = b"", ""
        self._pipe, write_end = os.pipe()
        os.set_blocking(self._pipe, False)
        task = {"experiment": pickled_by_value(cell.experiment), "folder": str(out), "resume": resume}
        content = pickled_by_value({**task, "argv": list(sys.argv)})
        try:
            log.unlink(missing_ok=True)  # a link would be followed
            with open(log, "wb", opener=opener) as output, blocked_stop_signals():
                self._process = subprocess.Popen(  # noqa: S603 - this Python, a module of the project, no shell
                    [sys.executable, "-P", "-m", "chimera.training.comparison.cell", str(write_end)],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=(write_end,),
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)},
                    start_new_session=True,
                )
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(write_end)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the process is dead already; its exit code shows this
            self._process.stdin.write(len(content).to_bytes(LENGTH_BYTES, "big") + content)
            self._process.stdin.flush()

    def fileno(self) -> int:
        """Return the file descriptor for `select`: readable when the cell has sent a message or has ended."""
        return self._pipe

    @property
    def ended(self) -> bool:
        """Whether the process has exited."""
        return self._process.poll() is not None

    def messages(self) -> list[EventText]:
        """Return the messages since the last call."""
        parts = [self._rest]
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self._pipe, _CHUNK_BYTES):
                parts.append(part)
        *lines, self._rest = b"".join(parts).split(b"\n")
        messages = [_decoder.decode(line) for line in lines]
        self._reason = next((each.failed for each in messages if each.failed), self._reason)
        return messages

    def interrupt(self) -> None:
        """Ask the cell to write a checkpoint and exit."""
        if not self.ended:
            self._process.send_signal(signal.SIGINT)

    def end(self) -> tuple[State, str]:
        """Kill the process and all its children; return how it ended, and the reason of a failure."""
        running = not self.ended
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS raises the latter for a group of zombies
            os.killpg(self._process.pid, signal.SIGKILL)
        code = self._process.wait()
        self.messages()
        os.close(self._pipe)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        output = self._log.stat().st_size if self._log.exists() else 0
        if not output:
            self._log.unlink(missing_ok=True)
        if running or code in (INTERRUPTED, -signal.SIGINT):
            return "interrupted", ""
        if code == 0:
            return "finished", ""
        ending = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return "failed", (self._reason or ending) + (f" (its output: {self._shown_log})" if output else "")
