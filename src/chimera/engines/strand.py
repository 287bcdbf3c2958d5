"""Threads in lock-step: a call that may have to wait inside runs on one, while who began it stands still, and vice versa."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeAlias

Outcome: TypeAlias = tuple[tuple[Any, ...], BaseException | None]
"""What a call came to: its results, or none and what it raised."""


class Abandoned(BaseException):
    """Raised inside a suspended call that will never go on. Not an `Exception`, so that actors do not catch it."""


class Strand:
    """A thread that runs one call at a time, and only while the thread that asked for it waits.

    Attributes
    ----------
    outcome : what the last call came to; None while it is suspended.
    thread : the one that calls run on.
    """

    def __init__(self) -> None:
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._job: Callable[[], Outcome] | None = None
        self._error: BaseException | None = None
        self._halted = True
        self.outcome: Outcome | None = None
        self.thread = threading.Thread(target=self._loop, name="chimera call", daemon=True)
        self.thread.start()

    def begin(self, job: Callable[[], Outcome]) -> None:
        """Run ``job`` until it ends or is suspended."""
        self._job, self.outcome = job, None
        self._switch()

    def resume(self, error: BaseException | None) -> None:
        """Let the suspended call go on, or raise ``error`` where it waits, until it ends or is suspended again."""
        self._error = error
        self._switch()

    def suspend(self) -> None:
        """Called by the job itself: stand still until `resume`."""
        self._halt()
        self._go.acquire()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def end(self) -> None:
        """End the thread; a call that is suspended on it is unwound."""
        self._await_halt()
        while self._job is not None:
            self.resume(Abandoned())
        self._go.release()
        self.thread.join()

    def _switch(self) -> None:
        back = self._back = threading.Lock()
        back.acquire()
        self._halted = False
        self._go.release()
        try:
            back.acquire()
        except KeyboardInterrupt:
            self._await_halt()  # the driver never goes on beside it, unless a second interrupt comes
            raise

    def _await_halt(self) -> None:
        while not self._halted:
            self._back.acquire(timeout=0.1)

    def _halt(self) -> None:
        back = self._back
        self._halted = True
        back.release()

    def _loop(self) -> None:
        while True:
            self._go.acquire()
            if self._job is None:
                return
            try:
                self.outcome = self._job()
            except BaseException as error:  # Abandoned, or SystemExit of an actor: it is lost
                self.outcome = (), error
            self._job = None
            self._halt()


class Strands:
    """Those of one engine: one that has ended its call takes the next."""

    def __init__(self) -> None:
        self._all: list[Strand] = []
        self._idle: list[Strand] = []

    def lend(self) -> Strand:
        """Return one for a call to run on."""
        if not self._idle:
            self._idle.append(Strand())
            self._all.append(self._idle[-1])
        return self._idle.pop()

    def give_back(self, strand: Strand) -> None:
        """Take back one whose call has ended."""
        self._idle.append(strand)

    def end(self) -> None:
        """End all threads; calls that are suspended on them are unwound."""
        for strand in self._all:
            strand.end()
        self._all.clear()
