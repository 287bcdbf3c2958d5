"""The workers of a cluster as processes of one machine; their number may change while the cluster runs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chimera.core.errors import UnavailableError
from chimera.core.processes import THREAD_VARIABLES
from chimera.inference.cluster_folder import ClusterFolder
from chimera.inference.memory import WORKER_BYTES, available_bytes, fitting
from chimera.inference.preload import awaited

if TYPE_CHECKING:
    from chimera.inference.managed_process import ManagedProcess

_ADJUST_S = 0.25  # between two reads of the number of workers
_SETTLE_S = 10.0  # from the start of a worker until it has taken its memory
AT_ONCE = 16
"""Maximum number of workers that start between two checks of the supervisor, which must notice signals meanwhile."""


class LocalWorkers:
    """The workers ``w0`` to ``w{N-1}`` as processes of this machine. Their number N may change.

    Parameters
    ----------
    wanted : returns N.
    make : makes the process of a worker from its name.
    prefix : text before all names.
    available : returns the bytes of memory that new workers can use; None: unknown. No worker starts without memory.
    adjust_s, settle_s : seconds between two reads of N, and from the start of a worker until it has taken its memory.
    """

    def __init__(
        self,
        wanted: Callable[[], int],
        make: Callable[[str], ManagedProcess],
        *,
        prefix: str = "",
        available: Callable[[], int | None] = available_bytes,
        adjust_s: float = _ADJUST_S,
        settle_s: float = _SETTLE_S,
    ) -> None:
        self._wanted, self._make, self._prefix = wanted, make, prefix
        self._available, self._adjust_s, self._settle_s = available, adjust_s, settle_s
        self._started_s: list[float] = []  # of workers that have not taken their memory yet
        self._short = self._short_reported = False
        self._there: dict[str, ManagedProcess] = {}
        self._leaving: dict[str, ManagedProcess] = {}
        self._adjusted_s = 0.0
        self._reported: int | None = None

    def start(self) -> None:
        """Start the first workers; `check` starts the others.

        Raises
        ------
        UnavailableError : the system refuses to start a process.
        """
        self._adjust()

    def check(self, notify: Callable[[str], None]) -> None:
        """Restart dead workers; start and dismiss workers if their number was changed."""
        for each in self._there.values():
            each.check(notify)
        if time.monotonic() < self._adjusted_s + self._adjust_s:
            return
        try:
            is_adjusted = self._adjust()
        except UnavailableError as error:  # the check of that worker starts it again
            notify(str(error))
            return
        if self._short and not self._short_reported:
            notify(f"the memory holds at most {len(self._there)} of the {self._wanted()} requested workers")
        self._short_reported = self._short
        if is_adjusted:
            before, self._reported = self._reported, len(self._there)
            if before not in (None, self._reported):
                notify(f"the cluster has {self._reported} workers now, instead of {before}")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all workers."""
        for each in self._all():
            each.signal(number)

    def end(self, deadline_s: float) -> None:
        """Wait until all workers have ended; kill them at the deadline."""
        for each in self._all():
            each.end(deadline_s)

    def leave(self) -> None:
        """Drain all workers: each computes its batches to their end, and exits."""
        self._wanted = lambda: 0
        self._dismiss(list(self._there))

    def have_ended(self) -> bool:
        """Return whether no process runs."""
        return all(each.has_ended() for each in self._all())

    def _all(self) -> list[ManagedProcess]:
        return [*self._there.values(), *self._leaving.values()]

    def _adjust(self) -> bool:
        """Start and dismiss workers. Return whether all have started; if not, the next check starts more."""
        for name in [name for name, each in self._leaving.items() if each.has_ended()]:
            self._leaving.pop(name).end(0.0)
        names = {f"{self._prefix}w{i}": None for i in range(self._wanted())}
        self._dismiss([name for name in self._there if name not in names])
        missing = [name for name in names if name not in self._there]
        startable = [name for name in missing if name not in self._leaving]  # a worker that leaves keeps its name
        fit = self._fit(len(startable))
        for name in startable[: min(fit, AT_ONCE)]:
            self._there[name] = self._make(name)
            self._there[name].start()
            self._started_s.append(time.monotonic())
        self._short = fit < len(startable) and not self._started_s
        if self._short:
            startable = missing = missing[:fit]
        if len(startable) <= AT_ONCE:
            self._adjusted_s = time.monotonic()
        return len(missing) <= AT_ONCE and missing == startable

    def _fit(self, count: int) -> int:
        """Return how many of ``count`` more workers fit in the memory, beside those that have not taken theirs."""
        now_s = time.monotonic()
        self._started_s = [started_s for started_s in self._started_s if now_s < started_s + self._settle_s]
        available = self._available() if count else None
        if available is None:
            return count
        return min(count, fitting(available - len(self._started_s) * WORKER_BYTES, 0))

    def _dismiss(self, names: Sequence[str]) -> None:
        for name in names:
            self._leaving[name] = self._there.pop(name)
            self._leaving[name].leave()


@dataclass(frozen=True)
class WorkerProcesses:
    """The processes of the workers of a machine, which differ in their names only. A name ends with the worker's number.

    Attributes
    ----------
    keep_models, preload, devices : see `chimera.inference.cluster_options.ClusterOptions`.
    more : further options of `chimera.inference.worker.process`.
    """

    keep_models: int
    preload: str
    devices: Sequence[str]
    more: Sequence[str] = ()

    def command(self, folder: ClusterFolder, name: str, forks: int) -> list[str]:
        """Return the module that a worker runs, and its arguments; ``forks`` is the descriptor of the fork server's socket."""
        command = ["chimera.inference.worker.process", "--cluster", str(folder.path), "--name", name]
        command += ["--keep-models", str(self.keep_models), "--forks", str(forks), *self.more]
        return [*command, "--preload", ",".join(awaited(self.preload))]

    def environment(self, name: str) -> dict[str, str]:
        """Return the variables of a worker: one thread, unless the environment sets their number, and its GPU."""
        number = int(name.rpartition("w")[2])
        gpu = {"CUDA_VISIBLE_DEVICES": self.devices[number % len(self.devices)]} if self.devices else {}
        return one_thread() | gpu


def one_thread() -> dict[str, str]:
    """Return the variables that limit a process to one thread, unless the environment sets the number."""
    return {variable: "1" for variable in THREAD_VARIABLES if variable not in os.environ}
