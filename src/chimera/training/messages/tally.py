"""What a worker has done since it was last asked: losses, and the vectors that it sent and got."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from numpy.typing import NDArray

from chimera.core.message import Encoded
from chimera.core.parameters import Flat


class Tally(msgspec.Struct, gc=False):
    """Sums since the last time.

    Attributes
    ----------
    loss, losses : the sum of the batches' mean losses, and how many batches it covers.
    elements_up, packed_up : elements of the vectors that the worker sent, and the bytes of the messages that carried them; or
        of the vectors that it reduced with a group, and the bytes that it gave to the collectives.
    elements_down, packed_down : those that it got.
    peak_bytes : the most memory that training took at a time, ever, where the worker counts it.
    fill : how full the queue of what is prepared for the worker is, 0 to 1; None where there is none.
    worker : its name, where one of these two is told.
    """

    loss: float = 0.0
    losses: int = 0
    elements_up: int = 0
    packed_up: int = 0
    elements_down: int = 0
    packed_down: int = 0
    peak_bytes: int = 0
    fill: float | None = None
    worker: str = ""

    def sent(self, messages: Iterable[Encoded]) -> None:
        """Count messages to servers or neighbours, once each."""
        for message in messages:
            self.elements_up += message.size
            self.packed_up += message.nbytes

    def asked(self, numbers: Iterable[NDArray[Any]]) -> None:
        """Count what was sent to say which rows are wanted."""
        self.packed_up += sum(each.nbytes for each in numbers)

    def gave(self, array: Flat) -> None:
        """Count what a collective is given."""
        self.packed_up += array.nbytes

    def reduced(self, vector: Flat) -> None:
        """Count a vector that was reduced; how, `gave` has counted."""
        self.elements_up += vector.size

    def got(self, messages: Iterable[Encoded]) -> None:
        """Count messages that came from servers or neighbours."""
        for message in messages:
            self.elements_down += message.size
            self.packed_down += message.nbytes
