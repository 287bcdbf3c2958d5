"""The evaluation of a torch model: mean loss and metrics over the pieces of a data set."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.batch import Batch, leaves, samples_in, targets_of
from chimera.core.errors import ConfigurationError
from chimera.models.batch_metrics import BatchMetric
from chimera.models.flat_module import FlatModule
from chimera.models.metrics import Metric
from chimera.models.sums import Sums

if TYPE_CHECKING:
    from torch import Tensor

    from chimera.models.step import Outcome


_SMALL = 5_000_000
"""Elements of a small data set: rows times parameters, plus inputs. One thread evaluates it in a few milliseconds."""


class Evaluation:
    """One evaluation.

    Parameters
    ----------
    sums : the sums of no rows, to which those of each piece are added.
    predictions : function of outputs that returns predictions.
    own_step : whether the loss is that of a user's step, which may read other parts of a batch than the last as targets.
    """

    def __init__(self, sums: Sums, predictions: Callable[[Tensor], NDArray[Any]], *, own_step: bool = False) -> None:
        self.sums, self._predictions, self._own_step = sums, predictions, own_step

    def add(self, found: Outcome, batch: Batch) -> None:
        """Add a piece: its loss and outputs, and the batch they belong to.

        Raises
        ------
        ConfigurationError : metrics of the user need outputs and targets, and there are none.
        """
        rows, loss = samples_in(batch), found.loss.item()
        self.sums.total, self.sums.rows = self.sums.total + loss * rows, self.sums.rows + rows
        of_targets: list[Metric] = []
        for metric in self.sums.metrics.values():
            if isinstance(metric, BatchMetric):
                metric.add_batch(found.outputs, batch, loss, rows)
            else:
                of_targets.append(metric)
        if of_targets and self.sums.by_default and self._own_step and _has_parts(batch):
            self.sums.metrics = {}  # it is not known which part holds the targets: the last one may be weights of samples
        elif of_targets:
            self._add_to(of_targets, found.outputs, targets_of(batch))

    def _add_to(self, metrics: list[Metric], outputs: Any, targets: Any) -> None:
        if not hasattr(outputs, "detach") or targets is None:
            if self.sums.by_default:
                self.sums.metrics = {}
                return
            raise ConfigurationError(
                f"the metrics {', '.join(self.sums.metrics)} need outputs and targets: return (loss, outputs) from the step, "
                "and give batches of (inputs, targets) or with 'labels'"
            )
        if (
            self.sums.by_default and outputs.ndim > 2
        ):  # it is not known which outputs belong to which target, as for language models
            self.sums.metrics = {}
            return
        predictions, values = self._predictions(outputs), outputs.detach().float().cpu().numpy()
        wanted = targets.numpy() if hasattr(targets, "numpy") else np.asarray(targets)
        for metric in metrics:
            metric.add(values, predictions, wanted)


def _has_parts(batch: Batch) -> bool:
    return isinstance(batch, tuple | list) and len(batch) > 2


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


@contextmanager
def threads_for(batch: Batch, flat: FlatModule) -> Iterator[None]:
    """Evaluate a small data set by one thread inside the block.

    If workers keep all cores busy, several threads would wait for one another, for milliseconds in each layer.
    """
    import torch

    shapes = [leaf.shape for leaf in leaves(batch)]
    work = max((shape[0] for shape in shapes), default=0) * flat.parameters + sum(map(math.prod, shapes))
    before = torch.get_num_threads()
    if before == 1 or work > _SMALL:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
