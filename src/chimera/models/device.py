"""Where a model computes."""

from __future__ import annotations

import os
from typing import Any

from chimera.core.errors import ConfigurationError

GPU = "gpu"
"""One of the GPUs that this process sees; which of them, the rank decides."""


def check_movable(model: Any) -> None:
    """Raise ConfigurationError if ``model`` computes on the CPU only: it has no method ``to``, as `TorchModel` has."""
    if not callable(getattr(model, "to", None)):
        what = type(getattr(model, "estimator", model)).__name__
        raise ConfigurationError(f"{what} computes on the CPU only: ask for no gpus in worker_resources")


def move(model: Any, device: str, rank: int) -> None:
    """Let ``model`` compute on ``device``, a name of torch's or `GPU`.

    Raises
    ------
    ConfigurationError : the model cannot, or there is no GPU.
    """
    check_movable(model)
    model.to(_gpu(rank) if device == GPU else device)


def near(model: Any) -> Any:
    """Return what has the parameters and gradients of ``model`` where it computes: itself, or what its `near` returns."""
    side = getattr(model, "near", None)
    return side() if callable(side) else model


def _gpu(rank: int) -> str:
    """Return torch's name of a GPU; where an engine gives each process its own, there is but one to choose from."""
    import torch

    if not torch.cuda.is_available():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        given = "" if visible is None else f" (CUDA_VISIBLE_DEVICES is {visible!r})"
        raise ConfigurationError(
            f"worker_resources asks for gpus, and torch sees no GPU in the process of rank {rank}{given}: "
            "install a build of torch for it, or ask for none"
        )
    return f"cuda:{rank % torch.cuda.device_count()}"
