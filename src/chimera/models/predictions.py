"""The predictions of a torch model: classes or values from the outputs of its module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from chimera.models.model import Task

if TYPE_CHECKING:
    from torch import Tensor


def predictions_of(outputs: Tensor, task: Task, loss: str) -> NDArray[Any]:
    """Return classes, shape (n,), or values, shape (n,) or (n, k); ``loss`` is the name of the loss."""
    if task == "regression":
        values = outputs
    elif loss == "bce":
        values = (outputs > 0.5).long()
    elif loss == "bce-with-logits" or outputs.ndim == 1 or outputs.shape[1] == 1:
        values = (outputs > 0).long()
    else:
        values = outputs.argmax(1)
    column = values.ndim == 2 and values.shape[1] == 1
    return (values[:, 0] if column else values).cpu().numpy().copy()


def as_array(made: Any) -> NDArray[Any]:
    """Return predictions that a user's function made, a tensor or an array, as an array."""
    return np.asarray(made.cpu().numpy() if hasattr(made, "cpu") else made)
