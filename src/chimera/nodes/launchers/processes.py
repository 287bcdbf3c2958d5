"""Workers as processes of this machine, without Docker."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from chimera.core import processes
from chimera.core.private import make_folder, opener
from chimera.core.processes import THREAD_VARIABLES, describe_exit
from chimera.engines import parent_watch
from chimera.nodes.launchers.launcher import LauncherError, Worker
from chimera.nodes.settings import Settings

LOGS_FOLDER = Path("chimera_logs")
STOP_S = 5.0  # time between SIGTERM and SIGKILL


class ProcessLauncher:
    """Runs each worker as a process in its own session, with its output in ``chimera_logs/<name>.log``.

    A worker's CPU shares determine its number of threads for NumPy and PyTorch: its share of the processors, at least one. If
    ``OMP_NUM_THREADS`` is set in the environment, it is kept. A worker ends when the process that started it ends or dies.
    """

    name = "process"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._logs = LOGS_FOLDER.absolute()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def clear(self, workers: Sequence[Worker]) -> None:
        """Do nothing: workers of an earlier run ended with the process that started them."""

    def start(self, workers: Sequence[Worker]) -> None:
        """Start a process for each worker."""
        try:
            make_folder(self._logs)
            for worker, threads in zip(workers, thread_counts([worker.cpu_shares for worker in workers]), strict=True):
                self._processes[worker.name] = self._started(worker, threads)
        except OSError as error:
            raise LauncherError(f"cannot start the workers: {error}") from error

    def _started(self, worker: Worker, threads: int) -> subprocess.Popen[bytes]:
        variables = {
            "CHIMERA_WORKERS_HOST": "127.0.0.1",
            "CHIMERA_WORKERS_PORT": str(worker.port),
            "CHIMERA_WORKER_NAME": worker.name,
            "PYTHONUNBUFFERED": "1",  # the last output of a worker that dies must be in its log
        }
        if "OMP_NUM_THREADS" not in os.environ:
            variables |= dict.fromkeys(THREAD_VARIABLES, str(threads))
        with open(self._log(worker.name), "wb", opener=opener) as log:
            return subprocess.Popen(  # noqa: S603 - this Python, a file of the user's project, no shell
                [sys.executable, str(Path(parent_watch.__file__)), str(worker.file)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._settings.worker_environment(), **variables},
                start_new_session=True,
            )

    def exited(self) -> dict[str, str]:
        """Return how the ended workers ended, by name."""
        codes = {name: process.poll() for name, process in self._processes.items()}
        return {name: describe_exit(code) for name, code in codes.items() if code is not None}

    def log(self, name: str, lines: int) -> str:
        """Return the last lines of a worker's log."""
        return tail(self._log(name), lines)

    def log_locations(self) -> dict[str, str]:
        """Return the file of each worker's log."""
        return {name: f"file:{self._log(name)}" for name in self._processes}

    def stop(self) -> None:
        """Stop all workers together by SIGTERM, and after `STOP_S` by SIGKILL, with all processes of their groups."""
        living = [process for process in self._processes.values() if process.poll() is None]
        for process in living:
            _signal(process, signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        for process in living:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            _signal(process, signal.SIGKILL)
            process.wait()
        for process in self._processes.values():
            if process.stdin is not None:
                process.stdin.close()

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"


def thread_counts(shares: Sequence[int], cores: int | None = None) -> list[int]:
    """Return the number of threads of each worker: the processors divided by the shares, rounded, at least one each."""
    available = processes.cores() if cores is None else cores
    return [max(1, round(available * share / sum(shares))) for share in shares]


def tail(file: Path, lines: int | None) -> str:
    """Return the last ``lines`` lines of a text file; None: all lines. Empty if the file does not exist."""
    try:
        with file.open(encoding="utf-8", errors="replace") as text:
            return "".join(deque(text, lines))
    except FileNotFoundError:
        return ""


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS raises the latter for a group of zombies
        os.killpg(process.pid, number)  # it leads its session, so its id is that of the group


def _ending(code: int) -> str:
    return f"exited with code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
