"""The process from which the computing processes of a machine's workers are forked.

The fork server is a tree of processes. The root has imported few modules. Its children have imported the libraries that
models need, which takes seconds. Their children have loaded a model each. Each process forks the computing processes
that need only its modules and model, and passes other requests on. So libraries are imported, and weights are loaded,
once for all workers of a machine: a forked process shares the memory of its parent until one of them writes to it.

The processes of the tree have no threads, so they can be forked. See `chimera.inference.worker.fork_protocol` for requests.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import time
from collections import OrderedDict
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from chimera.core.private import UMASK
from chimera.core.processes import end_with_parent
from chimera.engines.parent_watch import exit_with_parent, kill_group_after
from chimera.inference.models import Predictor, is_shared, load
from chimera.inference.models.spec import key_of
from chimera.inference.models.warm_up import warm_up
from chimera.inference.worker.computing import reason, serve
from chimera.inference.worker.fork_protocol import READY, SOCKET_TYPE, Child, Request, pass_on, received, send_reply
from chimera.inference.worker.forked import import_all, reap, run_forked, set_threads, single_thread

_WARMED = "transformers.pipelines"  # a process of the tree that has imported this module warms up
_IDLE_MS = 1000  # time without a request


class ForkServer:
    """One process of the tree.

    Parameters
    ----------
    request_socket : the socket with the requests.
    parent_pipe : descriptor of a pipe; when its other end is closed, the whole tree ends. -1: the parent process has it.
    modules : modules that the process has imported, or has tried to import.
    failures : why some of them cannot be imported.
    predictor, load_s : the model that it has loaded, and the seconds of the load.
    refusal : why it cannot load the model; then it refuses all requests.
    threads : number of threads of torch in computing processes; 0: torch is not imported.
    """

    def __init__(
        self,
        request_socket: socket.socket,
        *,
        parent_pipe: int = -1,
        modules: frozenset[str] = frozenset(),
        failures: Mapping[str, str] | None = None,
        predictor: Predictor | None = None,
        load_s: float = 0.0,
        refusal: str = "",
        threads: int = 0,
    ) -> None:
        self._request_socket, self._parent_pipe = request_socket, parent_pipe
        self._modules, self._failures = modules, dict(failures or {})
        self._predictor, self._load_s, self._refusal = predictor, load_s, refusal
        self._threads = threads
        self._is_cold = _WARMED in modules and predictor is None
        self._libraries: Child | None = None
        self._models: OrderedDict[str, Child] = OrderedDict()
        self._computing: dict[int, socket.socket] = {}
        self._wake: tuple[socket.socket, socket.socket] = socket.socketpair()

    def run(self) -> NoReturn:
        """Serve until the request socket is closed and no child process computes."""
        gc.freeze()  # the collector must not write to pages that the forked processes share; a collection would take 0.3 s
        for each in self._wake:
            each.setblocking(False)
        signal.set_wakeup_fd(self._wake[1].fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        is_open = True
        while is_open or self._computing:
            ready = self._poll(is_open)
            if not ready:
                self._warm_up()
            if self._parent_pipe in ready:
                os.killpg(0, signal.SIGKILL)
            if self._wake[0].fileno() in ready:
                self._wake[0].recv(4096)
                self._reap()
            for child in self._children():
                self._look_at(child, ready)
            if is_open and self._request_socket.fileno() in ready:
                is_open = self._receive()
        os._exit(0)

    def refuse(self) -> None:
        """Answer the requests that wait. A later one is not for this process: its parent then loads the model again."""
        self._request_socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while self._receive():
                pass

    def _poll(self, is_open: bool) -> set[int]:
        poller = select.poll()
        for number in (self._parent_pipe, self._wake[0].fileno(), self._request_socket.fileno() if is_open else -1):
            if number >= 0:
                poller.register(number, select.POLLIN)
        for child in self._children():
            if child.waiting is not None:
                poller.register(child.request_socket, select.POLLIN)
                for each in child.waiting:
                    poller.register(each, 0)  # reports that the other end is closed
        return {number for number, _ in poller.poll(_IDLE_MS if self._is_cold else None)}

    def _warm_up(self) -> None:
        self._is_cold = False
        with contextlib.suppress(Exception):  # libraries raise any type of error; the load of a model reports it
            warm_up()
        gc.freeze()

    def _children(self) -> list[Child]:
        return [*([self._libraries] if self._libraries else []), *self._models.values()]

    def _look_at(self, child: Child, ready: set[int]) -> None:
        """Note that a child is ready, or kill one that loads a model for which no worker waits any more."""
        if child.waiting is None:
            return
        if child.request_socket.fileno() in ready:
            if child.has_reported():  # else it has ended, and `_reap` sends its status
                child.is_ready()
            return
        for each in [each for each in child.waiting if each.fileno() in ready]:
            child.waiting.remove(each)
            each.close()
            if not child.waiting and child is not self._libraries:
                os.kill(child.pid, signal.SIGKILL)

    def _receive(self) -> bool:
        """Handle one request; return False if no more will come."""
        request, body, descriptors = received(self._request_socket)
        if request is not None:
            reply, *files = descriptors
            self._handle(request, body, socket.socket(fileno=reply), files)
            for number in files:
                os.close(number)
        return bool(body)

    def _handle(self, request: Request, body: bytes, reply: socket.socket, files: list[int]) -> None:
        failures = {name: self._failures[name] for name in request.modules if name in self._failures}
        awaited = request.fork or request.strict
        if self._refusal:
            send_reply(reply, failed=self._refusal)
            reply.close()
        elif not self._modules.union(sys.modules).issuperset(request.modules):
            self._libraries = self._libraries or self._fork_server(request.modules, None, reply, files)
            pass_on(self._libraries, body, reply, files, awaited=awaited)
        elif request.model is not None and self._loads(request, key_of(request.model)):
            child = self._child_of(request.model, request.keep_models, reply, files)
            pass_on(child, body, reply, files, awaited=awaited)
        elif request.fork:
            self._fork(request, reply, files)
        elif request.strict and failures:
            send_reply(reply, failures=failures)
            reply.close()
        else:
            send_reply(reply, ready=True)
            reply.close()

    def _loads(self, request: Request, key: str) -> bool:
        """Return whether a child has, or gets, the model of a request. Room is made only for a process that computes."""
        may_start = request.fork or key in self._models or len(self._models) < request.keep_models
        return may_start and self._predictor is None and is_shared(request.model or {})

    def _child_of(self, model: dict[str, Any], keep_models: int, reply: socket.socket, files: list[int]) -> Child:
        """Return the child that has a model, or loads it. The least recently used model is removed for a new one."""
        key = key_of(model)
        if key not in self._models:
            while len(self._models) >= keep_models:
                _, oldest = self._models.popitem(last=False)
                oldest.close()  # it ends after the processes that it has forked
            self._models[key] = self._fork_server([], model, reply, files)
        self._models.move_to_end(key)
        return self._models[key]

    def _fork_server(
        self, modules: list[str], model: dict[str, Any] | None, reply: socket.socket, files: list[int]
    ) -> Child:
        """Fork a process of the tree. It gets copies of ``reply`` and ``files`` with its first request."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, SOCKET_TYPE)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            ours.close()
            reply.close()
            for number in files:
                os.close(number)
            run_forked(lambda: self._become_server(theirs, parent, modules, model))
        theirs.close()
        return Child(pid, ours)

    def _become_server(
        self, request_socket: socket.socket, parent: int, modules: list[str], model: dict[str, Any] | None
    ) -> None:
        end_with_parent(parent)
        self._release()
        failures, predictor, refusal = self._failures | import_all(modules), None, ""
        threads = self._threads or single_thread()
        began_s = time.perf_counter()
        if model is not None:
            try:
                predictor = load(model)
            except Exception as error:
                refusal = reason(error)
        known = self._modules.union(modules)
        load_s = time.perf_counter() - began_s
        server = ForkServer(
            request_socket,
            modules=known,
            failures=failures,
            predictor=predictor,
            load_s=load_s,
            refusal=refusal,
            threads=threads,
        )
        with contextlib.suppress(ConnectionError):  # the parent does not need it any more
            request_socket.send(READY)
        if refusal:
            server.refuse()
        else:
            server.run()

    def _fork(self, request: Request, reply: socket.socket, files: list[int]) -> None:
        pid = os.fork()
        if pid == 0:
            reply.close()
            run_forked(lambda: self._compute(request, files))
        self._computing[pid] = reply
        send_reply(reply, pid=pid)

    def _compute(self, request: Request, files: list[int]) -> None:
        """Become a computing process."""
        self._release()
        os.setsid()
        connection, *streams = files
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        exit_with_parent()
        os.chdir(request.folder)
        sys.path[0] = str(Path.cwd())
        os.environ.update(request.environment)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()  # else all processes would draw the same numbers
        gc.enable()
        set_threads(self._threads)
        serve(Connection(connection), self._predictor, self._load_s)

    def _release(self) -> None:
        """Close, in a forked process, the descriptors of its parent."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in (self._request_socket, *self._wake, *self._computing.values()):
            each.close()
        for child in self._children():
            child.close()
        if self._parent_pipe >= 0:
            os.close(self._parent_pipe)

    def _reap(self) -> None:
        while (ended := reap()) is not None:
            pid, status = ended
            if reply := self._computing.pop(pid, None):
                send_reply(reply, status=status)
                reply.close()
            for child in [each for each in self._children() if each.pid == pid]:
                for each in child.waiting or () if status or not child.has_reported() else ():
                    send_reply(each, status=status)
                child.close()
            if self._libraries is not None and self._libraries.pid == pid:
                self._libraries = None
            self._models = OrderedDict((key, child) for key, child in self._models.items() if child.pid != pid)


def main() -> None:
    """Serve the requests of an inherited socket until the process that started this one has ended."""
    os.umask(UMASK)
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # a process in which CUDA has started cannot be forked
    gc.disable()  # in the whole tree: imports take a quarter less time
    parent_pipe = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    kill_group_after(parent_pipe)
    ForkServer(socket.socket(fileno=int(sys.argv[1])), parent_pipe=parent_pipe).run()


if __name__ == "__main__":
    main()
