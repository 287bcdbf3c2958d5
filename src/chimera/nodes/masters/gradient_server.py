"""The server of the parameters in the master: it knows when the gradient is small enough to stop."""

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
    """What became of the gradients of a round.

    Attributes
    ----------
    largest : the largest absolute value in the mean gradient; infinite if there was none.
    over : whether the descent is over: that was at most epsilon, or the learning rate is used up. No step was taken then.
    """

    largest: float = math.inf
    over: bool = False


def whole(vector: NDArray[Any]) -> Encoded:
    """Return a vector as a message that keeps its precision; it stays in this process."""
    message = Encoded("identity", vector.size, (vector,))
    message.plain = True
    return message


class GradientServer(ParameterShard):
    """Steps with the mean gradient until all of it is at most ``epsilon`` in absolute value; from then on it stays as it is.

    It computes in the precision of the weights that it is given.
    """

    hosted = False  # it lives in the master

    def __init__(self, weights: Flat, layout: Layout, *, rate: LearningRate, epsilon: float) -> None:
        self.precision = weights.dtype.type
        super().__init__(weights, layout, optimizer=rate)
        self._epsilon, self._over = epsilon, False

    def weights(self) -> Encoded:
        """Return the weights as workers begin with them."""
        return whole(self._weights)

    def model(self) -> Encoded:
        """Return the weights as they are."""
        return whole(self._weights)

    def _stepped(self, gradients: int, rejected: Sequence[Rejected]) -> tuple[Encoded, Applied]:
        largest = float(np.abs(values_of(self._mean)).max()) if gradients else math.inf
        steps = self._optimizer
        self._over = self._over or largest <= self._epsilon or (isinstance(steps, Steps) and steps.over)
        _, applied = super()._stepped(0 if self._over else gradients, rejected)
        return whole(self._weights), Progress(
            applied.step, gradients, applied.rejected, largest=largest, over=self._over
        )
