"""Gradients of one worker's batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from chimera.core.batch import Batch, samples_in, targets_of, with_targets
from chimera.core.call import work
from chimera.core.parameters import Flat
from chimera.data.dataset import Dataset, TrainingData
from chimera.data.loader import Loading, Reader
from chimera.data.order import Order
from chimera.data.samples import SampleDataset
from chimera.models.batch_work import BatchWork
from chimera.models.model import Model
from chimera.models.own_optimizer import Position
from chimera.training.messages.rejection import Rejected, fault_of_gradient
from chimera.training.messages.tally import Tally


class Gradients:
    """Computes gradients of batches. A gradient that is not finite is rejected, and its batch changes no state.

    Parameters
    ----------
    rank, model, dataset, order, seed, loading : see `Learner`.
    count : called with the mean loss of each batch that was not rejected.

    Attributes
    ----------
    order : the order in which the worker reads its rows.
    flips_labels : whether label y of c classes is replaced by c - 1 - y, see `Attack`.
    """

    __slots__ = (
        "_ahead", "_at_hand", "_count", "_dataset", "_flops", "_has_buffers", "_locate", "_model", "_rank", "_reader", "_seed",
        "_tokens", "_work_of", "flips_labels", "order",
    )  # fmt: skip

    def __init__(
        self,
        rank: int,
        model: Model,
        dataset: TrainingData,
        order: Order,
        *,
        seed: int,
        count: Callable[[float], None],
        loading: Loading,
    ) -> None:
        self._rank, self._model, self._dataset, self._seed, self._count = rank, model, dataset, seed, count
        self._reader = Reader(dataset, seed, loading)
        self.order, self.flips_labels = order, False
        self._ahead: dict[int, Batch] = {}  # prefetched batches, by step
        # Otherwise a batch may still be in preparation, by another actor or a reading process.
        self._at_hand = isinstance(dataset, Dataset | SampleDataset) and not self._reader.reads_ahead
        self._has_buffers = model.buffers().size > 0
        self._locate: Callable[[Position], None] | None = getattr(model, "locate", None)
        self._work_of: Callable[[Batch], BatchWork | None] | None = getattr(model, "work_of", None)
        self._tokens, self._flops = 0, 0.0

    def next(self, model: Any, step: int) -> tuple[Any, Rejected | None]:
        """Return the gradient of the step's batch, on the device of ``model``; and its rejection, if it is not finite."""
        buffers = self.buffers()
        gradient, loss = model.gradient(self._batch(step))
        return gradient, self.verdict(gradient, loss, step, buffers)

    def of(self, part: Any, model: Any, step: int, share: float, *, own: bool) -> tuple[Any, Rejected | None]:
        """Return ``share`` times the gradient of a batch of another worker's data, as that worker would compute it."""
        buffers, batch = self.buffers(), self._with_flips(self._reader.read(part, part.rank, step))
        self._begin(part.rank, part, step)
        samples = samples_in(batch)
        work(samples=samples if own else 0, effort=samples)
        if own:
            self._count_work(batch)
        gradient, loss = model.gradient(batch)
        if reason := fault_of_gradient(gradient, loss):
            self.restore(buffers)
            return gradient, Rejected(part.rank, step, reason)
        if own:
            self._count(loss)
        gradient *= np.float32(share)
        return gradient, None

    def descend(self, take: Callable[[Batch], float], step: int) -> Rejected | None:
        """Call ``take`` with the step's batch. Return the rejection if its loss is not finite: the weights are then invalid."""
        buffers = self.buffers()
        return self.verdict(None, take(self._batch(step)), step, buffers)

    def count(self, losses: Sequence[float]) -> None:
        """Count the batches of steps that were taken together with those of other workers."""
        for loss in losses:
            work(samples=self.order.batch_size)
            self._count(loss)

    def computed(self, model: Any, step: int, again: bool = False) -> tuple[Any, float]:
        """Return gradient and loss of the step's batch. With ``again``, its samples are not counted a second time."""
        gradient, loss = model.gradient(self._batch(step, again))
        return gradient, loss

    def verdict(self, gradient: Flat | None, loss: float, step: int, buffers: Flat | None) -> Rejected | None:
        """Count the loss; or restore the buffers and return the rejection if gradient or loss are not finite."""
        if reason := fault_of_gradient(gradient, loss):
            self.restore(buffers)
            return Rejected(self._rank, step, reason)
        self._count(loss)
        return None

    def buffers(self) -> Flat | None:
        """Return a copy of the model's buffers before a batch; None if it has none."""
        return self._model.buffers() if self._has_buffers else None

    def restore(self, buffers: Flat | None) -> None:
        """Restore the buffers from before a batch."""
        if buffers is not None:
            self._model.load_buffers(buffers)

    def prepare(self, step: int) -> None:
        """Prefetch the batch of the step that probably comes next, if the data is in this process."""
        if self._at_hand:
            self._ahead = {step: self._taken(self.order, step)}

    def ahead(self, step: int) -> Batch:
        """Return the batch of a future step, and seed the model as for that step."""
        self._ahead[step] = batch = self._taken(self.order, step)
        self._begin(self._rank, self.order, step)
        return batch

    def forget_ahead(self) -> None:
        """Discard prefetched batches."""
        self._ahead = {}

    def place(self) -> bytes:
        """Return the place in data that is read in sequence, see `Reader.place`."""
        return self._reader.place(self._rank)

    def continue_at(self, place: bytes) -> None:
        """Continue at a place that `place` returned."""
        self._reader.go_to(self._rank, place)

    def _batch(self, step: int, again: bool = False) -> Batch:
        batch = self._ahead.pop(step, None) if self._ahead else None
        if batch is None:
            batch = self._taken(self.order, step)
        self._begin(self._rank, self.order, step)
        if not again:
            work(samples=samples_in(batch))
            if self._work_of is not None:
                self._count_work(batch)
        return batch

    def report_work(self, tally: Tally) -> None:
        """Write tokens and FLOPs since the last report, and the peak of the device, into a tally."""
        tally.tokens, tally.flops, self._tokens, self._flops = self._tokens, self._flops, 0, 0.0
        if self._work_of is not None and (peak := getattr(self._model, "peak_flops", None)) is not None:
            tally.peak_flops, tally.worker = peak() or 0.0, f"worker {self._rank}"

    def _count_work(self, batch: Batch) -> None:
        if self._work_of is not None and (done := self._work_of(batch)) is not None:
            self._tokens += done.tokens
            self._flops += done.flops

    def _taken(self, order: Any, step: int) -> Batch:
        batch = self._reader.batch(order, self._rank, step)
        return self._with_flips(batch) if self.flips_labels else batch

    def _with_flips(self, batch: Batch) -> Batch:
        return with_targets(batch, self._dataset.outputs - 1 - targets_of(batch)) if self.flips_labels else batch

    def _begin(self, rank: int, order: Order, step: int) -> None:
        """Seed the model so that randomness at a step does not depend on earlier steps; report the step's position to it."""
        self._model.reseed((self._seed * 1_000_003 + rank) * 1_000_003 + step)
        if self._locate is not None:
            epoch = int(step / order.steps_per_epoch + 1e-9)
            self._locate(Position(rank, step, epoch, step - math.ceil(epoch * order.steps_per_epoch - 1e-9)))
