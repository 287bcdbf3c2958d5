"""A fork server that is forked instead of started, so that it inherits the imported libraries.

`stand_by` forks it early, while its process has one thread and has computed nothing. The next engine of that process uses it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, NoReturn

from chimera.core.stop_signals import blocked_stop_signals, ignore_stop_signals

_POLL_S = 0.002
_waiting: list[Standby] = []


class Standby:
    """A child process that waits to become a fork server; it exits with this process."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair()
        with blocked_stop_signals():
            self.pid = os.fork()
            if self.pid == 0:
                _wait(theirs)
        theirs.close()
        self._status: int | None = None

    def serve(self, options: dict[str, Any], descriptors: dict[str, int]) -> None:
        """Activate the fork server; its copies of ``descriptors`` are in the options under these names."""
        with self._ours:
            text = json.dumps([options, list(descriptors)]).encode()
            socket.send_fds(self._ours, [len(text).to_bytes(8, "big")], list(descriptors.values()))
            self._ours.sendall(text)

    def wait(self, timeout: float | None = None) -> int:
        """Return its status once it has ended; raise `subprocess.TimeoutExpired` like `subprocess`."""
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while self._status is None:
            pid, status = os.waitpid(self.pid, 0 if deadline_s is None else os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
            elif deadline_s is not None and time.monotonic() > deadline_s:
                raise subprocess.TimeoutExpired("fork server", timeout or 0.0)
            else:
                time.sleep(_POLL_S)
        return self._status

    def kill(self) -> None:
        """Kill it."""
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)


def stand_by() -> None:
    """Fork a fork server now for the next local engine of this process."""
    _waiting.append(Standby())


def take() -> Standby | None:
    """Return the waiting fork server, or None."""
    return _waiting.pop() if _waiting else None


def _wait(ours: socket.socket) -> NoReturn:
    try:
        ignore_stop_signals()
        os.setsid()
        close_all_but(0, 1, 2, ours.fileno())
        head, descriptors, *_ = socket.recv_fds(ours, 8, 3)
        if head:
            with ours, ours.makefile("rb") as stream:
                options, names = json.loads(stream.read(int.from_bytes(head, "big")))
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            from chimera.engines.local.forkserver import (
                run,  # a module that also runs as a program, so no other module imports it
            )

            run({**options, **dict(zip(names, descriptors, strict=True))})
    finally:
        os._exit(0)


def close_all_but(*kept: int) -> None:
    """Close all descriptors of this process except these; for a forked process."""
    for number in [int(path.name) for path in Path("/dev/fd").iterdir()]:
        if number not in kept:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.close(number)
