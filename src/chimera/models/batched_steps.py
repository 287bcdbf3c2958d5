"""Steps of SGD of many copies of a small torch module at once, as products of batched matrices."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from chimera.core.parameters import Flat
from chimera.models.compute import Compute
from chimera.models.flat_module import FlatModule
from chimera.models.forward import ForwardPass

if TYPE_CHECKING:
    from torch import Tensor

_MAX_PARAMETERS = 32_768
"""Above this, one product of matrices of one copy fills a core, and the memory of many copies makes a batch slower."""
_AT_ONCE = 1 << 22  # parameters of all copies that are stepped together
_ACTIVATIONS = "Identity", "Tanh", "ReLU", "GELU", "Sigmoid", "LeakyReLU", "SiLU", "Softplus", "ELU"


class BatchedSteps:
    """Steps of copies of a module, each with its own parameters and batches; equal to single steps except for rounding.

    The module is an ``nn.Sequential`` of dense layers and activations. ``torch.func.vmap`` would compute the same, and its
    first call takes a second.

    Parameters
    ----------
    flat : the module.
    forward : computes its loss, cross-entropy or the mean squared error.

    Attributes
    ----------
    copies : maximum number of copies to step together.
    """

    def __init__(self, flat: FlatModule, forward: ForwardPass) -> None:
        self._module, self._layout, self._forward = flat.module, flat.layout, forward
        self.copies = _AT_ONCE // flat.layout.size

    @classmethod
    def of(cls, flat: FlatModule, forward: ForwardPass, dimensions: int) -> BatchedSteps | None:
        """Return the steps of copies of a module; None if they would give other results, or would not be faster.

        ``dimensions`` is the number of dimensions of one input.
        """
        from torch import nn

        layers = list(flat.module.children())
        if layers and type(layers[0]) is nn.Flatten and (layers[0].start_dim, layers[0].end_dim) == (1, -1):
            layers, dimensions = layers[1:], 1
        allowed = {nn.Linear, *(getattr(nn, name) for name in _ACTIVATIONS)}
        plain = type(flat.module) is nn.Sequential and {type(layer) for layer in layers} <= allowed and dimensions == 1
        names = [name for name, _ in flat.module.named_parameters(remove_duplicate=False)]
        trained = names == list(flat.layout.names)  # no layer is frozen, or has the parameters of another
        named = forward.loss.name in ("cross-entropy", "mse")
        if not (plain and trained and named and forward.plain) or flat.moved or forward.compute != Compute():
            return None
        return cls(flat, forward) if flat.layout.size <= _MAX_PARAMETERS else None

    def step(
        self, copies: NDArray[np.float32], inputs: NDArray[np.float32], targets: Flat, rate: float
    ) -> NDArray[np.float32]:
        """Take one step with each copy, in place; return the mean loss of each copy's batch, shape (c,).

        Parameters
        ----------
        copies : the parameters of each copy, shape (c, P).
        inputs, targets : the batch of each copy, shape (c, b, ...).
        rate : the learning rate.

        Raises
        ------
        IndexError, RuntimeError : the targets do not fit the outputs.
        """
        import torch

        parts = torch.split(torch.from_numpy(copies), [math.prod(each) for each in self._layout.shapes], dim=1)
        views = [part.view(-1, *each) for part, each in zip(parts, self._layout.shapes, strict=True)]
        leaves = [view.detach().requires_grad_() for view in views]
        losses = self._losses(dict(zip(self._layout.names, leaves, strict=True)), inputs, targets)
        for view, gradient in zip(views, torch.autograd.grad(losses.sum(), leaves), strict=True):
            view -= gradient.mul_(rate)
        return np.asarray(losses.detach().numpy())

    def _losses(
        self, parameters: dict[str, Tensor], inputs: NDArray[np.float32], targets: NDArray[np.generic]
    ) -> Tensor:
        import torch
        from torch.nn import Flatten, Linear, functional

        shape, classes = inputs.shape[:2], self._forward.loss.name == "cross-entropy"
        values = self._forward.tensor_of(inputs).view(*shape, -1)
        for name, layer in self._module.named_children():
            if type(layer) is Linear:
                weight = parameters[f"{name}.weight"].transpose(1, 2)
                bias = parameters.get(f"{name}.bias")
                values = torch.bmm(values, weight) if bias is None else torch.baddbmm(bias[:, None], values, weight)
            elif type(layer) is not Flatten:
                values = layer(values)
        wanted = self._forward.loss.tensor(targets.reshape(-1) if classes else targets)
        if not classes:
            return functional.mse_loss(values, wanted.view(values.shape), reduction="none").flatten(1).mean(1)
        return functional.cross_entropy(values.flatten(0, 1), wanted, reduction="none").view(shape).mean(1)
