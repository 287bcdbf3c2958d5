"""The interface of connections from the driver to a node, for channels and heartbeats."""

from __future__ import annotations

from typing import Protocol

from chimera.engines.http.connection import JSON, Answer


class Transport(Protocol):
    """A connection to one node, for one thread; see `chimera.engines.http.connection.Connection`.

    Attributes
    ----------
    waits : whether a request waits for a node that cannot be reached now.
    """

    waits: bool

    @property
    def last_received_s(self) -> float:
        """The time at which the node last reported that the current request waits for its owner; ``-inf`` if it did not."""

    def request(
        self, verb: str, path: str, body: bytes = b"", content_type: str = JSON, *, timeout_s: float, idempotent: bool
    ) -> Answer:
        """Send a request and return the answer.

        Raises
        ------
        TimeLimitError : the request exceeded its time limit.
        Unreachable : the node cannot be reached.
        InvalidAnswer : the answer cannot be used.
        """

    def break_off(self, reason: str) -> None:
        """Abort the current request, from another thread. It and all later requests raise `Unreachable`."""

    def close(self) -> None:
        """Release the resources that the connection holds between requests."""
