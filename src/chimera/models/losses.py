"""Losses of torch models by name."""

from __future__ import annotations

from typing import Any, Literal, cast

from chimera.core.errors import ConfigurationError, UnknownNameError
from chimera.core.registry import load_object
from chimera.models.loss import METRICS, Loss, LossFunction
from chimera.models.model import Task

INDICATOR_LOSSES = ("bce", "bce-with-logits")
"""Losses of one output for each class, or of one output for two classes."""

_NAMED: dict[str, tuple[str, Literal["classes", "values"], Task, tuple[str, ...]]] = {
    "bce": ("binary_cross_entropy", "values", "classification", METRICS["classification"]),
    "bce-with-logits": ("binary_cross_entropy_with_logits", "values", "classification", METRICS["classification"]),
    "cross-entropy": ("cross_entropy", "classes", "classification", METRICS["classification"]),
    "huber": ("huber_loss", "values", "regression", METRICS["regression"]),
    "l1": ("l1_loss", "values", "regression", ("mae", "r2")),
    "mse": ("mse_loss", "values", "regression", METRICS["regression"]),
    "nll": ("nll_loss", "classes", "classification", METRICS["classification"]),
    "smooth-l1": ("smooth_l1_loss", "values", "regression", METRICS["regression"]),
}
_MODULES = {
    "BCELoss": "bce",
    "BCEWithLogitsLoss": "bce-with-logits",
    "CrossEntropyLoss": "cross-entropy",
    "HuberLoss": "huber",
    "L1Loss": "l1",
    "MSELoss": "mse",
    "NLLLoss": "nll",
    "SmoothL1Loss": "smooth-l1",
}


def make_loss(loss: str | LossFunction, task: Task | None = None) -> Loss:
    """Return the loss for a name, ``package.module:function`` or a function; check that it is for ``task``, if given.

    A loss module of torch, such as ``CrossEntropyLoss`` with class weights, has the targets and the task of the loss by name.

    Raises
    ------
    UnknownNameError : no loss has this name.
    ConfigurationError : neither a name nor a function, or a loss for the other task.
    """
    if isinstance(loss, str) and ":" in loss:
        loss = load_object(loss)
    if isinstance(loss, str) and loss not in _NAMED:
        raise UnknownNameError("loss", loss, _NAMED)
    if isinstance(loss, type):  # such as CrossEntropyLoss
        loss = cast("LossFunction", loss())
    if not isinstance(loss, str) and not callable(loss):
        raise ConfigurationError(f"a loss must be a name or a function (outputs, targets), not {loss!r}")
    name = loss if isinstance(loss, str) else _name_of(loss)
    reduction = getattr(loss, "reduction", None) or getattr(loss, "keywords", {}).get("reduction")
    if reduction in ("sum", "none"):
        raise ConfigurationError(
            f"the loss {name!r} has reduction={reduction!r}: a run needs the mean over a batch, 'mean'"
        )
    if double := _double_buffer(loss):
        raise ConfigurationError(
            f"the tensor {double!r} of the loss {name!r} is torch.float64, and outputs are torch.float32: call .float() on it"
        )
    if name not in _NAMED:
        known = task or "regression"
        return Loss(name, cast("LossFunction", loss), "any", known, METRICS[known], task is not None)
    function, targets, meant, metrics = _NAMED[name]
    if task is not None and task != meant:
        fitting = ", ".join(name for name, known in _NAMED.items() if known[2] == task)
        advice = "; class labels must be integers or texts" if task == "regression" else ""
        raise ConfigurationError(
            f"the loss {name!r} is for {meant}, but the task is {task}; losses for it: {fitting}{advice}"
        )
    if isinstance(loss, str):
        import torch.nn.functional

        loss = cast("LossFunction", getattr(torch.nn.functional, function))
    return Loss(name, loss, targets, meant, metrics)


def takes_values(loss: str | LossFunction, columns: int) -> bool:
    """Return whether a loss of a classification also takes real numbers in this many columns: probabilities of classes."""
    made = make_loss(loss)
    return made.name in INDICATOR_LOSSES or (made.name == "cross-entropy" and columns > 1)


def _double_buffer(loss: Any) -> str | None:
    """Return the name of a tensor of double precision that a loss module holds, such as class weights; None if it has none."""
    held: Any = getattr(loss, "named_buffers", tuple)()
    return next((name for name, tensor in held if str(tensor.dtype) == "torch.float64"), None)


def _name_of(loss: LossFunction) -> str:
    """Return the name in `_NAMED` of a loss module or function of torch, or the name of a function or class."""
    kind = type(loss)
    if getattr(loss, "__module__", None) == "torch.nn.functional":
        function = getattr(loss, "__name__", "")
        return next((name for name, known in _NAMED.items() if known[0] == function), function)
    if kind.__module__ == "torch.nn.modules.loss" and kind.__name__ in _MODULES:
        return _MODULES[kind.__name__]
    return str(getattr(loss, "__name__", kind.__name__))
