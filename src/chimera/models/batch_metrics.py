"""Metrics that read outputs and batches as torch models have them, and not only outputs and targets as arrays."""

from __future__ import annotations

import copy
import math
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.batch import targets_of
from chimera.core.errors import ConfigurationError


class BatchMetric(ABC):
    """The accumulator of a metric that reads whole batches; for torch models."""

    @abstractmethod
    def add_batch(self, outputs: Any, batch: Any, loss: float, rows: int) -> None:
        """Add a piece: outputs (a tensor or None), the batch, its mean loss and its number of samples."""

    @abstractmethod
    def result(self) -> float:
        """Return the metric over all pieces."""


class Perplexity(BatchMetric):
    """The exponential of the mean loss, for losses in nats per token that are means over the predicted tokens of a batch.

    Each predicted token has the same weight, see `tokens_in`, so the result does not depend on the division into batches.

    Parameters
    ----------
    shifted : see `tokens_in`.
    """

    def __init__(self, *, shifted: bool | None = None) -> None:
        self.total, self.tokens, self._shifted = 0.0, 0, shifted

    def add_batch(self, outputs: Any, batch: Any, loss: float, rows: int) -> None:  # noqa: D102
        tokens = tokens_in(outputs, batch, rows, shifted=self._shifted)
        if tokens:  # without tokens, the mean loss is NaN
            self.total, self.tokens = self.total + loss * tokens, self.tokens + tokens

    def result(self) -> float:  # noqa: D102
        return math.exp(min(self.total / self.tokens, 700.0)) if self.tokens else math.nan

    def sums(self) -> NDArray[np.float64]:
        """Return the sum of the losses of tokens, and the number of tokens."""
        return np.array([self.total, self.tokens], np.float64)

    def add_sums(self, sums: NDArray[np.float64]) -> None:
        """Add the result of `sums` for other rows."""
        total, tokens = sums.tolist()
        self.total, self.tokens = self.total + total, self.tokens + int(tokens)


def tokens_in(outputs: Any, batch: Any, rows: int, *, shifted: bool | None = None) -> int:
    """Return the number of targets of a batch that have a loss: those that are not -100.

    If the model shifts the labels of a mapping, the first token of each row has no loss, unless a learned prompt comes before
    it (outputs of more than t positions). Without countable targets the number is ``rows``, the number of samples.

    Parameters
    ----------
    outputs, batch, rows : see `BatchMetric.add_batch`.
    shifted : whether the model shifts the labels of a mapping, as a causal model does, which predicts each token from the
        tokens before it. If this is not known, the labels are taken as shifted if they equal ``input_ids``, shape (n,
        t), or if there are none.
    """
    targets, inputs = targets_of(batch), batch.get("input_ids") if isinstance(batch, Mapping) else None
    if targets is None and inputs is not None:
        mask = batch.get("attention_mask")
        counted = np.asarray(np.ones(np.shape(inputs)) if mask is None else mask) != 0
        repeated = True
    elif targets is None or np.asarray(targets).dtype.kind not in "iu":
        return rows
    else:
        wanted: NDArray[Any] = np.asarray(targets)
        counted = wanted != -100
        repeated = inputs is not None and np.shape(inputs) == wanted.shape
        repeated = repeated and bool(np.array_equal(wanted[counted], np.asarray(inputs)[counted]))
    if isinstance(batch, Mapping) and (repeated if shifted is None else shifted) and counted.ndim == 2 and len(counted):
        prompted = getattr(outputs, "ndim", 0) == 3 and outputs.shape[1] > len(counted[0])
        counted = counted if prompted else counted[:, 1:]
    return int(np.count_nonzero(counted))


class MeanOfBatches(BatchMetric):
    """The mean over all samples of a user's function ``(outputs, batch) -> number``, the mean over a batch."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self.function, self.total, self.rows = function, 0.0, 0

    def add_batch(self, outputs: Any, batch: Any, loss: float, rows: int) -> None:  # noqa: ARG002, D102
        self.total, self.rows = (
            self.total + number_of(self.function(outputs, batch), self.function) * rows,
            self.rows + rows,
        )

    def result(self) -> float:  # noqa: D102
        return self.total / self.rows


class TorchMetric(BatchMetric):
    """A copy of an object of ``torchmetrics``, which accumulates outputs and targets itself."""

    def __init__(self, metric: Any) -> None:
        self.metric = copy.deepcopy(metric)
        self.metric.reset()

    def add_batch(self, outputs: Any, batch: Any, loss: float, rows: int) -> None:  # noqa: ARG002, D102
        import torch

        targets = targets_of(batch)
        if outputs is None or targets is None:
            raise ConfigurationError(f"the metric {type(self.metric).__name__} needs outputs and targets")
        self.metric.update(outputs.detach().cpu(), torch.as_tensor(_writable(targets)))

    def result(self) -> float:  # noqa: D102
        return number_of(self.metric.compute(), type(self.metric))


def number_of(value: Any, metric: Any) -> float:
    """Return the number that a metric of the user returned.

    Raises
    ------
    ConfigurationError : it is no number, such as None of a function without ``return``, or an array of several.
    """
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        shape = getattr(value, "shape", None)
        found = reprlib.repr(value) if shape is None else f"an array of shape {tuple(shape)}"
        name = getattr(metric, "__name__", type(metric).__name__)
        raise ConfigurationError(f"the metric {name!r} returned {found}: return one number") from None


def _writable(targets: Any) -> Any:
    """Return targets; copied if they are a read-only array, about which torch warns."""
    return targets.copy() if isinstance(targets, np.ndarray) and not targets.flags.writeable else targets
