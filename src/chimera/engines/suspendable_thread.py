"""Threads in lock-step: a call that may be suspended runs on one thread while its starter waits, and vice versa."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeAlias

Outcome: TypeAlias = tuple[tuple[Any, ...], BaseException | None]
"""The outcome of a call: its results, or none and the exception that it raised."""


class Abandoned(BaseException):
    """Raised inside a suspended call that will never resume. It is not an `Exception`, so that actors do not catch it."""


class SuspendableThread:
    """A thread that runs one call at a time, and only while the requesting thread waits.

    Attributes
    ----------
    outcome : outcome of the last call; None while it is suspended.
    thread : the thread that runs the calls.
    """

    def __init__(self) -> None:
        self._run_lock, self._halt_lock = threading.Lock(), threading.Lock()
        self._run_lock.acquire()
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
        """Resume the suspended call, or raise ``error`` in it; return when it ends or is suspended again."""
        self._error = error
        self._switch()

    def suspend(self) -> None:
        """Suspend the running job until `resume`. Only the job itself calls this."""
        self._halt()
        self._run_lock.acquire()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def end(self) -> None:
        """Stop the thread. A suspended call is unwound with `Abandoned`."""
        self._await_halt()
        while self._job is not None:
            self.resume(Abandoned())
        self._run_lock.release()
        self.thread.join()

    def _switch(self) -> None:
        back = self._halt_lock = threading.Lock()
        back.acquire()
        self._halted = False
        self._run_lock.release()
        try:
            back.acquire()
        except KeyboardInterrupt:
            self._await_halt()  # the driver must not run at the same time, except after a second interrupt
            raise

    def _await_halt(self) -> None:
        while not self._halted:
            self._halt_lock.acquire(timeout=0.1)

    def _halt(self) -> None:
        back = self._halt_lock
        self._halted = True
        back.release()

    def _loop(self) -> None:
        while True:
            self._run_lock.acquire()
            if self._job is None:
                return
            try:
                self.outcome = self._job()
            except BaseException as error:  # Abandoned, or SystemExit of an actor, which is lost then
                self.outcome = (), error
            self._job = None
            self._halt()


class SuspendableThreads:
    """The threads of one engine. A thread whose call has ended runs a later call."""

    def __init__(self) -> None:
        self._all: list[SuspendableThread] = []
        self._idle: list[SuspendableThread] = []

    def lend(self) -> SuspendableThread:
        """Return an idle or new thread for a call."""
        if not self._idle:
            self._idle.append(SuspendableThread())
            self._all.append(self._idle[-1])
        return self._idle.pop()

    def give_back(self, call_thread: SuspendableThread) -> None:
        """Take back a thread whose call has ended."""
        self._idle.append(call_thread)

    def end(self) -> None:
        """Stop all threads. Suspended calls are unwound."""
        for call_thread in self._all:
            call_thread.end()
        self._all.clear()
