"""The backward pass of a torch model: gradients of a batch in pieces, with a scaled loss where the precision needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from chimera.core.batch import Batch, pieces_of, samples_in
from chimera.core.errors import ConfigurationError
from chimera.models.flat_module import FlatModule
from chimera.models.forward import ForwardPass
from chimera.models.loss_scaler import LossScaler

if TYPE_CHECKING:
    from torch import Tensor


class BackwardPass:
    """Computes gradients on the module's device.

    Parameters
    ----------
    flat : the module.
    forward : computes the loss.
    scaler : scales the loss; by default one is made where the precision needs it, on a GPU.
    """

    def __init__(self, flat: FlatModule, forward: ForwardPass, scaler: LossScaler | None = None) -> None:
        self._flat, self._forward, self._scaler = flat, forward, scaler
        self._seed: int | None = None
        self._complete = False  # whether the parameters were checked after a forward pass
        self._kept: NDArray[np.float64] | None = None  # state of a scaler that is not made yet

    def loss_scale(self) -> NDArray[np.float64] | None:
        """Return the state of the scale, see `LossScaler.state`; None if there is no scale."""
        return self._kept if self._scaler is None else self._scaler.state()

    def restore_loss_scale(self, state: NDArray[np.float64]) -> None:
        """Restore what `loss_scale` returned, at once or when the scale is first needed."""
        if self._scaler is None:
            self._kept = state
        else:
            self._scaler.restore(state)

    def reseed(self, seed: int) -> None:
        """Seed torch's global generators, from which the next gradients draw (dropout)."""
        import torch

        self._seed = seed = (
            seed % 2**63
        )  # seeds of steps are products with the run's seed; torch accepts no larger ones
        if self._flat.moved:
            torch.manual_seed(seed)  # the generators of all devices
        else:
            torch.default_generator.manual_seed(seed)

    def __call__(self, batch: Batch) -> float:
        """Compute the gradient of a batch in training mode, leave it on the module's device, and return the mean loss."""
        flat = self._flat
        if not flat.module.training:
            flat.module.train()
        flat.upload()
        if self._forward.compute.scales:
            return self._unscaled(batch)
        return self._accumulated(batch)

    def _unscaled(self, batch: Batch) -> float:
        """Compute the gradient with a scaled loss; divide it by the scale. Repeat both while the scale is too large."""
        import torch

        if self._scaler is None:
            device = self._flat.device.type
            self._forward.compute.check_device(gpu=device != "cpu")
            self._scaler = LossScaler(device)
            if self._kept is not None:
                self._scaler.restore(self._kept)
        buffers = [(buffer, buffer.clone()) for buffer in self._flat.module.buffers()]
        while True:
            loss = self._accumulated(batch)
            if not self._scaler.unscale(torch.as_tensor(self._flat.device_gradient()), loss):
                return loss
            for buffer, before in buffers:  # each batch counts once, in the statistics of batch normalisation as well
                buffer.copy_(before)
            if self._seed is not None:
                self.reseed(self._seed)

    def _accumulated(self, batch: Batch) -> float:
        self._flat.clear_gradient()
        pieces = self._forward.compute.accumulate
        if pieces == 1:
            return self._of_piece(batch)
        rows = samples_in(batch)
        return sum(self._of_piece(piece, samples_in(piece) / rows) for piece in pieces_of(batch, -(-rows // pieces)))

    def _of_piece(self, batch: Batch, share: float = 1.0) -> float:
        """Add ``share`` times the gradient of a piece of a batch; return ``share`` times its loss."""
        loss = self._forward(batch).loss
        if not hasattr(loss, "numel"):
            raise ConfigurationError(
                f"the loss {self._forward.loss.name!r} must return a scalar tensor, but returned {type(loss).__name__}"
            )
        if not self._complete:
            self._flat.check_complete()
            self._complete = True
        if share != 1.0:
            loss = loss * share
        if loss.numel() != 1:
            raise ConfigurationError(
                f"the loss {self._forward.loss.name!r} must return a scalar, it returned shape {tuple(loss.shape)}"
            )
        if not loss.requires_grad:
            raise ConfigurationError(
                "the loss has no gradient: compute it by torch from the module's outputs, without detach, no_grad or NumPy"
            )
        self._scaled(loss).backward()  # type: ignore[no-untyped-call]
        return loss.item()

    def _scaled(self, loss: Tensor) -> Tensor:
        return loss if self._scaler is None else self._scaler.scaled(loss)
