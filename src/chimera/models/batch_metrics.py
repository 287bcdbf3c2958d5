"""Metrics that read outputs and batches as torch models have them, and not only outputs and targets as arrays."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

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
    """The exponential of the mean loss, for losses in nats per token."""

    def __init__(self) -> None:
        self.total, self.rows = 0.0, 0

    def add_batch(self, outputs: Any, batch: Any, loss: float, rows: int) -> None:  # noqa: ARG002, D102
        self.total, self.rows = self.total + loss * rows, self.rows + rows

    def result(self) -> float:  # noqa: D102
        return math.exp(min(self.total / self.rows, 700.0))


class MeanOfBatches(BatchMetric):
    """The mean over all samples of a user's function ``(outputs, batch) -> number``, the mean over a batch."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self.function, self.total, self.rows = function, 0.0, 0

    def add_batch(self, outputs: Any, batch: Any, loss: float, rows: int) -> None:  # noqa: ARG002, D102
        self.total, self.rows = self.total + float(self.function(outputs, batch)) * rows, self.rows + rows

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
        self.metric.update(outputs.detach().cpu(), torch.as_tensor(targets))

    def result(self) -> float:  # noqa: D102
        return float(self.metric.compute())
