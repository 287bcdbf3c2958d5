"""The dynamic scale of the loss in training with float16 (Micikevicius et al. 2018, "Mixed Precision Training")."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

_MIN_SCALE = 1.0


class LossScaler:
    """The scale of the loss, by which gradients are divided again before they leave the model.

    Small gradients, which would be zero in float16, are kept, since the loss is multiplied. If a scale is too large,
    gradients are infinite: the scale is halved, and the gradient of the batch is computed again. After 2000 finite
    gradients the scale is doubled. The computation is that of `torch.amp.GradScaler`.

    Parameters
    ----------
    device : type of the device, such as ``cuda``.
    scale : the first scale; default 65536.
    """

    def __init__(self, device: str, scale: float = 2.0**16) -> None:
        import torch

        self._scaler = torch.amp.GradScaler(device, init_scale=scale)
        self._finite_at = scale  # the last scale with a finite gradient

    @property
    def value(self) -> float:
        """The present scale."""
        return self._scaler.get_scale()

    def state(self) -> NDArray[np.float64]:
        """Return the scale, the number of finite gradients since it changed, and the last scale with one; shape (3,)."""
        return np.array([self.value, self._scaler.state_dict()["_growth_tracker"], self._finite_at])

    def restore(self, state: NDArray[np.float64]) -> None:
        """Restore what `state` returned."""
        scale, finite, self._finite_at = map(float, state)
        self._scaler.load_state_dict({**self._scaler.state_dict(), "scale": scale, "_growth_tracker": int(finite)})

    def scaled(self, loss: Tensor) -> Tensor:
        """Return the scaled loss."""
        scaled: Tensor = self._scaler.scale(loss)
        return scaled

    def unscale(self, gradient: Tensor, loss: float) -> bool:
        """Divide a gradient by the scale, in place; return whether it must be computed again, with the new scale.

        If the loss is not finite, or the gradient is not finite with a scale of 1, the scale is not the cause. The
        gradient is then not computed again, and the scale becomes that of the last finite gradient.
        """
        import torch

        parameter = torch.nn.Parameter(gradient, requires_grad=False)
        parameter.grad = gradient
        holder: Any = SimpleNamespace(param_groups=[{"params": [parameter]}])  # an optimizer for the scaler
        before = self.value
        self._scaler.unscale_(holder)
        self._scaler.update()
        if self.value >= before:
            self._finite_at = before
            return False
        if before > _MIN_SCALE and math.isfinite(loss):
            return True
        self._scaler.update(self._finite_at)
        return False
