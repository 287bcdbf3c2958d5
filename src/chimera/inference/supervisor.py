"""The supervisor of a cluster's processes on one machine: it starts coordinators and workers, and restarts dead ones.

As a module, ``python -m chimera.inference.supervisor``, it serves `chimera.inference.session`. It exits when its stdin closes.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from chimera.core.address import is_loopback
from chimera.core.errors import ChimeraError, ConfigurationError, UnavailableError
from chimera.core.extras import require_web
from chimera.core.private import UMASK
from chimera.engines.parent_watch import exit_with_parent
from chimera.inference.cluster_folder import FIRST_VERSION, ClusterFolder
from chimera.inference.cluster_options import ClusterOptions
from chimera.inference.disk_watch import DiskWatch
from chimera.inference.failing import FailingProcesses
from chimera.inference.gateway import fixed_address
from chimera.inference.local_workers import LocalWorkers, WorkerProcesses, one_thread
from chimera.inference.managed_process import ManagedProcess
from chimera.inference.memory import available_bytes, check_memory, fitting
from chimera.inference.policies.policy import POLICIES, check_fair_by
from chimera.inference.preload import AUTO, ahead, awaited, check_exist
from chimera.inference.worker import fork_client, fork_protocol
from chimera.web.retention import keep_s

STOP_S = 5.0
"""Seconds from SIGTERM to SIGKILL."""
_POLL_S = 0.02
_MAX_PAUSE_S = 10.0  # of coordinators and the fork server: a cluster continues soon after the disk has space
_STANDBYS_S = 5.0  # standbys start after this time, even without a coordinator


class Supervised(Protocol):
    """Something that the supervisor keeps running."""

    def start(self) -> None:
        """Start its processes; raise UnavailableError if the system refuses it."""

    def check(self, notify: Callable[[str], None]) -> None:
        """Restart processes that have died."""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its processes."""

    def end(self, deadline_s: float) -> None:
        """Wait until its processes have ended; kill them at the deadline."""


def supervise(folder: ClusterFolder, options: ClusterOptions, notify: Callable[[str], None]) -> None:
    """Run the cluster of a folder until SIGINT or SIGTERM. Main thread only.

    Parameters
    ----------
    notify : called with a line of text for each event.

    Raises
    ------
    MissingExtraError : a required package is not installed.
    ConfigurationError : the policy or a module of ``--preload`` is unknown, the memory does not hold the workers, the folder
        cannot be written, its cluster already runs, or the address cannot be used.
    UnavailableError : no process can be started, or files of the folder were moved or deleted while the cluster ran.
    """
    require_web("a cluster for inference", "inference")
    if not callable(getattr(POLICIES.create(options.policy), "choose", None)):
        raise ConfigurationError(f"the policy {options.policy!r} has no method choose(contenders, workers)")
    check_fair_by(options.fair_by)
    keep_s(options.keep_days)
    if not options.ray:
        check_exist(awaited(options.preload))
    available = None if options.ray else available_bytes()
    check_memory(options.workers, "--workers", available)
    folder.create()
    if options.ray:
        from chimera.engines.ray.session import Session

        Session.enter(address=options.ray)  # ends with this process; before the handlers below, because it sets its own
    ended: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: ended.append(number))
    with folder.locked(), fixed_address(options.host, options.port, folder.leader) as address:
        voters, most = options.voters, options.max_workers or options.workers
        folder.set_bounds(options.workers, most, FIRST_VERSION if voters and most > options.workers else 0)
        many = f"{len(voters)} voters" if voters else f"a coordinator, its standbys ({options.standbys})"
        notify(f"{many} and workers ({options.workers}) run from {folder.path}; Ctrl-C ends them")
        if available is not None and (fit := fitting(available)) < most:
            notify(f"the memory holds about {fit} of the {most} workers; more are not started")
        if address:
            notify(f"the coordinator is at {address}; requests need the token in {folder.path / 'token'}")
            if not is_loopback(options.host):
                notify(
                    f"other machines: chimera infer worker --join {address} --token-file (a copy of {folder.worker_token})"
                )
            if sys.stdout.isatty():  # others may read a file or a log
                notify(f"the page: {address}/#token={folder.token()} (the address contains the token: keep it secret)")
        FailingProcesses(folder.failing).clear()
        disk = DiskWatch(folder.path, None if voters else folder.journal)
        members = [disk, *_workers(folder, options), *_coordinators(folder, options)]
        _supervise(members, notify, stopped=lambda: bool(ended or disk.gone))
        if disk.gone:
            raise UnavailableError(disk.gone)


