"""The connection of a worker to the fork server that makes its computing processes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from chimera.core.errors import RunError
from chimera.core.processes import describe_exit
from chimera.inference.worker.fork_protocol import Request, request, sockets

_MAX_ANSWER = 1 << 16
_ATTEMPTS = 3


class ForkClient:
    """The connection to a fork server: the one that workers of this machine share, or an own one, which ends with this process.

    Parameters
    ----------
    descriptor : descriptor of an inherited socket to the shared fork server; None: start an own one.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self._own: subprocess.Popen[bytes] | None = None
        if descriptor is not None:
            self._socket = socket.socket(fileno=descriptor)
            return
        self._socket, theirs = sockets()
        with theirs:
            self._own = start(theirs)

    def prepare(self, modules: Sequence[str]) -> dict[str, str]:
        """Request imports of modules from the fork server, wait, and return the errors of failed imports, by name.

        If the process that imports them dies, its end is the error of all modules.

        Raises
        ------
        RunError : the fork server does not run.
        """
        answer: dict[str, Any] = {}
        for _ in range(_ATTEMPTS):  # it may be restarted meanwhile
            with self.request(Request([*modules], strict=True, fork=False)) as reply:
                body = reply.recv(_MAX_ANSWER)
            if body:
                answer = msgspec.json.decode(body)
                break
        if "status" in answer:
            return dict.fromkeys(modules, _death(modules, int(answer["status"])))
        if "failures" in answer:
            return {str(name): str(why) for name, why in answer["failures"].items()}
        if "ready" not in answer:
            raise RunError("the process that forks the computing processes has ended: see its output")
        return {}

    def request(self, wanted: Request, files: Sequence[int] = ()) -> socket.socket:
        """Send a request; see `request`."""
        return request(self._socket, wanted, files)

    def close(self) -> None:
        """Close the connection, and end an own fork server."""
        self._socket.close()
        if self._own is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._own.pid, signal.SIGKILL)
            self._own.communicate()


def _death(modules: Sequence[str], status: int) -> str:
    cause = "; the usual cause is too little memory" if status == -signal.SIGKILL else ""
    return f"the process that imported {', '.join(map(repr, modules))} {describe_exit(status)}{cause}"


def start(request_socket: socket.socket) -> subprocess.Popen[bytes]:
    """Start a fork server that ends with this process, and answers the requests of a socket."""
    return subprocess.Popen(  # noqa: S603 - this Python, a module of the project, no shell
        [sys.executable, "-m", *command(request_socket.fileno())],
        stdin=subprocess.PIPE, pass_fds=[request_socket.fileno()], start_new_session=True,
    )  # fmt: skip


def command(descriptor: int) -> list[str]:
    """Return the module of the fork server, and its arguments; the process must inherit the descriptor."""
    return ["chimera.inference.worker.fork_server", str(descriptor)]
