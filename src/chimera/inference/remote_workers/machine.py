"""The workers of this machine for a cluster on another machine: their processes, and the connections that they dial."""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chimera.core.errors import UnavailableError
from chimera.core.extras import require_web
from chimera.inference.cluster_folder import ClusterFolder
from chimera.inference.disk_watch import DiskWatch
from chimera.inference.failing import FailingProcesses
from chimera.inference.local_workers import LocalWorkers, WorkerProcesses
from chimera.inference.managed_process import ManagedProcess
from chimera.inference.membership import Members
from chimera.inference.memory import available_bytes, check_memory
from chimera.inference.preload import AUTO, awaited, check_exist
from chimera.inference.remote_workers.cluster import ClusterAddress
from chimera.inference.remote_workers.dialer import Dialer
from chimera.inference.remote_workers.fetcher import Fetcher
from chimera.inference.remote_workers.protocol import check_name
from chimera.inference.supervisor import STOP_S, local_workers
from chimera.inference.worker.worker import KEEP_MODELS

_POLL_S = 0.02
_UPDATE_S = 0.1


@dataclass(frozen=True)
class MachineOptions:
    """The options of a machine with remote workers.

    Attributes
    ----------
    name : name of the machine; its workers are ``NAME.w0``, ``NAME.w1`` and so on.
    workers : number of workers.
    keep_models, preload, devices : see `chimera.inference.cluster_options.ClusterOptions`.
    code : whether to load models that run code of their own. The cluster names their files of this machine.
    fetch_bytes : maximum size of the models that are fetched from the cluster's machine; 0: none are fetched.
    """

    name: str
    workers: int = 1
    keep_models: int = KEEP_MODELS
    preload: str = AUTO
    devices: Sequence[str] = ()
    code: bool = False
    fetch_bytes: int = 0


def join(
    folder: ClusterFolder, cluster: ClusterAddress, options: MachineOptions, notify: Callable[[str], None]
) -> None:
    """Run workers for a cluster until SIGINT or SIGTERM; they finish their batches first. Main thread only.

    A second signal ends them at once. The cluster then gives their batches to other workers.

    Parameters
    ----------
    folder : a folder of this machine, for the workers' logs and their token.
    notify : called with a line of text for each event.

    Raises
    ------
    MissingExtraError : a required package is not installed.
    ConfigurationError : the name or the folder cannot be used or is in use, the memory does not hold the workers, or the
        cluster refuses the token.
    UnavailableError : the cluster cannot be reached at the start, no process can be started, or the folder was moved or
        deleted.
    """
    require_web("a worker for inference", "inference")
    check_name(options.name)
    check_exist(awaited(options.preload))
    check_memory(options.workers, "--workers", available_bytes())
    folder.create()
    signals: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: signals.append(number))
    with folder.locked():
        FailingProcesses(folder.failing).clear()
        for file in folder.members.glob("*.json"):  # files of an earlier program that was killed
            file.unlink(missing_ok=True)
        flags = ["--remote", *(["--code"] if options.code else ())]
        cache = folder.path / "models"
        flags += ["--fetched", str(cache)] if options.fetch_bytes else []
        processes = WorkerProcesses(options.keep_models, options.preload, options.devices, flags)
        forks, workers = local_workers(folder, lambda: options.workers, processes, prefix=f"{options.name}.")
        machine = secrets.token_hex(16)
        dialers = _Dialers(cluster, folder, machine)
        fetcher = Fetcher(cluster, machine, cache, options.fetch_bytes, notify) if options.fetch_bytes else None
        try:
            if fetcher is not None:
                fetcher.start()
            forks.start()
            workers.start()
            _run(forks, workers, dialers, DiskWatch(folder.path), cluster, signals, notify)
        finally:
            deadline_s = time.monotonic() + STOP_S
            for each in (workers, forks):
                each.signal(signal.SIGCONT)  # a stopped process cannot handle SIGTERM
                each.signal(signal.SIGTERM)
                each.end(deadline_s)
            dialers.stop()
            if fetcher is not None:
                fetcher.stop()


def _run(
    forks: ManagedProcess,
    workers: LocalWorkers,
    dialers: _Dialers,
    disk: DiskWatch,
    cluster: ClusterAddress,
    signals: list[int],
    notify: Callable[[str], None],
) -> None:
    leaves = False
    while len(signals) < 2 and not (leaves and workers.have_ended()):
        if signals and not leaves:
            leaves = True
            notify("the workers finish their batches and leave; another Ctrl-C ends them at once")
            workers.leave()
        forks.check(notify)
        workers.check(notify)
        disk.check(notify)
        if disk.gone:
            raise UnavailableError(disk.gone)
        dialers.update(disk.warning)
        if cluster.failure is not None:
            raise cluster.failure
        time.sleep(_POLL_S)


class _Dialers:
    """The connections of all workers of this machine.

    Parameters
    ----------
    folder : its members are the workers.
    machine : random text that identifies this program to the cluster.
    """

    def __init__(self, cluster: ClusterAddress, folder: ClusterFolder, machine: str) -> None:
        self._cluster, self._members, self._token = cluster, Members(folder.members), folder.token()
        self._machine = machine
        self._dialers: dict[str, Dialer] = {}
        self._updated_s = 0.0

    def update(self, warning: str) -> None:
        """Connect workers that have started, and disconnect those that have ended, ten times a second.

        Parameters
        ----------
        warning : what is unusual about the machine; empty: nothing.
        """
        if time.monotonic() < self._updated_s + _UPDATE_S:
            return
        self._updated_s = time.monotonic()
        there = {each.name: each for each in self._members.members() if each.role == "worker"}
        for name, dialer in list(self._dialers.items()):
            if name not in there or there[name].address != dialer.member.address:
                del self._dialers[name]
                dialer.stop(leaves=name not in there)
        for name, member in there.items():
            if name in self._dialers:
                self._dialers[name].member = member
            else:
                self._dialers[name] = Dialer(self._cluster, member, self._token, self._machine)
                self._dialers[name].start()
            self._dialers[name].warning = warning

    def stop(self) -> None:
        """Disconnect all workers: they have ended."""
        for dialer in self._dialers.values():
            dialer.stop(leaves=True)
