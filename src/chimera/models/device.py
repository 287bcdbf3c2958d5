"""Placement of a model on a device."""

from __future__ import annotations

import os
from typing import Any

from chimera.core.errors import ConfigurationError

GPU = "gpu"
"""One of the GPUs that are visible to this process, chosen by rank."""


def check_movable(model: Any) -> None:
    """Raise ConfigurationError if ``model`` computes on the CPU only, because it has no method ``to`` like `TorchModel`'s."""
    if not callable(getattr(model, "to", None)):
        what = type(getattr(model, "estimator", model)).__name__
        raise ConfigurationError(f"{what} computes on the CPU only: ask for no gpus in worker_resources")


def move(model: Any, device: str, rank: int) -> None:
    """Make ``model`` compute on ``device``, a torch device name or `GPU`.

    Raises
    ------
    ConfigurationError : the model computes on the CPU only, or there is no GPU.
    """
    check_movable(model)
    model.to(_gpu(rank) if device == GPU else device)


def device_view(model: Any) -> Any:
    """Return the view of a model's parameters and gradients on its device: its own ``device_view()``, if any, or ``model``."""
    side = getattr(model, "device_view", None)
    return side() if callable(side) else model


def _gpu(rank: int) -> str:
    """Return torch's name of the GPU of a rank. If the engine assigns GPUs to processes, only one is visible."""
    import torch

    if not torch.cuda.is_available():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        given = "" if visible is None else f" (CUDA_VISIBLE_DEVICES is {visible!r})"
        raise ConfigurationError(
            f"worker_resources asks for gpus, and torch sees no GPU in the process of rank {rank}{given}: "
            "install a build of torch for it, or ask for none"
        )
    return f"cuda:{rank % torch.cuda.device_count()}"
