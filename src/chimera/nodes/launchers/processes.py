"""Workers as processes of this machine, where Docker is not, or not wanted."""

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

from chimera.core.private import make_folder, opener
from chimera.engines import leash
from chimera.nodes.launchers.launcher import LauncherError, Worker
from chimera.nodes.settings import Settings

LOGS_FOLDER = Path("chimera_logs")
STOP_S = 5.0  # how long a worker has to end by itself
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class ProcessLauncher:
    """Each worker is a process in a session of its own; what it writes goes to ``chimera_logs/<name>.log``.

    A worker's CPU shares become a number of threads for NumPy and PyTorch: its part of the processors, at least one. Where the
    environment says ``OMP_NUM_THREADS``, that holds. A worker ends with the process that started it, however that ends.
    """

    name = "process"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._logs = LOGS_FOLDER.absolute()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def clear(self, workers: Sequence[Worker]) -> None:
        """Do nothing: processes end with whoever started them."""

    def start(self, workers: Sequence[Worker]) -> None:
        """Start a process for each worker."""
        try:
            make_folder(self._logs)
            for worker, threads in zip(workers, threads_of([worker.cpu_shares for worker in workers]), strict=True):
                self._processes[worker.name] = self._started(worker, threads)
        except OSError as error:
            raise LauncherError(f"cannot start the workers: {error}") from error

    def _started(self, worker: Worker, threads: int) -> subprocess.Popen[bytes]:
        told = {
            "CHIMERA_WORKERS_HOST": "127.0.0.1",
            "CHIMERA_WORKERS_PORT": str(worker.port),
            "CHIMERA_WORKER_NAME": worker.name,
            "PYTHONUNBUFFERED": "1",  # the last words of a worker that dies must be in its log
        }
        if "OMP_NUM_THREADS" not in os.environ:
            told |= dict.fromkeys(THREADS, str(threads))
        with open(self._log(worker.name), "wb", opener=opener) as log:
            return subprocess.Popen(  # noqa: S603 - this Python, a file of the user's project, no shell
                [sys.executable, str(Path(leash.__file__)), str(worker.file)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._settings.for_worker(), **told},
                start_new_session=True,
            )

    def ended(self) -> dict[str, str]:
        """Return who runs no more, and how it ended."""
        codes = {name: process.poll() for name, process in self._processes.items()}
        return {name: _ending(code) for name, code in codes.items() if code is not None}

    def log(self, name: str, lines: int) -> str:
        """Return the last lines that a worker wrote."""
        return end_of(self._log(name), lines)

    def log_places(self) -> dict[str, str]:
        """Return the file of each log."""
        return {name: f"file:{self._log(name)}" for name in self._processes}

    def stop(self) -> None:
        """End all workers at once: SIGTERM, after some seconds SIGKILL, and what they left in their groups as well."""
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


def threads_of(shares: Sequence[int], cores: int | None = None) -> list[int]:
    """Return how many threads each worker gets: the processors in the ratio of the shares, rounded, at least one."""
    available = cores or len(
        os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    )
    return [max(1, round(available * share / sum(shares))) for share in shares]


def end_of(file: Path, lines: int | None) -> str:
    """Return the last lines of a text file, all with ``lines`` None; empty if there is none."""
    try:
        with file.open(encoding="utf-8", errors="replace") as text:
            return "".join(deque(text, lines))
    except FileNotFoundError:
        return ""


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS says the latter of a group of zombies
        os.killpg(process.pid, number)  # the leader of its session, so this is the group of all it started


def _ending(code: int) -> str:
    return f"exited with code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