def is_here(address: str) -> bool:
    """Return whether the host of an address, ``host:port``, is this machine."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        with socket.create_server((host, 0)):
            return True
    except OSError:
        return False


def _absolute(policy: str) -> str:
    """Return the name of a policy for processes with another working directory: the path of a file is made absolute."""
    place, _, name = policy.rpartition(":")
    return f"{Path(place).expanduser().absolute()}:{name}" if place.endswith(".py") else policy


def _coordinators(folder: ClusterFolder, options: ClusterOptions) -> list[Supervised]:
    """Return the processes of the coordinator and its standbys."""
    command = [
        "chimera.inference.coordinator_process",
        "--cluster",
        str(folder.path),
        "--policy",
        _absolute(options.policy),
    ]
    command += ["--fair-by", options.fair_by]
    command += ["--ray", options.ray] if options.ray else []
    kept_s = keep_s(options.keep_days)
    command += [] if kept_s is None else ["--keep-s", str(kept_s)]
    command += [] if options.code else ["--no-code"]
    command += ["--fetch-models"] if options.fetch_models else []
    command += [] if options.port is None or is_loopback(options.host) else ["--forwarded"]
    candidates = {f"c{i}": list[str]() for i in range(1 + options.standbys)}
    if options.voters:
        own = {f"c{i}": voter for i, voter in enumerate(options.voters) if is_here(voter)}
        candidates = {name: ["--voters", ",".join(options.voters), "--voter", voter] for name, voter in own.items()}
    began_s = time.monotonic()

    def standbys_may_start() -> bool:  # later, so that they do not delay the processes that are needed first
        return folder.leader() is not None or time.monotonic() > began_s + _STANDBYS_S

    found: list[Supervised] = []
    for name, more in candidates.items():
        may_start = standbys_may_start if found and not options.voters else lambda: True
        own_command = [*command, "--name", name, *more]
        found.append(ManagedProcess(name, own_command, folder, {}, may_start=may_start, max_pause_s=_MAX_PAUSE_S))
    return found


def _workers(folder: ClusterFolder, options: ClusterOptions) -> list[Supervised]:
    """Return the workers: processes, or actors of Ray."""
    wanted = wanted_workers(folder, options)
    modules = awaited(options.preload)
    if options.ray:
        from chimera.inference.pool.ray import namespace_of
        from chimera.inference.pool.ray_workers import RayWorkers

        namespace = namespace_of(folder.token())
        keep_models, gpus = options.keep_models, options.gpus
        return [RayWorkers(wanted, namespace, modules, keep_models=keep_models, gpus=gpus)]
    workers = WorkerProcesses(options.keep_models, options.preload, options.devices)
    return [*local_workers(folder, wanted, workers)]


def wanted_workers(folder: ClusterFolder, options: ClusterOptions) -> Callable[[], int]:
    """Return a function that returns the number of workers that was set last, also while it cannot be read."""
    last = options.workers

    def wanted() -> int:
        nonlocal last
        if options.voters and not (options.workers or options.max_workers):  # the workers are those of another machine
            return 0
        scale = folder.scale()  # None, for instance, if too many files are open
        last = last if scale is None else scale.count
        return last

    return wanted


def local_workers(
    folder: ClusterFolder, wanted: Callable[[], int], workers: WorkerProcesses, *, prefix: str = ""
) -> tuple[ManagedProcess, LocalWorkers]:
    """Return the fork server of this machine's workers, and these workers; see `LocalWorkers`."""
    requests, request_socket = fork_protocol.sockets()
    fork_protocol.request(requests, fork_protocol.Request(ahead(workers.preload), fork=False)).close()

    def process(name: str) -> ManagedProcess:
        command, environment = workers.command(folder, name, requests.fileno()), workers.environment(name)
        return ManagedProcess(name, command, folder, environment, inherited=[requests])

    command = fork_client.command(request_socket.fileno())
    forks = ManagedProcess(
        f"{prefix}forks", command, folder, one_thread(), inherited=[request_socket], max_pause_s=_MAX_PAUSE_S
    )
    return forks, LocalWorkers(wanted, process, prefix=prefix)


def _supervise(members: Sequence[Supervised], notify: Callable[[str], None], stopped: Callable[[], bool]) -> None:
    """Keep processes running until ``stopped`` returns True; then stop them all."""
    try:
        for each in members:
            each.start()
        while not stopped():
            for each in members:
                each.check(notify)
            time.sleep(_POLL_S)
    finally:
        for each in members:
            each.signal(signal.SIGCONT)  # a stopped process cannot handle SIGTERM
            each.signal(signal.SIGTERM)
        deadline_s = time.monotonic() + STOP_S
        for each in members:
            each.end(deadline_s)


def _print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Run a cluster until SIGTERM, or until the parent process has ended."""
    exit_with_parent()
    os.umask(UMASK)
    parser = argparse.ArgumentParser()
    parser.add_argument("--cluster", type=Path, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--standbys", type=int, required=True)
    parser.add_argument("--policy", required=True)
    parser.add_argument("--fair_by", required=True)
    parser.add_argument("--preload", default=AUTO)
    parser.add_argument("--keep_days", type=float)
    arguments = vars(parser.parse_args())
    folder = ClusterFolder(arguments.pop("cluster"))
    try:
        supervise(folder, ClusterOptions(**arguments), _print_line)
    except ChimeraError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
