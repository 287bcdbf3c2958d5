"""What a worker has done since it was last asked: losses, and the messages of vectors that it sent and got."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from chimera.core.message import Encoded


class Tally(msgspec.Struct):
    """Sums since the last time.

    Attributes
    ----------
    loss, losses : the sum of the batches' mean losses, and how many batches it covers.
    elements_up, packed_up : elements of the vectors that the worker sent, and the bytes of the messages that carried them.
    elements_down, packed_down : those that it got.
    """

    loss: float = 0.0
    losses: int = 0
    elements_up: int = 0
    packed_up: int = 0
    elements_down: int = 0
    packed_down: int = 0

    def sent(self, messages: Iterable[Encoded]) -> None:
        """Count messages that go to servers."""
        for message in messages:
            self.elements_up += message.size
            self.packed_up += message.nbytes

    def got(self, messages: Iterable[Encoded]) -> None:
        """Count messages that came from servers."""
        for message in messages:
            self.elements_down += message.size
            self.packed_down += message.nbytes
