"""The methods of a Lightning module: those that a run calls, refuses, or does not call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from chimera.core.errors import ConfigurationError

_LIBRARIES = "lightning", "pytorch_lightning"
_CALLED = "training_step", "configure_optimizers"
_REFUSED = (
    "backward", "optimizer_step", "optimizer_zero_grad", "configure_gradient_clipping", "lr_scheduler_step",
    "configure_sharded_model", "transfer_batch_to_device", "on_before_zero_grad", "on_before_backward",
    "on_after_backward", "on_before_optimizer_step", "on_train_batch_start", "on_train_batch_end",
)  # fmt: skip
_NOT_CALLED = (
    "setup", "teardown", "prepare_data", "train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader",
    "configure_callbacks", "on_fit_start", "on_fit_end", "on_train_start", "on_train_end", "on_train_epoch_start",
    "on_train_epoch_end", "on_validation_start", "on_validation_end", "on_validation_batch_start",
    "on_validation_batch_end", "on_save_checkpoint", "on_load_checkpoint",
)  # fmt: skip


def is_lightning(module: Any) -> bool:
    """Return whether a torch module has the methods of a Lightning module."""
    return all(
        callable(getattr(type(module), name, None)) for name in _CALLED
    )  # checks of the type are fast for each of many layers


def has_own(module: Any, name: str) -> bool:
    """Return whether a module has a method of this name that is not the one of Lightning's base class."""
    kind = next((kind for kind in type(module).__mro__ if name in vars(kind)), None)
    return kind is not None and kind.__module__.partition(".")[0] not in _LIBRARIES and callable(getattr(module, name))


def check(module: Any) -> None:
    """Raise ConfigurationError if the module needs a step that only Lightning's Trainer takes."""
    name = type(module).__name__
    if not getattr(module, "automatic_optimization", True):
        raise ConfigurationError(
            f"{name} has automatic_optimization = False: it steps its optimizers itself, but here servers or workers step; "
            "return the loss from training_step instead"
        )
    if not has_own(module, "training_step"):
        raise ConfigurationError(f"{name} has no training_step of its own: define training_step(batch, batch_idx)")
    refused = [hook for hook in _REFUSED if has_own(module, hook)]
    if refused:
        raise ConfigurationError(
            f"{name} has the hook {refused[0]}, which changes how Lightning's Trainer steps, and a run has no such place: "
            "move it into training_step, or use an option of the run (max_gradient_norm, accumulate, optimizer)"
        )
    wanted = [each for each in ("dataloader_iter", "optimizer_idx") if each in _parameters(module.training_step)]
    if wanted:
        raise ConfigurationError(
            f"training_step of {name} needs {wanted[0]}: only training_step(batch, batch_idx) is called"
        )


def not_called(module: Any) -> list[str]:
    """Return the names of the module's own hooks that a run does not call."""
    return [hook for hook in _NOT_CALLED if has_own(module, hook)]


def call(method: Callable[..., Any], batch: Any, number: int) -> Any:
    """Call a step, such as ``training_step``, with a batch, and with its number if the step has a parameter for it."""
    parameters = _parameters(method)
    if "batch_idx" in parameters:
        return method(batch, batch_idx=number)
    positional = [p for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    varying = any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
    return method(batch, number) if varying or len(positional) > 1 else method(batch)


def _parameters(method: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(method).parameters)
