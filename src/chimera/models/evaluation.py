"""The evaluation of a torch model: mean loss and metrics over the pieces of a data set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.batch import Batch, samples_in, targets_of
from chimera.core.errors import ConfigurationError
from chimera.models.batch_metrics import BatchMetric
from chimera.models.flat_module import FlatModule
from chimera.models.metrics import Metric

if TYPE_CHECKING:
    from torch import Tensor

    from chimera.models.step import Outcome


class Evaluation:
    """Sums of one evaluation.

    Parameters
    ----------
    factories : a factory of each metric by name.
    by_default : the metrics are the default: those that do not fit the outputs are left out.
    predictions : function of outputs that returns predictions.
    """

    def __init__(
        self,
        factories: Mapping[str, Callable[[], Metric | BatchMetric]],
        predictions: Callable[[Tensor], NDArray[Any]],
        *,
        by_default: bool,
    ) -> None:
        self._metrics = {name: make() for name, make in factories.items()}
        self._by_default, self._predictions = by_default, predictions
        self._total, self._rows = 0.0, 0

    def add(self, found: Outcome, batch: Batch) -> None:
        """Add a piece: its loss and outputs, and the batch they belong to.

        Raises
        ------
        ConfigurationError : metrics of the user need outputs and targets, and there are none.
        """
        rows, loss = samples_in(batch), found.loss.item()
        self._total, self._rows = self._total + loss * rows, self._rows + rows
        of_targets = []
        for metric in self._metrics.values():
            if isinstance(metric, BatchMetric):
                metric.add_batch(found.outputs, batch, loss, rows)
            else:
                of_targets.append(metric)
        if of_targets:
            self._add_to(of_targets, found.outputs, targets_of(batch))

    def _add_to(self, metrics: list[Metric], outputs: Any, targets: Any) -> None:
        if not hasattr(outputs, "detach") or targets is None:
            if self._by_default:
                self._metrics = {}
                return
            raise ConfigurationError(
                f"the metrics {', '.join(self._metrics)} need outputs and targets: return (loss, outputs) from the step, and "
                "give batches of (inputs, targets) or with 'labels'"
            )
        if (
            self._by_default and outputs.ndim > 2
        ):  # which outputs belong to which target is not known, as for language models
            self._metrics = {}
            return
        predictions, values = self._predictions(outputs), outputs.detach().float().cpu().numpy()
        wanted = targets.numpy() if hasattr(targets, "numpy") else np.asarray(targets)
        for metric in metrics:
            metric.add(values, predictions, wanted)

    def figures(self) -> dict[str, float]:
        """Return the mean loss over all rows, and the metrics."""
        return {"loss": self._total / self._rows} | {name: metric.result() for name, metric in self._metrics.items()}


@contextmanager
def evaluating(flat: FlatModule) -> Iterator[None]:
    """Switch to evaluation mode without gradients inside the block; restore each submodule's mode after it."""
    import torch

    flat.rebind()
    flat.upload()
    training = [part for part in flat.module.modules() if part.training]
    flat.module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part in training:
            part.training = True
