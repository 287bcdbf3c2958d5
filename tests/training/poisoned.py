"""A network whose loss is finite on poisoned data, but whose gradient is not."""

from __future__ import annotations

from typing import Any

import torch

from chimera.testing.poison import MARK, NanOnPoison


class NanGradient(torch.autograd.Function):
    """The identity, with a NaN gradient at marked elements."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor, bad: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(bad)
        return values.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (bad,) = context.saved_tensors
        return gradient.masked_fill(bad, float("nan")), None


class Deceptive(NanOnPoison):
    """A network whose loss is always finite; only its gradient shows poisoned data."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = self.layers[:2](images.clamp(max=1))
        return self.layers[2:](NanGradient.apply(hidden, images[:, :1] == MARK))
