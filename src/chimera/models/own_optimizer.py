"""Values that a run and a model exchange: the position of a step, the length of the run, and the model's own optimizer."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple


class Position(NamedTuple):
    """The position of a step in a run, each number counted from 0.

    Attributes
    ----------
    rank : of the worker.
    step : number of the worker's batch since the start of the run.
    epoch, batch : of this step: the epoch, and the number of the batch in it.
    """

    rank: int = 0
    step: int = 0
    epoch: int = 0
    batch: int = 0


class RunLength(NamedTuple):
    """The length of a run: steps of its optimizer, and passes over the training data; None if it is not known in advance."""

    steps: int | None
    epochs: float | None


class OwnOptimizer(NamedTuple):
    """The optimizer that a model brings.

    Attributes
    ----------
    optimizer : an instance of a class of `torch.optim`, over the model's parameters.
    scheduler : a scheduler of `torch.optim.lr_scheduler` of this optimizer; None if the learning rate is constant.
    interval, frequency : the scheduler takes a step after each ``frequency`` epochs or steps.
    monitor : the metric that a `ReduceLROnPlateau` monitors; None: that of the run.
    """

    optimizer: Any
    scheduler: Any = None
    interval: Literal["epoch", "step"] = "epoch"
    frequency: int = 1
    monitor: str | None = None
