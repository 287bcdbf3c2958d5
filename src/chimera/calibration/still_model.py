"""A model whose gradient is computed once: the timeline of a run depends on sizes of messages, not on their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.batch import Batch
from chimera.core.parameters import Flat, Layout
from chimera.models.conversion import build_model
from chimera.models.model import Model, Task


class StillModel:
    """A model that returns the gradient of its first batch and the metrics of its first evaluation for all others.

    Parameters
    ----------
    model : the model.
    """

    notice = None

    def __init__(self, model: Model) -> None:
        self._model = model
        self._gradient: tuple[Flat, float] | None = None
        self._metrics: dict[str, float] | None = None

    @property
    def layout(self) -> Layout:
        """See `Model.layout`."""
        return self._model.layout

    def parameters(self) -> Flat:
        """See `Model.parameters`."""
        return self._model.parameters()

    def load(self, flat: Flat) -> None:
        """See `Model.load`."""
        self._model.load(flat)

    def gradient(self, batch: Batch) -> tuple[Flat, float]:
        """Return the gradient of the first batch, in memory that the caller may change, and its loss."""
        if self._gradient is None:
            gradient, loss = self._model.gradient(batch)
            self._gradient = gradient.copy(), loss
            self._buffer = np.empty_like(gradient)
        np.copyto(self._buffer, self._gradient[0])
        return self._buffer, self._gradient[1]

    def evaluate(self, batch: Batch) -> dict[str, float]:
        """Return the metrics of the first evaluation."""
        if self._metrics is None:
            self._metrics = self._model.evaluate(batch)
        return dict(self._metrics)

    def predict(self, inputs: NDArray[Any]) -> NDArray[Any]:
        """See `Model.predict`."""
        return self._model.predict(inputs)

    def reseed(self, seed: int) -> None:
        """Do nothing: the gradient is computed once."""

    def buffers(self) -> Flat:
        """See `Model.buffers`."""
        return self._model.buffers()

    def load_buffers(self, flat: Flat) -> None:
        """See `Model.load_buffers`."""
        self._model.load_buffers(flat)


class StillFactory:
    """A factory of still models for `Trainer`.

    Parameters
    ----------
    name, options : the model's name, and its options.
    """

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self._name, self._options = name, options
        self.__name__ = self.__qualname__ = name

    def __call__(self, input_shape: tuple[int, ...], outputs: int, task: Task, seed: int) -> StillModel:
        """Return a new still model."""
        return StillModel(
            build_model(self._name, self._options, input_shape=input_shape, outputs=outputs, task=task, seed=seed)
        )
