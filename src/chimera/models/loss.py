"""A loss of a torch model: the conversion of targets to the form that it needs, and its errors."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from chimera.core.batch import mapped
from chimera.core.errors import ConfigurationError, DataError
from chimera.models.model import Task

if TYPE_CHECKING:
    from torch import Tensor

LossFunction: TypeAlias = "Callable[[Tensor, Tensor], Tensor]"
"""``loss(outputs, targets) -> scalar``, the mean over the batch."""

METRICS: dict[Task, tuple[str, ...]] = {"classification": ("accuracy",), "regression": ("mse", "r2")}
"""The default metrics of losses, by task."""

IGNORED = -100
"""The class index of targets that do not count, as in torch."""

FLOAT32, INT64 = np.dtype(np.float32), np.dtype(np.int64)


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
        return replace(self, task=task, metrics=METRICS[task])

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
