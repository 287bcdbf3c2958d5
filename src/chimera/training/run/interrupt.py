"""Handling of Ctrl-C and preemption: the run stops after the rounds in flight."""

from __future__ import annotations

import contextlib
import signal
import time
from types import FrameType

from chimera.core.stop_signals import handlers, preemptions, stop_of

ECHO_S = 0.2
"""Seconds in which further signals of a scheduler count as the first one: a batch script may forward a signal to all."""


class Interrupt:
    """A context in which the first Ctrl-C, SIGTERM or SIGUSR1 only sets ``requested``. A second one raises its exception.

    Python delivers signals to the main thread only. In another thread this context has no effect. A process that ignores
    SIGTERM or SIGUSR1 continues to ignore it.

    The second exception may be raised in a finalizer, from which Python discards it. So code that waits calls
    `check_second`.

    Attributes
    ----------
    requested : number of the first signal; None before that.
    """

    def __init__(self) -> None:
        self.requested: int | None = None
        self._requested_s = 0.0
        self._second: int | None = None
        self._handlers = contextlib.ExitStack()

    def __enter__(self) -> Interrupt:
        self._handlers.enter_context(handlers(dict.fromkeys([signal.SIGINT, *preemptions()], self._note)))
        return self

    def __exit__(self, *_: object) -> None:
        self._handlers.close()

    def check(self) -> None:
        """Raise the exception of the first signal, if there was one.

        Raises
        ------
        KeyboardInterrupt : the signal was Ctrl-C.
        Terminated : the signal was another one.
        """
        if self.requested is not None:
            raise stop_of(self.requested)

    def check_second(self) -> None:
        """Raise the exception of the second signal again, if there was one.

        Raises
        ------
        KeyboardInterrupt, Terminated : see `check`.
        """
        if self._second is not None:
            raise stop_of(self._second)

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of a handler
        now = time.monotonic()
        if self.requested is None:
            self.requested, self._requested_s = number, now
        elif number == signal.SIGINT or now > self._requested_s + ECHO_S:
            self._second = number
            raise stop_of(number)
