"""Losses of torch models by name, and the conversion of targets to the form that each loss needs."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from chimera.core.batch import mapped
from chimera.core.errors import ConfigurationError, DataError, UnknownNameError
from chimera.core.registry import load_object
from chimera.models.model import Task

if TYPE_CHECKING:
    from torch import Tensor

LossFunction: TypeAlias = "Callable[[Tensor, Tensor], Tensor]"
"""``loss(outputs, targets) -> scalar``, the mean over the batch."""


@dataclass(frozen=True)
class Loss:
    """A loss with its target type, task and default metrics.

    Attributes
    ----------
    name : the name that users give.
    function : function of outputs and targets; returns a scalar tensor.
    targets : ``classes`` (int64 indices, or rows of class probabilities), ``values`` (float32 in the outputs' shape) or
        ``any`` (int64 or float32 as given; a user's function).
    task : the task that the loss is for; decides how outputs become predictions.
    metrics : default metrics.
    task_is_known : whether the loss or the user determines the task; otherwise it follows the data, see `for_task`.
    """

    name: str
    function: LossFunction
    targets: Literal["classes", "values", "any"]
    task: Task
    metrics: tuple[str, ...]
    task_is_known: bool = True

    def for_task(self, task: Task) -> Loss:
        """Return the loss for a data set of this task; a loss whose task is known is unchanged."""
        if self.task_is_known or task == self.task:
            return self
        return replace(self, task=task, metrics=_OF_FUNCTIONS[task])

    def to(self, device: str) -> Loss:
        """Return the loss for outputs on ``device``. A loss module, which may hold class weights, is copied."""
        from torch import nn

        if not isinstance(self.function, nn.Module):
            return self
        return replace(self, function=deepcopy(self.function).to(device))

    def tensor(self, targets: NDArray[Any]) -> Tensor:
        """Return a batch's targets as a tensor of the type that the loss needs.

        Raises
        ------
        DataError : targets that are not numbers, or not class indices where the loss needs them.
        """
        if targets.dtype == INT64 and self.targets != "values":
            return as_tensor(targets, INT64)
        kind = targets.dtype.kind
        if kind not in "biuf":
            raise DataError(f"targets must be numbers, not of type {targets.dtype}: encode labels as 0, 1, ...")
        if kind == "f" and self.targets == "classes" and (targets.ndim == 1 or targets.shape[1] == 1):
            raise DataError(
                f"the loss {self.name!r} needs class indices as targets, not type {targets.dtype}: give integers or texts"
            )
        whole = kind != "f" and self.targets != "values"
        return as_tensor(targets, INT64 if whole else FLOAT32)

    def cast(self, targets: Tensor) -> Tensor:
        """Return targets that are a tensor in the type that the loss needs."""
        if not hasattr(targets, "is_floating_point"):  # a nesting, see `__call__`
            return cast("Tensor", mapped(self.cast, targets))
        if self.targets == "values":
            return targets.float()
        return targets if targets.is_floating_point() else targets.long()

    def __call__(self, outputs: Any, targets: Any) -> Tensor:
        """Return the loss. A function of the user also receives nested outputs and targets.

        Raises
        ------
        DataError : targets that do not fit the outputs.
        ConfigurationError : there are several outputs, but the loss takes one.
        """
        if not (hasattr(outputs, "shape") and hasattr(targets, "shape")):
            return self._of_nesting(outputs, targets)
        shape = outputs.shape
        if self.targets == "classes":
            if targets.ndim == 2 and targets.shape[1] == 1 and len(shape) == 2:
                targets = targets[:, 0]
            elif shape == targets.shape and len(shape) > 1 and not targets.is_floating_point():
                targets = self._probabilities(targets)
            elif len(shape) > 2:
                outputs = classes_second(outputs, targets)
        elif shape != targets.shape:
            targets = self._fitted(tuple(shape), targets)
        try:
            return self.function(outputs, targets)
        except (IndexError, RuntimeError, ValueError) as error:
            if mistake := self._mistake(outputs, targets):
                raise DataError(mistake) from error
            raise

    def _fitted(self, shape: tuple[int, ...], targets: Tensor) -> Tensor:
        """Return float targets in the outputs' shape if they differ only in dimensions of size 1: torch would broadcast."""
        given = tuple(targets.shape)
        long, given_long = [n for n in shape[1:] if n != 1], [n for n in given[1:] if n != 1]
        if targets.is_floating_point() and shape[:1] == given[:1] and long == given_long:
            return targets.reshape(shape)
        if self.targets == "any":
            return targets
        advice = "; if they are class labels, give integers" if len(given) == 1 and shape[:1] == given else ""
        raise DataError(
            f"the loss {self.name!r} needs targets of the outputs' shape {shape}, but these have shape {given}{advice}"
        )

    def _of_nesting(self, outputs: Any, targets: Any) -> Tensor:
        if isinstance(targets, tuple | list) and targets and isinstance(targets[0], str):
            raise DataError(f"targets must be numbers, not texts such as {targets[0]!r}: encode labels as 0, 1, ...")
        if self.targets == "any":
            return self.function(outputs, targets)
        what, found = ("targets", targets) if hasattr(outputs, "shape") else ("outputs", outputs)
        raise ConfigurationError(
            f"the loss {self.name!r} needs one tensor of {what}, not a {type(found).__name__}: give a loss function or a step "
            "of your own"
        )

    def _probabilities(self, targets: Tensor) -> Tensor:
        """Return one-hot rows of integers as probabilities of classes."""
        if not ((targets >= 0) & (targets <= 1)).all() or not (targets.sum(1) == 1).all():
            raise DataError(
                f"the loss {self.name!r} needs one class index per sample or rows with one 1 and else 0, not other integers "
                f"of shape {tuple(targets.shape)}: for several labels per sample, use 'bce-with-logits'"
            )
        return targets.float()

    def _mistake(self, outputs: Tensor, targets: Tensor) -> str | None:
        if len(outputs) != len(targets):
            return f"the model made {len(outputs)} outputs for a batch of {len(targets)} targets"
        if self.name == "bce" and not ((outputs >= 0) & (outputs <= 1)).all():
            return "the loss 'bce' needs outputs from 0 to 1, as after a sigmoid: for others use 'bce-with-logits'"
        if self.targets == "classes" and not targets.is_floating_point() and outputs.ndim > 1:
            counted = targets[targets != IGNORED]
            if not len(counted):
                return None
            low, high, classes = int(counted.min()), int(counted.max()), outputs.shape[1]
            if classes == 1:
                if low < 0 or high > 1:
                    return (
                        f"the loss {self.name!r} needs an output for each class, and the model has one: to predict the "
                        "integers as values, give them as real numbers"
                    )
                return f"the loss {self.name!r} needs an output for each class: for one output use 'bce-with-logits'"
            if low < 0 or high >= classes:
                return f"the model has {classes} outputs: classes must be 0 to {classes - 1}, targets go from {low} to {high}"
        return None


INDICATOR_LOSSES = ("bce", "bce-with-logits")
"""Losses of one output for each class, or of one output for two classes."""

IGNORED = -100
"""The class index of targets that do not count, as in torch."""


def classes_second(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return outputs of several targets per sample with the classes on axis 1, as torch needs them.

    ``outputs`` of shape (n, t, ..., c) for ``targets`` of shape (n, t, ...), such as those of a language model, are transposed;
    those of shape (n, c, t, ...) are not.

    Raises
    ------
    ConfigurationError : both readings fit the shapes.
    """
    shape, wanted = tuple(outputs.shape), tuple(targets.shape)
    if targets.is_floating_point() or shape[:-1] != wanted:
        return outputs
    if (shape[0], *shape[2:]) == wanted:
        raise ConfigurationError(
            f"outputs of shape {shape} have their classes on axis 1 or on the last axis; targets of shape {wanted} fit both: "
            "give a loss function or a step of your own"
        )
    return outputs.movedim(-1, 1)


FLOAT32, INT64 = np.dtype(np.float32), np.dtype(np.int64)


def as_tensor(array: NDArray[Any], dtype: np.dtype[Any]) -> Tensor:
    """Return the array as a tensor of ``dtype``; copy it only if it has another type, is read-only or has negative strides.

    torch warns about read-only memory. The copy also protects shared data from modules that change their inputs in place.
    """
    import torch

    if array.dtype == dtype and array.flags.writeable:
        try:
            return torch.from_numpy(array)
        except ValueError:  # negative strides
            pass
    return torch.from_numpy(array.astype(dtype, order="C"))


_ACCURACY = ("accuracy",)
_VALUES = ("mse", "r2")
_NAMED: dict[str, tuple[str, Literal["classes", "values"], Task, tuple[str, ...]]] = {
    "bce": ("binary_cross_entropy", "values", "classification", _ACCURACY),
    "bce-with-logits": ("binary_cross_entropy_with_logits", "values", "classification", _ACCURACY),
    "cross-entropy": ("cross_entropy", "classes", "classification", _ACCURACY),
    "huber": ("huber_loss", "values", "regression", _VALUES),
    "l1": ("l1_loss", "values", "regression", ("mae", "r2")),
    "mse": ("mse_loss", "values", "regression", _VALUES),
    "nll": ("nll_loss", "classes", "classification", _ACCURACY),
    "smooth-l1": ("smooth_l1_loss", "values", "regression", _VALUES),
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
_OF_FUNCTIONS: dict[Task, tuple[str, ...]] = {"classification": _ACCURACY, "regression": _VALUES}


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
        return Loss(name, cast("LossFunction", loss), "any", known, _OF_FUNCTIONS[known], task is not None)
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
