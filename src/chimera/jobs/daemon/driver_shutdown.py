"""Attempts that are over, and whose drivers may live on for a while."""

from __future__ import annotations

import contextlib
import os
import signal

from chimera.jobs.driver.driver import STOP_S
from chimera.jobs.scheduling.messages import Attempt


class Ending:
    """An attempt that is over, and may have a driver still.

    Parameters
    ----------
    broke : why, if what becomes of the job depends on what the driver has left; else empty, for the store knows already.
    lead : the slot that ends the driver.
    """

    def __init__(self, attempt: Attempt, broke: str, lead: str) -> None:
        self.attempt, self.broke, self.lead = attempt, broke, lead
        self._asked_s: float | None = None

    def press(self, pid: int, now_s: float, *, alone: bool) -> None:
        """End the driver, if nobody else does, or nobody has."""
        if self._asked_s is None:
            self._asked_s = now_s
            number = signal.SIGINT if alone else None
        else:
            number = signal.SIGKILL if now_s - self._asked_s > 2 * STOP_S else None
        if number is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
