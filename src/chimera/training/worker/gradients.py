"""The batches of one worker, and what its model makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from chimera.core.call import work
from chimera.core.parameters import Flat
from chimera.data.dataset import Dataset
from chimera.data.order import Order
from chimera.models.model import Batch, Model
from chimera.training.messages.rejection import Rejected, fault_of_gradient

_NONE = np.empty(0, np.float32)


class Gradients:
    """Computes the gradient of a step's batch, and rejects it if it is not finite, so that the batch leaves no trace.

    Parameters
    ----------
    rank, model, dataset, order, seed : the worker's, see `Learner`.
    count : is told the mean loss of each batch that was not rejected.

    Attributes
    ----------
    order : which rows the worker reads, step by step.
    flips_labels : whether class y of c is called c - 1 - y, see `Attack`.
    """

    __slots__ = (
        "_ahead", "_at_hand", "_count", "_dataset", "_has_buffers", "_model", "_rank", "_seed", "flips_labels", "order",
    )  # fmt: skip

    def __init__(
        self, rank: int, model: Model, dataset: Dataset, order: Order, *, seed: int, count: Callable[[float], None]
    ) -> None:
        self._rank, self._model, self._dataset, self._seed, self._count = rank, model, dataset, seed, count
        self.order, self.flips_labels = order, False
        self._ahead: dict[int, Batch] = {}  # batches that were taken early, by step
        self._at_hand = isinstance(dataset, Dataset)  # or else what the order deals may still be on its way
        self._has_buffers = model.buffers().size > 0

    def next(self, model: Any, step: int) -> tuple[Any, Rejected | None]:
        """Return the gradient of the step's batch, where ``model`` has it, and whether it is to be rejected."""
        buffers = self.buffers()
        gradient, loss = model.gradient(self._batch(step))
        return gradient, self.verdict(gradient, loss, step, buffers)

    def of(self, part: Any, model: Any, step: int, share: float, *, own: bool) -> tuple[Any, Rejected | None]:
        """Return ``share`` times the gradient of the batch of one whose data are here too, as that one would compute it."""
        buffers, batch = self.buffers(), self._taken(part, step)
        self._model.reseed((self._seed * 1_000_003 + part.rank) * 1_000_003 + step)
        work(samples=len(batch[0]) if own else 0, effort=len(batch[0]))
        gradient, loss = model.gradient(batch)
        if why := fault_of_gradient(gradient, loss):
            self.restore(buffers)
            return gradient, Rejected(part.rank, step, why)
        if own:
            self._count(loss)
        gradient *= np.float32(share)
        return gradient, None

    def descend(self, take: Callable[[Batch], float], step: int) -> Rejected | None:
        """Let ``take`` step with the step's batch; return whether its loss is to be rejected: the weights are spoilt then."""
        buffers = self.buffers()
        return self.verdict(_NONE, take(self._batch(step)), step, buffers)

    def computed(self, model: Any, step: int, again: bool = False) -> tuple[Any, float]:
        """Return gradient and loss of the step's batch; ``again`` if its samples were counted before."""
        gradient, loss = model.gradient(self._batch(step, again))
        return gradient, loss

    def verdict(self, gradient: Flat, loss: float, step: int, buffers: Flat | None) -> Rejected | None:
        """Count the loss, or say why the gradient is rejected and undo what its batch did to the buffers."""
        if why := fault_of_gradient(gradient, loss):
            self.restore(buffers)
            return Rejected(self._rank, step, why)
        self._count(loss)
        return None

    def buffers(self) -> Flat | None:
        """Return the buffers as they are before a batch, if the model has any."""
        return self._model.buffers() if self._has_buffers else None

    def restore(self, buffers: Flat | None) -> None:
        """Undo what a batch did to the buffers."""
        if buffers is not None:
            self._model.load_buffers(buffers)

    def prepare(self, step: int) -> None:
        """Take the batch of the step that most likely comes next, where that needs nobody else; others forget it again."""
        if self._at_hand:
            self._ahead = {step: self._taken(self.order, step)}

    def ahead(self, step: int) -> Batch:
        """Return the batch of a step that is still to come, with the model's randomness as it will be then."""
        self._ahead[step] = batch = self._taken(self.order, step)
        self._reseed(step)
        return batch

    def forget_ahead(self) -> None:
        """Take all batches anew from now on."""
        self._ahead = {}

    def _batch(self, step: int, again: bool = False) -> Batch:
        batch = self._ahead.pop(step, None) or self._taken(self.order, step)
        self._reseed(step)
        if not again:
            work(samples=len(batch[0]))
        return batch

    def _taken(self, order: Any, step: int) -> Batch:
        inputs, targets = self._dataset.take(order.batch(step))
        return inputs, self._dataset.outputs - 1 - targets if self.flips_labels else targets

    def _reseed(self, step: int) -> None:
        """Let what is random at a step depend on nothing that ran before."""
        self._model.reseed((self._seed * 1_000_003 + self._rank) * 1_000_003 + step)
