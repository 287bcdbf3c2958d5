"""The driver's side of the fork server: its start, the deaths that it reports, its end."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from chimera.core.stop_signals import blocked_stop_signals
from chimera.engines.local.refs import Channel
from chimera.engines.local.relay import Relay
from chimera.engines.local.standby import Standby, take
from chimera.engines.shared_memory.memory import DEAD, Memory
from chimera.engines.shared_memory.notifier import Notifier

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def start_server(
    modules: list[str], control: socket.socket, requests: socket.socket, memory_fd: int
) -> subprocess.Popen[bytes] | Standby:
    """Start the fork server, or activate a waiting one; it has imported ``modules`` before its first fork.

    It serves the other end of ``control``; its actors write to ``requests``.
    """
    options = {"path": sys.path, "preload": modules}
    descriptors = {"control": control.fileno(), "requests": requests.fileno(), "memory": memory_fd}
    standby = take()
    if standby is not None:
        standby.serve(options, descriptors)
        return standby
    threads = {name: os.environ.get(name, "1") for name in _THREAD_VARIABLES}
    with blocked_stop_signals():
        return subprocess.Popen(  # noqa: S603 - this Python, a module of the project, no shell
            [sys.executable, "-u", "-m", "chimera.engines.local.forkserver", json.dumps({**options, **descriptors})],
            stdin=subprocess.DEVNULL,
            pass_fds=tuple(descriptors.values()),
            env={**os.environ, **threads, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            start_new_session=True,
        )


class Deaths:
    """The record of dead actors.

    Parameters
    ----------
    channels, deaths : all actors, and the dead actors, in order.
    on_report : called after each report of a fork server.
    """

    def __init__(
        self, channels: list[Channel], deaths: list[Channel], notifier: Notifier, on_report: Callable[[], None]
    ) -> None:
        self.channels, self.on_report = channels, on_report
        self._deaths, self._notifier, self._lock = deaths, notifier, threading.Lock()

    def add(self, dead: list[Channel]) -> None:
        """Record deaths, each once, and wake all processes, since any of them may wait for a dead actor."""
        with self._lock:
            for channel in dead:
                if not channel.dead:
                    channel.died_s = time.monotonic()
                    self._deaths.append(channel)
                    channel.region.words[DEAD] = 1
            for actor in range(len(self.channels) + 1):
                self._notifier.ring(actor)


class _Server:
    """A fork server: its process, its actors, and the thread that receives their deaths."""

    def __init__(self, modules: list[str], requests: socket.socket, memory_fd: int, deaths: Deaths) -> None:
        self.actors: list[Channel] = []
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = start_server(modules, theirs, requests, memory_fd)
        self.pid = self._process.pid
        arguments = self._control, self.actors, deaths
        self.monitor = threading.Thread(target=_watch, args=arguments, name="chimera-monitor", daemon=True)
        self.monitor.start()

    def request(self, request: dict[str, Any]) -> bool:
        """Send a request; return whether the server received it."""
        try:
            self._control.sendall(json.dumps(request).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def end(self) -> None:
        """Close the control socket, so that the server kills all actors and exits; wait for it."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.monitor.join()
        self._control.close()


class Servers:
    """The fork server of an engine. If it dies, its actors die with it, and a new server forks later actors.

    Parameters
    ----------
    modules, requests, memory_fd : see `start_server`.
    """

    def __init__(self, modules: list[str], requests: socket.socket, memory_fd: int, deaths: Deaths) -> None:
        self._arguments, self._deaths = (modules, requests, memory_fd, deaths), deaths
        self._server = _Server(*self._arguments)

    @property
    def pid(self) -> int:
        """The process from which actors are forked now."""
        return self._server.pid

    def request(self, request: dict[str, Any]) -> None:
        """Send a request about an actor. An actor whose server has died is dead; the monitor records that."""
        self._server.request(request)

    def spawn(self, channel: Channel, request: dict[str, Any]) -> None:
        """Request the fork of an actor, from a new server if the last one has died."""
        if not self._server.request(request):
            self._server.end()
            self._server = _Server(*self._arguments)
            self._server.request(request)
        self._server.actors.append(channel)
        if not self._server.monitor.is_alive():  # the server may have ended before the actor was on its list
            self._deaths.add([channel])

    def end(self) -> None:
        """End the server and its actors."""
        self._server.end()


def _watch(control: socket.socket, actors: list[Channel], deaths: Deaths) -> None:
    """Record deaths and disturbances that a fork server reports, and at its end the deaths of all its actors."""
    received = b""
    while True:
        try:
            data = control.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            break
        *lines, received = (received + data).split(b"\n")
        dead = []
        for report in map(json.loads, lines):
            channel = deaths.channels[report["actor"] - 1]
            if "status" in report:
                dead.append(channel)
            else:
                channel.disturbed += 1
        deaths.add(dead)
        deaths.on_report()
    deaths.add(actors)
    deaths.on_report()


def end(servers: Servers, relay: Relay, memory: Memory) -> None:
    """End the fork server and its actors, and release the memory."""
    servers.end()
    relay.stop()
    memory.close()
