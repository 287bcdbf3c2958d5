"""The worker of a pipeline: an actor that holds a part of the model and computes it on micro-batches."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.batch import pair_of
from chimera.core.call import work
from chimera.core.device import copy_to, to_host
from chimera.core.engine import Group
from chimera.data.dataset import RowData
from chimera.data.order import Order
from chimera.strategies.model_partition import ModelPartition
from chimera.training.messages.rejection import Applied
from chimera.training.model_parallel.part_holder import BACK, THERE, PartHolder
from chimera.training.model_parallel.partitioning import Part
from chimera.training.optimizers.optimizer import OptimizerSettings


class Stage(PartHolder):
    """One stage, or one slice of a stage, of one pipeline.

    Parameters
    ----------
    rank : the worker's number.
    part : its own copy of the part.
    dataset : the training set; None for middle stages, which receive activations only.
    order : the rows that the pipeline reads in each step; the same for all its stages.
    parts : the partition of the model.
    optimizer, seed, device : see `PartHolder`; each micro-batch has its own seed.
    """

    def __init__(
        self,
        rank: int,
        part: Part,
        dataset: RowData | None,
        order: Order,
        *,
        parts: ModelPartition,
        optimizer: OptimizerSettings,
        seed: int = 0,
        device: str | None = None,
    ) -> None:
        super().__init__(f"worker {rank}", rank, part, dataset, order, optimizer=optimizer, seed=seed, device=device)
        self._parts = parts
        self._pipeline, place = divmod(rank, parts.readers)
        stage, self._slice = divmod(place, parts.slices)
        self._last = stage == parts.stages - 1
        self._passes = part.model.stage(part.layers, recompute=parts.recompute)

    def forward(self, micro: int, inputs: NDArray[Any] | None = None, team: Group | None = None) -> NDArray[Any]:
        """Run the forward pass of a micro-batch; return the activations or the loss. The first stage reads its inputs itself.

        ``team`` is the group of the workers that hold the slices of this stage, in order; all get the same calls.
        """
        if micro == 0:
            self._passes.begin()
            self._loss = 0.0
        rows, batch = self._rows(micro)
        if inputs is None:
            inputs = self._taken(rows, micro)[0]
            work(samples=0 if self._slice else len(rows), effort=0)
        targets = self._taken(rows, micro)[1] if self._last and self._dataset is not None else None
        weight = len(rows) / batch
        work(effort=len(rows) * self._share * THERE)
        with self._slice_group(team):
            outputs = self._passes.forward(micro, inputs, self._seed_of(micro), targets, weight)
        if self._last:
            self._loss += weight * float(outputs)
        else:
            self._sends(outputs)
        return outputs

    def backward(self, micro: int, gradient: NDArray[Any] | None = None, team: Group | None = None) -> NDArray[Any]:
        """Run the backward pass from the gradient of the activations, or from the loss; return the gradient of the inputs."""
        rows, _ = self._rows(micro)
        work(effort=len(rows) * self._share * (BACK + THERE * self._parts.recompute))
        with self._slice_group(team):
            back = self._passes.backward(micro, None if self._last else gradient)
        self._sends(back)
        return back

    def update(self, group: Group | None = None) -> Applied:
        """Step with the gradient of the whole batch, averaged over the group if there is one.

        Raises
        ------
        NonFiniteError : the gradient is NaN or infinite; the step was not taken.
        """
        gradient = self._passes.gradient()
        if group is not None:
            mean = to_host(gradient)
            self._gives(mean)
            group.all_reduce(mean)
            if mean is not gradient:
                copy_to(mean, gradient)
        return self._stepped(gradient, losses=int(self._last and self._slice == 0))

    def _gives(self, array: NDArray[np.float32]) -> None:
        """Count the input of a collective, and return it."""
        self._tally.gave(array)
        self._tally.reduced(array)

    def _slice_group(self, team: Group | None) -> AbstractContextManager[None]:
        if team is None:
            return nullcontext()
        from chimera.models.slices.collectives import slice_group

        return slice_group(team, self._gives)

    def _peak_bytes(self) -> int:
        return self._passes.peak_bytes

    def _rows(self, micro: int) -> tuple[NDArray[np.int64], int]:
        """Return the rows of a micro-batch, and the number of rows of the batch."""
        assert self._order is not None
        rows = self._order.batch(self._step)
        return np.array_split(rows, self._parts.micro_batches)[micro], len(rows)

    def _taken(self, rows: NDArray[np.int64], micro: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return inputs and targets of a micro-batch; equal in the first and in the last stage, also if reading is random."""
        assert self._dataset is not None
        return pair_of(self._dataset.take(rows, (self._seed_of(micro),)), "a pipeline")

    def _seed_of(self, micro: int) -> int:
        return self._seed_of_step(self._pipeline) * self._parts.micro_batches + micro
