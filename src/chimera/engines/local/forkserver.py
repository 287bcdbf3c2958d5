"""The process from which actors are forked. It has imported the large libraries once, and has no threads.

Its argument is a JSON object. The server handles three requests on a stream socket, one JSON object per line: ``spawn``,
``kill`` and ``disturb``. ``spawn`` has no answer; the actor's first result follows. ``disturb`` is answered when the
disturbance has begun. The server reports the end of every actor. When the driver's side of the socket closes, for any reason,
the server kills all actors and exits.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
from typing import Any, NoReturn

from chimera.core.engine import Disturbance
from chimera.core.imports import import_all
from chimera.core.processes import end_with_parent, exited_children
from chimera.core.stop_signals import blocked_stop_signals, ignore_stop_signals
from chimera.engines.local.memory_limit import MemoryLimit
from chimera.engines.local.nested_calls import NestedCalls
from chimera.engines.local.process import ActorProcess
from chimera.engines.shared_memory.memory import Memory
from chimera.engines.shared_memory.notifier import Notifier
from chimera.engines.signals import Disturbances

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


class ForkServer:
    """Forks actors, reaps them and reports their ends."""

    def __init__(self, control: socket.socket, requests: socket.socket, memory_fd: int) -> None:
        self._control, self._requests, self._memory_fd = control, requests, memory_fd
        self._actors: dict[int, int] = {}  # process id: actor
        self._disturbances = Disturbances(
            os.kill
        )  # the kernel cannot reuse a process id in it before the process is reaped

    def serve(self) -> None:
        """Serve requests until the driver's side closes."""
        wake_read, wake_write = socket.socketpair()
        wake_write.setblocking(False)
        signal.set_wakeup_fd(wake_write.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        received = b""
        while True:
            ready, _, _ = select.select([self._control, wake_read], [], [], self._disturbances.tick())
            if wake_read in ready:
                wake_read.recv(4096)
                self._reap()
            if self._control in ready:
                data = self._control.recv(1 << 16)
                if not data:
                    signal.set_wakeup_fd(-1)
                    return
                *lines, received = (received + data).split(b"\n")
                for line in lines:
                    self._handle(json.loads(line))

    def end(self) -> None:
        """Kill all actors and wait for them."""
        for pid in self._actors:
            os.kill(pid, signal.SIGKILL)
        for pid in self._actors:
            os.waitpid(pid, 0)

    def _handle(self, request: dict[str, Any]) -> None:
        if "kill" in request:
            for pid in self._processes_of(request["kill"]):
                os.kill(pid, signal.SIGKILL)
            return
        if "disturb" in request:
            actor = request.pop("disturb")
            for pid in self._processes_of(actor):
                self._disturbances.add(pid, Disturbance(**request))
            self._send_report({"actor": actor})
            return
        actor = request["spawn"]
        parent = os.getpid()
        with blocked_stop_signals():
            try:
                pid = os.fork()
            except OSError as error:  # of limits of processes or memory: the other actors continue
                sys.stderr.write(f"{request['name']} has no process: {error}; end other processes\n")
                self._send_report({"actor": actor, "status": None})
                return
            if pid == 0:
                self._become_actor(actor, request, parent)
        self._actors[pid] = actor

    def _processes_of(self, actor: int) -> list[int]:
        """Return the process id of an actor, if it has not been reaped."""
        return [pid for pid, other in self._actors.items() if other == actor]

    def _send_report(self, report: dict[str, Any]) -> None:
        self._control.sendall(json.dumps(report).encode() + b"\n")

    def _become_actor(self, actor: int, request: dict[str, Any], parent: int) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            ignore_stop_signals()
            self._control.close()
            sys.path[:] = request["path"]  # the driver's path may have grown since this server started
            _prepare_process(request["threads"], parent)
            memory = Memory(self._memory_fd, actor)
            notifier = Notifier(memory)
            limit = MemoryLimit(request["memory_mb"])
            ActorProcess(memory, notifier, NestedCalls(memory, notifier, self._requests), request["name"], limit).run()
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(1)  # without teardown: the open files and exit handlers belong to the parent

    def _reap(self) -> None:
        for pid, status in exited_children():
            self._disturbances.forget(pid)
            actor = self._actors.pop(pid, None)
            if actor is not None:  # else the child of an imported module
                self._send_report({"actor": actor, "status": os.waitstatus_to_exitcode(status)})


def _prepare_process(threads: int, parent: int) -> None:
    """Exit with the fork server, keep freed memory for the next step, and limit the number of threads."""
    end_with_parent(parent)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):  # otherwise every temporary array above the threshold gets new pages in every step
            libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
            libc.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)


def run(options: dict[str, Any]) -> NoReturn:
    """Import the requested modules, then serve as the fork server."""
    ignore_stop_signals()
    sys.path[:] = options["path"]
    import_all(options["preload"])
    gc.collect()
    gc.freeze()  # the collector must not write to pages that all actors share
    control, requests = (socket.socket(fileno=options[name]) for name in ("control", "requests"))
    server = ForkServer(control, requests, options["memory"])
    try:
        server.serve()
    except BaseException:  # it would be lost: the process exits below
        sys.excepthook(*sys.exc_info())
    finally:
        server.end()
        os._exit(0)


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
