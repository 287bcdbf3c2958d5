"""A moved model where it computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chimera.models.model import Batch

if TYPE_CHECKING:
    from chimera.models.flat_module import FlatModule
    from chimera.models.torch_model import TorchModel


class OnDevice:
    """The two vectors of a moved `TorchModel`, as tensors where it computes: what is done with them crosses no bus.

    The weights exist here and on the host, and those that were asked for last count: what `parameters` returns here may be
    written until the model's own `parameters` is called, which brings them to the host, and the other way round.
    """

    def __init__(self, model: TorchModel, flat: FlatModule) -> None:
        self._model, self._flat = model, flat

    def parameters(self) -> Any:
        """Return the live vector of all parameters, a tensor of float32, shape (P,)."""
        self._flat.settle()
        return self._flat.near_weights()

    def gradient(self, batch: Batch) -> tuple[Any, float]:
        """Return what the model's own `gradient` does, the gradient as a tensor, which the next call overwrites."""
        loss = self._model.backward(batch)
        return self._flat.near_gradient(), loss
