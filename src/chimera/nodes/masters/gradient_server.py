"""The parameter server in the master, with the stopping rule of the descent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout
from chimera.nodes.masters.learning_rate import LearningRate, Steps
from chimera.training.messages.rejection import Applied, Rejected
from chimera.training.server.parameter_shard import ParameterShard, values_of


class Progress(Applied, frozen=True):
    """The outcome of a round.

    Attributes
    ----------
    largest : largest absolute value in the mean gradient; infinite if there was no gradient.
    over : whether the descent is over, because ``largest`` is at most epsilon or an adaptive learning rate has become too
        small. No step was taken in this case.
    """

    largest: float = math.inf
    over: bool = False


def exact_message(vector: NDArray[Any]) -> Encoded:
    """Return a vector as a message that keeps its precision. The message stays in this process."""
    message = Encoded("identity", vector.size, (vector,))
    message.plain = True
    return message


class GradientServer(ParameterShard):
    """Takes steps with the mean gradient until all its elements are at most ``epsilon`` in absolute value.

    It computes in the precision of the given weights.
    """

    hosted = False  # it runs in the master

    def __init__(self, weights: Flat, layout: Layout, *, rate: LearningRate, epsilon: float) -> None:
        self.precision = weights.dtype.type
        super().__init__(weights, layout, optimizer=rate)
        self._epsilon, self._over = epsilon, False

    def weights(self) -> Encoded:
        """Return the weights, for workers that start."""
        return exact_message(self._weights)

    def model(self) -> Encoded:
        """Return the current weights."""
        return exact_message(self._weights)

    def _stepped(self, gradients: int, rejected: Sequence[Rejected]) -> tuple[Encoded, Applied]:
        largest = float(np.abs(values_of(self._mean)).max()) if gradients else math.inf
        steps = self._optimizer
        self._over = self._over or largest <= self._epsilon or (isinstance(steps, Steps) and steps.over)
        _, applied = super()._stepped(0 if self._over else gradients, rejected)
        return exact_message(self._weights), Progress(
            applied.step, gradients, applied.rejected, largest=largest, over=self._over
        )
