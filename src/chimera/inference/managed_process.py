"""A process of a cluster on this machine, which is restarted whenever it ends."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from chimera.core.errors import UnavailableError
from chimera.core.printable import printable
from chimera.core.private import opener
from chimera.core.processes import SHORT_RUNS, RestartPause, describe_exit
from chimera.inference.cluster_folder import ClusterFolder
from chimera.inference.console import PREFIX
from chimera.inference.failing import FailingProcesses
from chimera.inference.worker.process import LEAVE
from chimera.web.disk_guard import DiskGuard

_ERROR, _WARNING = b"chimera: error: ", PREFIX.encode()
_SHORT_RUN_S, _MAX_PAUSE_S = 10.0, 60.0  # of workers; `supervisor` sets a shorter pause for others
_READ_S = 1.0  # seconds between two searches for warnings
_MAX_LOG_BYTES = 1 << 16  # the end of a log, which is searched for the reason of an exit


class ManagedProcess:
    """One process of the cluster, which is restarted whenever it ends.

    Parameters
    ----------
    command : the module that the process runs, and its arguments.
    inherited : sockets that the process inherits.
    may_start : returns whether the process may start now.
    max_pause_s : maximum pause in seconds before a restart, if the process ends repeatedly within seconds of its start.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: ClusterFolder,
        environment: Mapping[str, str],
        *,
        inherited: Sequence[socket.socket] = (),
        may_start: Callable[[], bool] = lambda: True,
        max_pause_s: float = _MAX_PAUSE_S,
    ) -> None:
        self.name = name
        self._command, self._folder, self._environment = command, folder, environment
        self._inherited, self._may_start = inherited, may_start
        self._pause, self._logged = RestartPause(_SHORT_RUN_S, max_pause_s), 0
        self._failing, self._fails = FailingProcesses(folder.failing), False
        self._started_s = self._read_s = 0.0
        self._read = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, if it may start now; else `check` starts it later.

        Raises
        ------
        UnavailableError : the system refuses to start a process, or its output cannot be written. `check` tries it again.
        """
        if not self._may_start():
            return
        self._started_s = time.monotonic()
        self._pause.start(self._started_s)
        try:
            self._start()
        except OSError as error:
            self._pause.exit(self._started_s)
            limits = {errno.EAGAIN: "ulimit -u", errno.EMFILE: "ulimit -n", errno.ENOMEM: "too little memory"}
            cause = f" ({limits[error.errno]})" if error.errno in limits else ""
            raise UnavailableError(f"{self.name} cannot be started: {error.strerror or error}{cause}") from error

    def _start(self) -> None:
        with open(self._folder.output(self.name), "ab", opener=opener) as output:
            self._logged = self._read = output.tell()
            self.process = subprocess.Popen(  # noqa: S603 - this Python, a module of the project, no shell
                [sys.executable, "-m", *self._command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._environment},
                pass_fds=[each.fileno() for each in self._inherited],
                start_new_session=True,
            )

    def check(self, notify: Callable[[str], None]) -> None:
        """Restart the process if it has ended; pass its warnings to ``notify``."""
        now_s = time.monotonic()
        if self.process is None:
            if self._pause.is_over(now_s):
                self._start_again(notify)
            return
        code = self.process.poll()
        if code is not None or now_s > self._read_s + _READ_S:
            self._read_s = now_s
            for line in self._new_warnings():
                notify(f"warning: {line}")
        if code is None:
            if self._fails and now_s > self._started_s + _SHORT_RUN_S:
                self._forget()
            return
        self._pause.exit(now_s)
        pid, ended = self.process.pid, f"{describe_exit(code)}{self._reason()}"
        self._release()
        if self._pause.short_runs < SHORT_RUNS:
            notify(f"{self.name} {ended}; it is restarted")
            return
        again = f"{self._pause.short_runs} times within seconds of its start; it is restarted after {self._pause.pause_s:g} s"
        notify(f"{self.name} {ended}, {again}")
        self._fails = True
        self._failing.report(self.name, pid, f"fails: {ended}, {again}")

    def _start_again(self, notify: Callable[[str], None]) -> None:
        try:
            self.start()
        except UnavailableError as error:
            again = f"{error}; the next attempt is in {self._pause.pause_s:g} s"
            notify(again)
            if self._pause.short_runs >= SHORT_RUNS:
                self._fails = True
                self._failing.report(self.name, 0, f"fails: {again.removeprefix(self.name).lstrip()}")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and its children."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)

    def leave(self) -> None:
        """Ask a worker to compute its batches to their end, and to exit."""
        self._forget()
        if self.process is not None:
            self.process.send_signal(LEAVE)

    def has_ended(self) -> bool:
        """Return whether the process does not run; it is not restarted."""
        return self.process is None or self.process.poll() is not None

    def end(self, deadline_s: float) -> None:
        """Wait until the process has ended; kill it at the deadline."""
        self._forget()
        if self.process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(max(deadline_s - time.monotonic(), 0.0))
        self.signal(signal.SIGKILL)
        self.process.wait()
        self._release()

    def _reason(self) -> str:
        """Return why the last process has ended: its last error message; empty if there is none."""
        if DiskGuard(self._folder.path).is_full():  # the process could not write its message
            return f" (the disk of {self._folder.path} is full)"
        with contextlib.suppress(OSError), (self._folder.logs(self.name) / "output.log").open("rb") as log:
            log.seek(max(self._logged, os.fstat(log.fileno()).st_size - _MAX_LOG_BYTES))
            errors = [line for line in log.read().splitlines() if line.startswith(_ERROR)]
            if errors:
                return f" ({printable(errors[-1].removeprefix(_ERROR).decode(errors='replace'))})"
        return ""

    def _new_warnings(self) -> list[str]:
        """Return the warnings that the process has written since the last call."""
        found = b""
        with contextlib.suppress(OSError), self._output().open("rb") as log:
            size = os.fstat(log.fileno()).st_size
            if size > self._read:
                log.seek(max(self._read, size - _MAX_LOG_BYTES))
                found = log.read(_MAX_LOG_BYTES)
                found = found[: found.rfind(b"\n") + 1]
                self._read = max(self._read, size - _MAX_LOG_BYTES) + len(found)
        lines = [line for line in found.splitlines() if line.startswith(_WARNING)]
        return [printable(line.removeprefix(_WARNING).decode(errors="replace")) for line in lines]

    def _output(self) -> Path:
        """Return the file of the output; its folder, which may have been deleted, is not created."""
        return self._folder.path / "logs" / self.name / "output.log"

    def _forget(self) -> None:
        if self._fails:
            self._fails = False
            self._failing.forget(self.name)

    def _release(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
        self.process = None
