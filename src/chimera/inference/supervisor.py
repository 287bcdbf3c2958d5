"""What keeps a cluster on one machine up: it starts coordinators and workers as processes, and starts the dead anew."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from chimera.inference.cluster_folder import ClusterFolder

STOP_S = 5.0
"""How long members have to end by themselves."""
_POLL_S = 0.02
_QUICK_S = 2.0  # who lives no longer than this is started anew later and later
_LONGEST_S = 10.0
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Member:
    """One process of the cluster, started again and again.

    Parameters
    ----------
    command : the module that the process runs, and its arguments.
    """

    def __init__(
        self, name: str, command: Sequence[str], folder: ClusterFolder, environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self._command, self._folder, self._environment = command, folder, environment
        self._began_s = self._at_s = self._pause_s = 0.0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process."""
        logs = self._folder.logs(self.name)
        logs.mkdir(parents=True, exist_ok=True)
        with (logs / "output.log").open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *self._command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._environment},
                start_new_session=True,
            )
        self._began_s = time.monotonic()

    def look(self, say: Callable[[str], None]) -> None:
        """Start the process anew if it has ended."""
        now_s = time.monotonic()
        if self.process is None:
            if now_s >= self._at_s:
                self.start()
            return
        code = self.process.poll()
        if code is None:
            return
        how = f"exited with code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
        quick = now_s - self._began_s < _QUICK_S
        self._pause_s = min(max(2 * self._pause_s, 0.1), _LONGEST_S) if quick else 0.0
        self._at_s = now_s + self._pause_s
        self._release()
        say(f"{self.name} {how}; it is started anew")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and all that it started."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)

    def end(self, deadline_s: float) -> None:
        """Wait for the end of the process, and make one at the deadline."""
        if self.process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(max(deadline_s - time.monotonic(), 0.0))
        self.signal(signal.SIGKILL)
        self.process.wait()
        self._release()

    def _release(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
        self.process = None


def supervise(
    folder: ClusterFolder,
    *,
    workers: int,
    standbys: int,
    policy: str,
    preload: str,
    say: Callable[[str], None],
    stopped: Callable[[], bool],
) -> None:
    """Keep a coordinator, its standbys and the workers up, until ``stopped`` says so; then end them all.

    Parameters
    ----------
    policy : by which the coordinator shares the workers.
    preload : modules that workers import before they join, separated by commas.
    say : told what happens, in one line.
    """
    at, one_thread = ["--cluster", str(folder.path)], dict.fromkeys(THREADS, "1")
    given = {name: value for name, value in one_thread.items() if name not in os.environ}
    leading = ["chimera.inference.member", *at, "--policy", policy, "--name"]
    working = ["chimera.inference.worker_process", *at, *(["--preload", preload] if preload else []), "--name"]
    members = [Member(f"c{i}", [*leading, f"c{i}"], folder, {}) for i in range(1 + standbys)]
    members += [Member(f"w{i}", [*working, f"w{i}"], folder, given) for i in range(workers)]
    try:
        for each in members:
            each.start()
        while not stopped():
            for each in members:
                each.look(say)
            time.sleep(_POLL_S)
    finally:
        for each in members:
            each.signal(signal.SIGCONT)  # who was stopped cannot end
            each.signal(signal.SIGTERM)
        deadline_s = time.monotonic() + STOP_S
        for each in members:
            each.end(deadline_s)
