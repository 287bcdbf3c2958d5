"""A function that a thread calls again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable

from chimera.web.logs import status


class Periodic:
    """Calls a function at regular intervals, in a thread. An error is logged, and the next call follows.

    Parameters
    ----------
    what : what the function does, for the log.
    interval_s : seconds between two calls.
    """

    def __init__(self, what: str, interval_s: float, function: Callable[[], None]) -> None:
        self._what, self._interval_s, self._function = what, interval_s, function
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start to call the function."""
        threading.Thread(target=self._run, name=f"chimera-{self._what}", daemon=True).start()

    def stop(self) -> None:
        """Make no further calls."""
        self._stopped.set()

    def _run(self) -> None:
        failed = ""
        while not self._stopped.wait(self._interval_s):
            try:
                self._function()
                failed = ""
            except Exception as error:  # the next call may succeed
                if str(error) != failed:
                    status().warning("%s: %s", self._what, error)
                failed = str(error)
