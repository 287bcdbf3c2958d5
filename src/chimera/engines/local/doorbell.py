"""Waiting for other processes: look for a moment, then sleep until somebody rings."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from chimera.engines.local.memory import Memory, fence

_RECHECK_S = 0.25  # a lost ring is not known to happen; should it ever, this is what it costs


class Doorbell:
    """A datagram socket in the engine's private folder, one a process. Messages are empty: a ring says 'look again'.

    Parameters
    ----------
    folder : where the sockets are; only this user may enter it.
    bound : this process's own socket, bound already.
    """

    def __init__(self, folder: Path, bound: socket.socket, memory: Memory) -> None:
        self._folder, self._socket, self._memory = folder, bound, memory
        self._me = memory.me

    def ring_waiting(self) -> None:
        """Wake everybody who waits for this process."""
        waiting = self._memory.own.waiting
        fence()  # what they wait for is written before this asks who waits
        if any(waiting[: self._memory.actors()]):
            for other in range(self._memory.actors()):
                if waiting[other]:
                    self.ring(other)

    def ring(self, other: int) -> None:
        """Wake one process, or do nothing if it is gone."""
        with contextlib.suppress(BlockingIOError, FileNotFoundError, ConnectionRefusedError):
            self._socket.sendto(b"", socket.MSG_DONTWAIT, str(self._folder / str(other)))

    def await_(
        self, ready: Callable[[], bool], sources: Iterable[int], spin_s: float, deadline: float | None = None
    ) -> bool:
        """Return True once ``ready()``, or False when the clock passes ``deadline``.

        Parameters
        ----------
        ready : looks at shared memory; it may raise.
        sources : the processes whose progress can make it true.
        spin_s : how long to look, giving the core away between two looks, before sleeping.
        deadline : seconds of the monotonic clock.
        """
        if ready():
            return True
        until = time.monotonic() + spin_s
        while time.monotonic() < until:
            os.sched_yield()
            if ready():
                return True
        rows = [self._memory.region(source).waiting for source in sources]
        for row in rows:
            row[self._me] = 1
        try:
            while True:
                fence()  # whoever makes it ready sees the flags, or this sees that it is ready
                if ready():
                    return True
                left = _RECHECK_S if deadline is None else min(_RECHECK_S, deadline - time.monotonic())
                if left <= 0:
                    return False
                self._socket.settimeout(left)
                with contextlib.suppress(TimeoutError):
                    self._socket.recv(1)
        finally:
            for row in rows:
                row[self._me] = 0

    def close(self) -> None:
        """Close the socket; its name goes with the folder."""
        self._socket.close()


def bind(folder: Path, me: int) -> socket.socket:
    """Return a socket on which process ``me`` can be rung."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    bound.bind(str(folder / str(me)))
    return bound
