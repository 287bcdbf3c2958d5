"""The server: an actor that holds a slice of the parameters and the optimizer that steps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from chimera.codecs.codec import CODECS, decode
from chimera.core.call import work
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout, reduce_in_order
from chimera.training.optimizer import FlatOptimizer, OptimizerSettings

_EPSILON = 1e-7  # as in the paper's experiments: keeps the division defined


class ParameterShard:
    """One server.

    Parameters
    ----------
    weights : the initial values of its slice, shape (p,).
    layout : the tensors in the slice.
    optimizer : what steps it.
    codec : name and options of the codec of the downlink.
    """

    def __init__(
        self,
        weights: Flat,
        layout: Layout,
        *,
        optimizer: OptimizerSettings,
        codec: tuple[str, Mapping[str, Any]] = ("identity", {}),
    ) -> None:
        self._weights, self._layout = np.array(weights, np.float32), layout
        self._mean = np.empty_like(self._weights)
        self._optimizer = FlatOptimizer(optimizer, self._weights)
        self._codec = CODECS.create(*codec)
        self._mean_square: Flat | None = None  # of gradients; its memory is spent where it is asked for
        self._steps = 0

    def weights(self) -> Encoded:
        """Return the slice, encoded."""
        return self._codec.encode(self._weights, self._layout)

    def update(self, *gradients: Encoded) -> tuple[Encoded, int]:
        """Step with the mean of the gradients, in the order given; return the new slice and how many steps were taken."""
        reduce_in_order([decode(gradient) for gradient in gradients], self._mean, 1 / len(gradients))
        self._optimizer.step(self._mean)
        self._steps += 1
        work(elements=self._weights.size * len(gradients))
        return self.weights(), self._steps

    def compensate(
        self, gradient: Encoded, then: Encoded, lambda_: float, decay: float | None = None
    ) -> tuple[Encoded, int]:
        """Step with a gradient that was computed at the weights ``then``, corrected for the way since (see `DelayCompensated`).

        With ``decay``, ``lambda_`` is divided by the root of the moving mean of the squared gradient.
        """
        given = decode(gradient)
        way = self._weights - decode(then)
        way *= np.float32(lambda_)
        square = np.square(given)
        way *= square
        if decay is not None:
            if self._mean_square is None:
                self._mean_square = np.zeros_like(self._weights)
            self._mean_square *= np.float32(decay)
            square *= np.float32(1 - decay)
            self._mean_square += square
            way /= np.sqrt(self._mean_square + np.float32(_EPSILON))
        np.add(given, way, out=self._mean)
        self._optimizer.step(self._mean)
        self._steps += 1
        work(elements=self._weights.size * 2)
        return self.weights(), self._steps

    def state(self) -> dict[str, Any]:
        """Return weights, optimizer and step."""
        return {
            "step": self._steps,
            "weights": self._weights,
            "optimizer": self._optimizer.state(),
            "mean_square": self._mean_square,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` returned."""
        np.copyto(self._weights, state["weights"])
        self._optimizer.restore(state["optimizer"])
        self._steps = state["step"]
        mean_square = state.get("mean_square")
        self._mean_square = None if mean_square is None else np.array(mean_square, np.float32)
