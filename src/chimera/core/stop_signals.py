"""Signals that stop a program: the one of Ctrl-C, and those with which a scheduler announces the end of a process."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Collection, Iterator, Mapping
from types import FrameType
from typing import Any

PREEMPTIONS = signal.SIGTERM, signal.SIGUSR1
"""The signals of schedulers, container runtimes and spot machines."""
STOP_SIGNALS = signal.SIGINT, *PREEMPTIONS


class Terminated(KeyboardInterrupt, SystemExit):
    """A request to stop this process, by SIGTERM or SIGUSR1.

    Code that handles Ctrl-C handles it, too. A program that does not catch it exits with code 143, without a traceback.

    Attributes
    ----------
    number : number of the signal.
    """

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(number)
        self.number, self.code = number, 128 + signal.SIGTERM

    def __str__(self) -> str:
        return f"ended by {signal.Signals(self.number).name}"


def stop_of(number: int) -> KeyboardInterrupt:
    """Return the exception of a signal: KeyboardInterrupt for the one of Ctrl-C, else `Terminated`."""
    return KeyboardInterrupt() if number == signal.SIGINT else Terminated(number)


def exit_code_of_stop(error: BaseException) -> int:
    """Return the exit code of a program that a signal has stopped: 143 for `Terminated`, 130 for Ctrl-C."""
    return 128 + (signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT)


def reason_of_stop(error: BaseException) -> str:
    """Return how a signal has stopped a program, as a phrase: ``ended by SIGTERM``, or ``interrupted`` for Ctrl-C."""
    return str(error) if isinstance(error, Terminated) else "interrupted"


@contextlib.contextmanager
def handlers(wanted: Mapping[signal.Signals, Any]) -> Iterator[None]:
    """Set handlers of signals in the block. Outside the main thread, which receives signals, do nothing.

    Python cannot restore a handler that a library set before Python started; afterwards the signal has its default effect.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with contextlib.ExitStack() as restoring:  # it restores all, also if a signal arrives meanwhile
        for number, handler in wanted.items():
            before = signal.getsignal(number)
            restoring.callback(signal.signal, number, signal.SIG_DFL if before is None else before)
            signal.signal(number, handler)
        yield


def preemptions() -> list[signal.Signals]:
    """Return the signals of schedulers, without those that this process ignores, see `ignore_stop_signals`."""
    return [number for number in PREEMPTIONS if signal.getsignal(number) not in (signal.SIG_IGN, _do_nothing)]


@contextlib.contextmanager
def terminable(numbers: Collection[signal.Signals] | None = None) -> Iterator[None]:
    """Make signals raise `Terminated` in the block, as Ctrl-C raises KeyboardInterrupt; by default those of schedulers."""
    with handlers(dict.fromkeys(preemptions() if numbers is None else numbers, _terminate)):
        yield


def _terminate(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a handler
    raise Terminated(number)


def ignore_stop_signals(numbers: Collection[signal.Signals] = STOP_SIGNALS) -> None:
    """Ignore these signals in this process, and deliver the others, which `blocked_stop_signals` may have blocked.

    A process of an engine calls this first. A terminal or a scheduler may signal all processes of a run at once. The driver
    then needs the actors until it has written a checkpoint, and ends them.

    Child processes that other code starts do not ignore the signals of schedulers, since that code may end them by
    SIGTERM.
    """
    for number in numbers:
        if number in PREEMPTIONS:
            signal.signal(number, _do_nothing)  # a handler, which a new program does not inherit
            signal.siginterrupt(number, False)
        else:
            signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def _do_nothing(number: int, frame: FrameType | None) -> None:
    pass


def _inherit_nothing() -> None:
    """Set the default effect of ignored signals in a process that was forked."""
    for number in PREEMPTIONS:
        if signal.getsignal(number) is _do_nothing:
            signal.signal(number, signal.SIG_DFL)


os.register_at_fork(after_in_child=_inherit_nothing)


@contextlib.contextmanager
def blocked_stop_signals() -> Iterator[None]:
    """Block the signals in this thread, and so in processes that it starts, until these call `ignore_stop_signals`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
