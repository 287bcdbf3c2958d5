"""A view of a moved model's parameters and gradients on its device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chimera.core.batch import Batch

if TYPE_CHECKING:
    from chimera.models.flat_module import FlatModule
    from chimera.models.torch_model import TorchModel


class DeviceView:
    """The two vectors of a moved `TorchModel` as tensors on its device, for computations without copies to the host.

    The weights exist on the device and on the host; the copy that was requested last is the valid one. Callers may write to
    the tensor that `parameters` returns here until the model's own `parameters` is called, which copies the weights to the
    host. The same holds in the other direction.
    """

    def __init__(self, model: TorchModel, flat: FlatModule) -> None:
        self._model, self._flat = model, flat

    def parameters(self) -> Any:
        """Return the live vector of all parameters, a tensor of float32, shape (P,)."""
        self._flat.rebind()
        return self._flat.device_weights()

    def gradient(self, batch: Batch) -> tuple[Any, float]:
        """Return the mean gradient, as a tensor that the next call overwrites, and the mean loss."""
        loss = self._model.backward(batch)
        return self._flat.device_gradient(), loss
