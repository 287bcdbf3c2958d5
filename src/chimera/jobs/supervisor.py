"""Supervisor of a cluster on one machine: it imports the large libraries once, and forks all other processes.

``python -m chimera.jobs.supervisor FOLDER OPTIONS`` holds the cluster's claim and the sockets, and restarts the daemon and the
workers when they exit. Requests wait in the socket meanwhile. The supervisor has one thread, since it forks. When it
exits for any reason, daemon and workers exit, too. A running job continues, and the next cluster of the folder finds
it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import msgspec

from chimera.core.errors import ChimeraError
from chimera.core.private import FILE, UMASK
from chimera.core.processes import RestartPause, describe_exit, exited_children
from chimera.jobs.cluster.folder import ClusterFolder, Options
from chimera.jobs.cluster.log import log
from chimera.jobs.daemon import process as daemon_process
from chimera.jobs.store.store import Store
from chimera.jobs.worker import worker
from chimera.web.folder import write_lock_holder

PRELOADED = (
    "torch",
    "sklearn.datasets",
    "pandas",
    "safetensors.numpy",
    "fsspec.implementations.local",
    "chimera.training.trainer",
    "chimera.training.worker.learner",
    "chimera.training.server.parameter_shard",
    "chimera.models.torch_model",
    "chimera.engines.local.engine",
    "chimera.report.html",
)
"""Modules that jobs need and that are slow to import."""
STOP_S = 15.0
"""Time for the daemon and the workers to exit after SIGTERM, in seconds."""
_CHECK_S = 1.0  # interval of checks whether the folder still exists
_MISSING = 3  # consecutive checks without the folder until it counts as gone; file systems can hide it briefly


class Child:
    """A child process that is forked again whenever it has exited.

    Parameters
    ----------
    name : name for the log.
    work : function that the process runs; it exits when the function returns.
    """

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self.name, self._work = name, work
        self.pid = 0
        self._pause = RestartPause()

    def start(self, detach: Callable[[], None]) -> None:
        """Fork the process, unless it runs or must pause; the child calls ``detach`` first."""
        now_s = time.monotonic()
        if self.pid or not self._pause.is_over(now_s):
            return
        self._pause.start(now_s)
        try:
            self.pid = os.fork()
        except OSError as error:  # too many processes, or too little memory, now
            self._pause.exit(now_s)
            log(
                f"{self.name} cannot be started: {error.strerror} (see 'ulimit -u' and the free memory); it is tried again"
            )
            return
        if self.pid == 0:
            _run_child(self._work, detach)

    def record_exit(self, status: int) -> None:
        """Record the exit of the process, and set the pause before the next start."""
        self.pid = 0
        self._pause.exit(time.monotonic())
        log(f"{self.name} {describe_exit(os.waitstatus_to_exitcode(status))}; it is restarted")


class FolderWatch:
    """Watch over the folder of a cluster: without it, no command could find and end the cluster's processes.

    Parameters
    ----------
    lock : the lock file in the folder.
    claim : descriptor of this file.
    """

    def __init__(self, lock: Path, claim: int) -> None:
        self._lock, self._claim = lock, claim
        self._checked_s, self._missing = 0.0, 0

    def is_gone(self) -> bool:
        """Return whether the folder was moved, deleted or replaced."""
        now_s = time.monotonic()
        if now_s >= self._checked_s + _CHECK_S:
            self._checked_s = now_s
            try:
                missing = not os.path.samestat(self._lock.stat(), os.fstat(self._claim))
            except (FileNotFoundError, NotADirectoryError):
                missing = True
            except OSError:  # a file server that fails for now says nothing about the folder
                missing = False
            self._missing = self._missing + 1 if missing else 0
        return self._missing >= _MISSING


class Supervisor:
    """Restarts the daemon and the workers of a cluster.

    Parameters
    ----------
    folder, options : folder and options of the cluster.
    claim : descriptor of the lock file in the folder.
    web, workers : listening sockets of the daemon, for HTTP requests and for workers.
    """

    def __init__(
        self, folder: ClusterFolder, options: Options, claim: int, web: socket.socket, workers: socket.socket
    ) -> None:
        self._watch = FolderWatch(folder.path / "lock", claim)
        self._parent_pipe, self._parent_end = (
            os.pipe()
        )  # all children have the read end, only this process the write end
        self._wake, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        self._own = self._parent_end, self._wake, wake
        self._stopped = False
        parent_pipe = self._parent_pipe
        self._daemon = Child("the daemon", lambda: daemon_process.run(folder, options, web, workers, parent_pipe))
        self._workers = [
            Child(name, lambda name=name: worker.run(folder, name, parent_pipe, options.ray))  # type: ignore[misc]
            for name in (f"w{i}" for i in range(options.workers))
        ]
        self._sockets = web, workers

    def run(self) -> None:
        """Run until SIGTERM or SIGINT, or until the folder is gone; then stop all children."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            while not self._stopped:
                self._daemon.start(self._detach_child)
                for child in self._workers:
                    if not self._stopped:  # many forks take seconds
                        child.start(self._detach_worker)
                if select.select([self._wake], [], [], 0.1)[0]:
                    os.read(self._wake, 4096)
                self._reap()
                if self._watch.is_gone():
                    log("the folder was moved or deleted while it was in use: the cluster ends")
                    self._stopped = True
        finally:
            self._end([self._daemon])  # first, so that it restarts no job that a worker stops
            self._end(self._workers)

    def _stop(self, *_: object) -> None:
        self._stopped = True

    def _detach_child(self) -> None:
        """Reset, in a child, the signal handlers, and close the descriptors of the parent."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for descriptor in self._own:
            os.close(descriptor)

    def _detach_worker(self) -> None:
        """Detach a worker, and close the daemon's sockets."""
        self._detach_child()
        for each in self._sockets:
            each.close()

    def _reap(self) -> None:
        for pid, status in exited_children():
            for child in (self._daemon, *self._workers):
                if child.pid == pid:
                    child.record_exit(status)

    def _end(self, children: list[Child]) -> None:
        for number, wait_s in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, STOP_S)):
            for child in children:
                if child.pid:
                    os.kill(child.pid, signal.SIGCONT)
                    os.kill(child.pid, number)
            deadline_s = time.monotonic() + wait_s
            while any(child.pid for child in children) and time.monotonic() < deadline_s:
                for child in children:
                    if child.pid and os.waitpid(child.pid, os.WNOHANG)[0]:
                        child.pid = 0
                time.sleep(0.01)


