"""The process that a cluster on one machine lives by: it has imported the heavy libraries once and is forked for all others.

``python -m chimera.jobs.supervisor FOLDER`` holds the cluster's claim and the sockets, and starts the daemon and the slots
anew when they die; requests that come meanwhile wait in the socket. It has one thread, as its forks need. When it ends,
however it ends, the daemon and the slots do too; a job that runs goes on, and the next cluster of the folder finds it.
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
from chimera.jobs.cluster.folder import ClusterFolder, Options
from chimera.jobs.cluster.log import log
from chimera.jobs.daemon import daemon
from chimera.jobs.worker import worker
from chimera.web.folder import note_holder

WARM = (
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
"""What jobs need, and what takes long to import."""
STOP_S = 15.0
"""How long the daemon and the slots have to end by themselves."""
_QUICK_S, _LONGEST_S = 2.0, 10.0  # who lives no longer than the one is started anew later and later


class Child:
    """A process that is forked again whenever it has died.

    Parameters
    ----------
    work : what it does; it ends with that.
    """

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self.name, self._work = name, work
        self.pid = 0
        self._began_s = self._at_s = self._pause_s = 0.0

    def start(self, before: Callable[[], None]) -> None:
        """Fork it, if it is time; ``before`` makes the fork a process of its own."""
        now_s = time.monotonic()
        if self.pid or now_s < self._at_s:
            return
        self._began_s = now_s
        self.pid = os.fork()
        if self.pid == 0:
            _be(self._work, before)

    def ended(self, status: int) -> None:
        """Note its death."""
        now_s = time.monotonic()
        quick = now_s - self._began_s < _QUICK_S
        self._pause_s = min(max(2 * self._pause_s, 0.1), _LONGEST_S) if quick else 0.0
        self.pid, self._at_s = 0, now_s + self._pause_s
        code = os.waitstatus_to_exitcode(status)
        how = f"exited with code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
        log(f"{self.name} {how}; it is started anew")


class Supervisor:
    """Keeps a daemon and slots up.

    Parameters
    ----------
    web, slots : the sockets on which the daemon answers people and slots.
    """

    def __init__(self, folder: ClusterFolder, options: Options, web: socket.socket, slots: socket.socket) -> None:
        self._lifeline, self._life = os.pipe()  # the reading end is everybody's, the other one this process's
        self._wake, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        self._own = self._life, self._wake, wake
        self._stopped = False
        lifeline = self._lifeline
        self._daemon = Child("the daemon", lambda: daemon.run(folder, options, web, slots, lifeline))
        self._slots = [
            Child(name, lambda name=name: worker.run(folder, name, lifeline, options.ray))  # type: ignore[misc]
            for name in (f"w{i}" for i in range(options.workers))
        ]
        self._sockets = web, slots

    def run(self) -> None:
        """Work until SIGTERM or SIGINT, and end them all."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            while not self._stopped:
                self._daemon.start(self._separate)
                for child in self._slots:
                    child.start(self._separate_slot)
                if select.select([self._wake], [], [], 0.1)[0]:
                    os.read(self._wake, 4096)
                self._reap()
        finally:
            self._end([self._daemon])  # it stops the jobs that run
            self._end(self._slots)

    def _stop(self, *_: object) -> None:
        self._stopped = True

    def _separate(self) -> None:
        """Let go, in a child, of what is the parent's alone."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for descriptor in self._own:
            os.close(descriptor)

    def _separate_slot(self) -> None:
        """Let go of the daemon's sockets besides."""
        self._separate()
        for each in self._sockets:
            each.close()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for child in (self._daemon, *self._slots):
                if child.pid == pid:
                    child.ended(status)

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


def _be(work: Callable[[], None], before: Callable[[], None]) -> NoReturn:
    code = 1
    try:
        before()
        work()
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(OSError):  # the disk of the log may be full
            sys.stderr.flush()
        os._exit(code)  # without teardown: the parent's exit handlers are not this process's


def warm_up() -> None:
    """Import what jobs need, and let the garbage collector leave it alone: forks share its pages."""
    for name in WARM:
        with contextlib.suppress(ImportError):  # an extra that is not installed: the job that needs it will say so
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


def _socket_for_slots(folder: ClusterFolder) -> socket.socket:
    folder.slots_socket.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(folder.slots_socket.name)  # this process is in the folder; whole paths may be too long
    listener.listen(256)
    return listener


def main() -> None:
    """Keep a cluster up until SIGTERM, as a process of its own: this one ends once that holds the claim and the sockets."""
    folder, options = ClusterFolder(Path(sys.argv[1])), msgspec.json.decode(sys.argv[2], type=Options)
    os.umask(UMASK)  # of the daemon, the slots and all processes of jobs too
    try:
        folder.create()
        os.chdir(folder.path)
        from chimera.web.app import listen  # commands import this module also where no server is installed

        with folder.claimed() as claim, listen(options.host, options.port) as web, _socket_for_slots(folder) as slots:
            if os.fork():
                os._exit(0)
            note_holder(claim, os.getpid())
            options = msgspec.structs.replace(options, port=web.getsockname()[1], pid=os.getpid())
            folder.note(options)
            _write_to(folder.log)
            warm_up()
            Supervisor(folder, options, web, slots).run()
    except ChimeraError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(2) from None


def _write_to(log: Path) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)


if __name__ == "__main__":
    main()
