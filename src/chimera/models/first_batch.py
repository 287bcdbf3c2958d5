"""Checks of losses on the first batch: loss functions of users average over its rows, `nll` gets log-probabilities.

`cross-entropy` gets outputs before a softmax, and `bce-with-logits` before a sigmoid.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from chimera.core.batch import Batch, leaves, mapped, rows_of
from chimera.core.errors import ConfigurationError
from chimera.models.loss import Loss

if TYPE_CHECKING:
    from torch import Tensor

CHECKED = "bce-with-logits", "cross-entropy", "nll"
"""Losses by name that `check_loss` checks."""
_TOLERANCE = 1e-4  # relative difference of a sum: of the losses of two parts of a batch, or of probabilities
_ROUNDING = 0.01  # of a logarithm of a probability, in bfloat16 as well
_UNCHANGING = {  # names of operations that change no value
    "Alias", "Clone", "Permute", "ReshapeAlias", "Select", "Slice", "Squeeze", "T", "ToCopy", "Transpose", "UnsafeView",
    "Unsqueeze", "View",
}  # fmt: skip
_MIN_PART = 1e-3  # least share of each part: a mean equals the sum if no row of one part counts


def check_loss(loss: Loss, outputs: Any, targets: Any, value: Tensor) -> bool:
    """Check a loss on the outputs and targets of a batch; return whether the batch was large enough.

    Parameters
    ----------
    outputs : with their gradients: the operation that made them is examined.
    value : the loss of the batch.

    Raises
    ------
    ConfigurationError : see `_check_mean`; the outputs for ``nll`` are not log-probabilities; or those for ``cross-entropy``
        or ``bce-with-logits`` are probabilities.
    """
    if loss.name == "cross-entropy":
        return _check_logits(outputs)
    if loss.name == "bce-with-logits":
        return _check_single_logits(outputs)
    if loss.name != "nll":
        return _check_mean(loss, outputs, targets, value)
    if outputs.max() > _ROUNDING:
        raise ConfigurationError(
            "the loss 'nll' needs logarithms of probabilities, as after a log_softmax: for other outputs use 'cross-entropy'"
        )
    return True


def _check_logits(outputs: Tensor) -> bool:
    """Check that the outputs for ``cross-entropy``, which applies a softmax, are not the result of one.

    Return whether the batch was large enough: the outputs for a single sample may add up to 1 by chance.

    Raises
    ------
    ConfigurationError : the outputs of each sample are probabilities.
    """
    if outputs.ndim != 2 or outputs.shape[1] < 2 or outputs.min() < 0:
        return True
    if len(outputs) < 2:
        return False
    if not ((outputs.sum(1) - 1).abs() <= _TOLERANCE).all():  # not numbers are rejected elsewhere
        return True
    raise ConfigurationError(
        "the outputs for the loss 'cross-entropy' are probabilities, as after a softmax, which the loss applies itself: remove "
        "the softmax from the model, or use a log_softmax"
    )


def _check_single_logits(outputs: Tensor) -> bool:
    """Check that the outputs for ``bce-with-logits``, which applies a sigmoid, are not the result of one; return True.

    The values do not tell: logits may be from 0 to 1, too. The operation that made the outputs does. That of a compiled module
    is not known.

    Raises
    ------
    ConfigurationError : a sigmoid made the outputs.
    """
    made_by: Any = outputs.grad_fn
    while made_by is not None and _operation(made_by) in _UNCHANGING:
        made_by = made_by.next_functions[0][0]
    if made_by is None or _operation(made_by) != "Sigmoid":
        return True
    raise ConfigurationError(
        "the outputs for the loss 'bce-with-logits' are probabilities, as after a sigmoid, which the loss applies itself: "
        "remove the sigmoid from the model, or use the loss 'bce'"
    )


def _operation(gradient: Any) -> str:
    """Return the name of the operation of a node of the graph, such as ``Sigmoid`` of ``SigmoidBackward0``."""
    return str(gradient.name()).partition("Backward")[0]


def _check_mean(loss: Loss, outputs: Any, targets: Any, value: Tensor) -> bool:
    """Check a loss function of the user on the outputs and targets of a batch; return whether the batch was large enough.

    The loss of the batch is compared with those of its parts, for two ways to divide the batch. A mean is never the sum of two
    values that both have its sign. The loss function and the random generators keep their state.

    Parameters
    ----------
    value : the loss of the batch.

    Raises
    ------
    ConfigurationError : the loss is the sum over the rows.
    """
    both = (outputs, targets)
    rows = {len(leaf) for leaf in leaves(both)}
    if rows == {1}:
        return False
    if len(rows) != 1 or min(rows) < 2 or getattr(value, "numel", int)() != 1:
        return True  # not divisible by rows
    count, whole = rows.pop(), value.item()
    divided = [_parts(loss, both, cut, count) for cut in {count // 2, max(count // 4, 1)}]
    if not all(parts and _add_up(whole, *parts) for parts in divided):
        return True
    raise ConfigurationError(
        f"the loss {loss.name!r} sums over the rows of a batch: it is {whole:.4g}, the sum of its values for two parts. A "
        "run needs the mean, since a sum depends on the number of workers: return the mean, such as the sum / len(targets)"
    )


def _add_up(whole: float, first: float, second: float) -> bool:
    size = abs(whole)
    both_count = first * second > 0 and min(abs(first), abs(second)) > _MIN_PART * size
    return both_count and abs(first + second - whole) <= _TOLERANCE * size


def _parts(loss: Loss, both: Batch, cut: int, count: int) -> tuple[float, float] | None:
    """Return the losses of the first ``cut`` rows and of the others; None if the function fails on a part of a batch."""
    import torch

    function: Any = loss.function
    try:
        copied = mapped(lambda leaf: leaf.detach().clone(), both)
    except Exception:  # outputs of any class, or too little memory for a copy
        return None
    if not isinstance(function, FunctionType):  # an object may have a state, such as a moving average
        try:
            function = deepcopy(function)
        except Exception:  # any object of the user
            return None
    with torch.no_grad(), _kept_generators(next(leaves(copied)).device):
        try:
            first, second = (
                float(replace(loss, function=function)(*rows_of(copied, part)))
                for part in (slice(cut), slice(cut, count))
            )
        except Exception:  # any mistake of the user's code on fewer rows than in a batch
            return None
    return first, second


@contextmanager
def _kept_generators(device: Any) -> Iterator[None]:
    """Restore the random generators of torch, NumPy and Python at the end of the context."""
    import torch

    numpy_state, python_state = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=_accelerator(device)):
            yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)


def _accelerator(device: Any) -> str:
    return "cuda" if device.type == "cpu" else str(device.type)
