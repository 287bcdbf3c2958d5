"""Shutdown of the driver of an attempt that is over."""

from __future__ import annotations

import contextlib
import os
import signal

from chimera.jobs.driver.driver import STOP_S
from chimera.jobs.scheduling.messages import Attempt


class DriverShutdown:
    """An attempt that is over, and whose driver may still run.

    Parameters
    ----------
    attempt : the attempt.
    broke : reason of the loss, used if the driver left no outcome; empty if the store has the end of the attempt already.
    lead : name of the worker that stops the driver.
    """

    def __init__(self, attempt: Attempt, broke: str, lead: str) -> None:
        self.attempt, self.broke, self.lead = attempt, broke, lead
        self._first_call_s: float | None = None

    def signal_driver(self, pid: int, now_s: float, *, lead_lost: bool) -> None:
        """Interrupt the driver at the first call if its lead is lost; kill it if it still runs after ``2 * STOP_S``."""
        if self._first_call_s is None:
            self._first_call_s = now_s
            number = signal.SIGINT if lead_lost else None
        else:
            number = signal.SIGKILL if now_s - self._first_call_s > 2 * STOP_S else None
        if number is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