def _run_child(work: Callable[[], None], detach: Callable[[], None]) -> NoReturn:
    code = 1
    try:
        detach()
        work()
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(OSError):  # the disk of the log may be full
            sys.stderr.flush()
        os._exit(code)  # without teardown: the exit handlers belong to the parent


def preload() -> None:
    """Import the modules that jobs need, and freeze them for the garbage collector, so that forks share their pages."""
    for name in PRELOADED:
        with contextlib.suppress(ImportError):  # an extra is not installed: jobs that need it report that
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


def _listen_for_workers(folder: ClusterFolder) -> socket.socket:
    folder.worker_socket.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(folder.worker_socket.name)  # relative to the working folder, since full paths may be too long
    listener.listen(256)
    return listener


def _check_store(folder: ClusterFolder) -> None:
    """Raise the error of a store that no daemon could use, instead of restarting the daemon forever."""
    folder.check_store()
    with contextlib.closing(Store(folder.store)) as store:
        store.jobs()


def main() -> None:
    """Run a cluster until SIGTERM in a forked process; this process exits once the fork has the claim and the sockets."""
    folder, options = ClusterFolder(Path(sys.argv[1])), msgspec.json.decode(sys.argv[2], type=Options)
    os.umask(UMASK)  # also the umask of the daemon, the workers and all processes of jobs
    try:
        folder.create()
        os.chdir(folder.path)
        from chimera.web.app import listen  # commands import this module also without the extra of servers

        with (
            folder.locked() as claim,
            listen(options.host, options.port) as web,
            _listen_for_workers(folder) as workers,
        ):
            _check_store(folder)
            if os.fork():
                os._exit(0)
            write_lock_holder(claim, os.getpid())
            options = msgspec.structs.replace(options, port=web.getsockname()[1], pid=os.getpid())
            folder.write_options(options)
            _redirect_output(folder.log)
            preload()
            Supervisor(folder, options, claim, web, workers).run()
    except ChimeraError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(2) from None


def _redirect_output(log: Path) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)


if __name__ == "__main__":
    main()
