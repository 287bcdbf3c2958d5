"""The driver's side of the fork server: its start, the deaths it reports, its end."""

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

from chimera.engines.doorbell import Doorbell
from chimera.engines.local.refs import Lane
from chimera.engines.local.relay import Relay
from chimera.engines.local.standby import Standby, take
from chimera.engines.shared_memory import DEAD, Memory

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def start_server(
    modules: list[str], control: socket.socket, requests: socket.socket, memory_fd: int
) -> subprocess.Popen[bytes] | Standby:
    """Start the fork server, or let the one that stands by begin; it has imported ``modules`` before its first fork.

    It serves the other end of ``control``; its actors write to ``requests``.
    """
    options = {"path": sys.path, "preload": modules}
    descriptors = {"control": control.fileno(), "requests": requests.fileno(), "memory": memory_fd}
    standby = take()
    if standby is not None:
        standby.serve(options, descriptors)
        return standby
    threads = {name: os.environ.get(name, "1") for name in _THREAD_VARIABLES}
    return subprocess.Popen(  # noqa: S603 - this Python, a module of the project, no shell
        [sys.executable, "-u", "-m", "chimera.engines.local.forkserver", json.dumps({**options, **descriptors})],
        stdin=subprocess.DEVNULL,
        pass_fds=tuple(descriptors.values()),
        env={**os.environ, **threads, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        start_new_session=True,
    )


def watch(
    control: socket.socket, lanes: list[Lane], deaths: list[Lane], doorbell: Doorbell, tell: Callable[[], None]
) -> None:
    """Note what the fork server reports of deaths and disturbances, and wake everybody: anybody may wait for the dead.

    ``tell`` is called after that.
    """
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
            lane = lanes[report["actor"] - 1]
            if "status" in report:
                dead.append(lane)
            else:
                lane.disturbed += 1
        mark_dead(dead, lanes, deaths, doorbell)
        tell()
    mark_dead([lane for lane in lanes if not lane.dead], lanes, deaths, doorbell)


def mark_dead(dead: list[Lane], lanes: list[Lane], deaths: list[Lane], doorbell: Doorbell) -> None:
    """Note deaths, and wake everybody."""
    for lane in dead:
        lane.died_s = time.monotonic()
        deaths.append(lane)
        lane.region.words[DEAD] = 1
    for actor in range(len(lanes) + 1):
        doorbell.ring(actor)


def end(
    server: subprocess.Popen[bytes] | Standby,
    control: socket.socket,
    monitor: threading.Thread,
    relay: Relay,
    memory: Memory,
) -> None:
    """Close the control socket, on which the server kills all actors and goes; wait for it, and let go of the memory."""
    with contextlib.suppress(OSError):
        control.shutdown(socket.SHUT_RDWR)
    try:
        server.wait(timeout=10)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    monitor.join()
    relay.stop()
    control.close()
    memory.close()
