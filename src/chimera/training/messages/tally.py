"""The tally of a worker: losses and messages since the last report."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from numpy.typing import NDArray

from chimera.core.message import Encoded
from chimera.core.parameters import Flat


class Tally(msgspec.Struct, gc=False):
    """Sums since the last report.

    Attributes
    ----------
    loss, losses : sum of the batches' mean losses, and number of batches.
    elements_up, packed_up : elements of sent vectors, and bytes of their messages; or elements of the vectors
        that it reduced with a group, and bytes that it passed to collectives.
    elements_down, packed_down : the same for received vectors.
    peak_bytes : peak memory of training since the start, where the worker measures it.
    fill : fill of the worker's input queue, 0 to 1; None if it has none.
    tokens, flops : tokens of the batches, and floating-point operations by the model's formula, if the model reports them.
    peak_flops : peak of the worker's device in FLOPs per second; 0 if it is not known.
    worker : the worker's name; set if ``peak_bytes``, ``fill`` or ``peak_flops`` is.
    """

    loss: float = 0.0
    losses: int = 0
    elements_up: int = 0
    packed_up: int = 0
    elements_down: int = 0
    packed_down: int = 0
    peak_bytes: int = 0
    fill: float | None = None
    tokens: int = 0
    flops: float = 0.0
    peak_flops: float = 0.0
    worker: str = ""

    def sent(self, messages: Iterable[Encoded]) -> None:
        """Count sent messages."""
        for message in messages:
            self.elements_up += message.size
            self.packed_up += message.nbytes

    def asked(self, numbers: Iterable[NDArray[Any]]) -> None:
        """Count requests for rows."""
        self.packed_up += sum(each.nbytes for each in numbers)

    def gave(self, array: Flat) -> None:
        """Count an array that was passed to a collective."""
        self.packed_up += array.nbytes

    def reduced(self, vector: Flat) -> None:
        """Count the elements of a reduced vector; `gave` counts its bytes."""
        self.elements_up += vector.nbytes // vector.itemsize  # of an array or a tensor

    def got(self, messages: Iterable[Encoded]) -> None:
        """Count received messages."""
        for message in messages:
            self.elements_down += message.size
            self.packed_down += message.nbytes
