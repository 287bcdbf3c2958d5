"""The steps that a worker takes by itself between two messages of its servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.models.model import Batch
from chimera.training.optimizer import FlatOptimizer, OptimizerSettings


class LocalTraining:
    """Steps a model where it computes.

    Plain SGD needs no optimizer of torch's, and a model that has ``descend`` takes such a step by itself.

    Parameters
    ----------
    settings : of the optimizer.
    model : what is stepped; its vectors may lie on a device.
    """

    def __init__(self, settings: OptimizerSettings, model: Any) -> None:
        self._settings, self._model = settings, model
        self._descend = getattr(model, "descend", None) if settings.plain else None
        self._optimizer: FlatOptimizer | None = None  # its memory is not spent where nobody trains so
        self._kept: Mapping[str, NDArray[Any]] = {}

    @property
    def descends(self) -> bool:
        """Whether the model takes its steps by itself, and gives no gradient."""
        return self._descend is not None

    def descend(self, batch: Batch, number: int) -> float:
        """Let the model take a step, of which there were ``number`` before, and return the mean loss of the batch."""
        assert self._descend is not None
        return float(self._descend(batch, self._settings.learning_rate(number)))

    def step(self, gradient: Any, number: int) -> None:
        """Take a step, of which there were ``number`` before, with a gradient, shape (P,), which may be overwritten."""
        flat = self._model.parameters()
        if self._settings.plain:
            gradient *= np.float32(self._settings.learning_rate(number))
            flat -= gradient
            return
        if self._optimizer is None:
            self._optimizer = FlatOptimizer(self._settings, flat)
            self._optimizer.restore(self._kept)
        self._optimizer.step(gradient, number)

    def forget(self) -> None:
        """Begin anew, as if no step had been taken."""
        self._optimizer, self._kept = None, {}

    def state(self) -> Mapping[str, NDArray[Any]]:
        """Return what the optimizer remembers."""
        return self._kept if self._optimizer is None else self._optimizer.state()

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take back what `state` returned."""
        self._optimizer, self._kept = None, state
