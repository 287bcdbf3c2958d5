"""The renewal of a coordinator's lease, in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from chimera.inference.journal.journal import Fenced, Journal, Lease

LEASE_S = 0.6
"""Seconds that a lease lasts after each renewal."""
_RENEW_S = 0.15


class LeaseRenewal:
    """Renews a lease until `end`, or until that fails. Any thread may call the methods.

    Parameters
    ----------
    ended : called in the thread after a renewal has failed.
    """

    def __init__(self, journal: Journal, lease: Lease, ended: Callable[[], None]) -> None:
        self._journal, self._epoch, self._ended = journal, lease.epoch, ended
        self._end_s = time.monotonic() + lease.left_s
        self._renewed = threading.Condition()
        self._stopped = threading.Event()
        self._error: Exception | None = None

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="chimera-lease", daemon=True).start()

    def end(self) -> None:
        """Stop the thread."""
        self._stopped.set()

    def lasts(self) -> bool:
        """Return whether the lease lasts."""
        return time.monotonic() <= self._end_s

    def await_next(self) -> None:
        """Wait while less than half of the lease is left, at most for the length of a lease."""
        with self._renewed:
            self._renewed.wait_for(lambda: self._end_s - time.monotonic() > LEASE_S / 2, LEASE_S)

    def check(self) -> str:
        """Return the message of a takeover, if a renewal has failed for that reason; else an empty text.

        Raises
        ------
        Exception : a renewal has failed for another reason. Without renewals this process would never lead again.
        """
        if self._error is None or isinstance(self._error, Fenced):
            return "" if self._error is None else str(self._error)
        raise self._error

    def _run(self) -> None:
        while not self._stopped.wait(_RENEW_S):
            requested_s = time.monotonic()
            try:
                self._journal.renew(self._epoch, LEASE_S)
            except Exception as error:  # `check` raises it
                self._error = error
                self._ended()
                return
            with self._renewed:
                self._end_s = requested_s + LEASE_S
                self._renewed.notify_all()
