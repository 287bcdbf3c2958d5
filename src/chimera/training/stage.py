"""The worker of a pipeline: an actor that holds a part of the model, and sends micro-batches through it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.call import work
from chimera.core.engine import Group
from chimera.core.errors import NonFiniteError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat
from chimera.data.dataset import Dataset
from chimera.data.order import Order
from chimera.models.device import move, near
from chimera.strategies.strategy import Parts
from chimera.training.cutting import Part
from chimera.training.optimizer import FlatOptimizer, OptimizerSettings
from chimera.training.rejection import ADVICE, Applied, fault_of_gradient
from chimera.training.tally import Tally

_THERE, _BACK = 1 / 3, 2 / 3  # what a pass forward and one backward are worth of a sample: a gradient is two products


class Stage:
    """One part of the model, in one pipeline.

    Parameters
    ----------
    rank : the worker's number.
    part : what it computes; its own copy.
    dataset : the training set; None in the middle, which sees activations only.
    order : which rows the pipeline reads, step by step; all its stages have the same.
    parts : how the model was cut.
    optimizer : what steps the part.
    seed : with step, micro-batch and layer, the seed of whatever is random in a forward pass.
    device : where it computes, see `chimera.models.device`; by default on the CPU.
    """

    hosted = True

    def __init__(
        self,
        rank: int,
        part: Part,
        dataset: Dataset | None,
        order: Order,
        *,
        parts: Parts,
        optimizer: OptimizerSettings,
        seed: int = 0,
        device: str | None = None,
    ) -> None:
        if device is not None:
            move(part.model, device, rank)
        self._rank, self._model, self._share, self._dataset, self._order = rank, part.model, part.share, dataset, order
        self._parts, self._seed, self._settings = parts, seed, optimizer
        self._pipeline, self._place = divmod(rank, parts.stages)
        self._last = self._place == parts.stages - 1
        self._near, self._passes = near(part.model), part.model.stage(part.first_layer, recompute=parts.recompute)
        self._optimizer: FlatOptimizer | None = None
        self._step, self._loss = 0, 0.0
        self._tally = Tally()

    def forward(self, micro: int, inputs: NDArray[Any] | None = None) -> NDArray[Any]:
        """Send a micro-batch through, and return the activations, or the loss; the first stage reads its inputs itself."""
        if micro == 0:
            self._passes.begin()
            self._loss = 0.0
        rows, batch = self._rows(micro)
        if inputs is None:
            assert self._dataset is not None
            inputs = self._dataset.take(rows)[0]
            work(samples=len(rows), effort=0)
        targets = self._dataset.take(rows)[1] if self._last and self._dataset is not None else None
        weight = len(rows) / batch
        outputs = self._passes.forward(micro, inputs, self._seed_of(micro), targets, weight)
        work(effort=len(rows) * self._share * _THERE)
        if self._last:
            self._loss += weight * float(outputs)
        else:
            self._sends(outputs)
        return outputs

    def backward(self, micro: int, gradient: NDArray[Any] | None = None) -> NDArray[Any]:
        """Send the gradient of the activations back, and return that of the inputs; the last stage begins from the loss."""
        rows, _ = self._rows(micro)
        back = self._passes.backward(micro, None if self._last else gradient)
        work(effort=len(rows) * self._share * (_BACK + _THERE * self._parts.recompute))
        self._sends(back)
        return back

    def update(self, group: Group | None = None) -> Applied:
        """Step with the gradient of the whole batch; with the mean of the group's, if there is one.

        Raises
        ------
        NonFiniteError : the gradient is NaN or infinite; the step was not taken.
        """
        gradient = self._passes.gradient()
        if group is not None:
            self._tally.gave(gradient)
            group.all_reduce(gradient)
            self._tally.reduced(gradient)
        if why := fault_of_gradient(gradient, self._loss):
            raise NonFiniteError(f"rank {self._rank}, step {self._step}: {why}: {ADVICE}")
        self._own_optimizer().step(gradient, self._step)
        work(elements=len(gradient))
        if self._last:
            self._tally.loss += self._loss
            self._tally.losses += 1
        self._step += 1
        return Applied(self._step, 1)

    def weights(self) -> Encoded:
        """Return the parameters of the part."""
        return Encoded("identity", self._model.layout.size, (self._model.parameters(),))

    def samples(self) -> int:
        """Return how many rows the data set has that it reads from; none if it reads nothing."""
        return 0 if self._dataset is None else len(self._dataset)

    def step(self) -> int:
        """Return how many steps it has taken."""
        return self._step

    def tally(self) -> Tally:
        """Return losses and messages since the last time, and what parameters, gradient, optimizer and activations took."""
        done, self._tally = self._tally, Tally()
        held = self._model.layout.size * 8 + sum(array.nbytes for array in self._own_optimizer().state().values())
        done.peak_bytes, done.worker = held + self._passes.peak_bytes, f"worker {self._rank}"
        return done

    def buffers(self) -> Flat:
        """Return what the part carries besides parameters."""
        return self._model.buffers()

    def load_buffers(self, flat: Flat) -> None:
        """Set what the part carries besides parameters."""
        self._model.load_buffers(flat)

    def state(self) -> dict[str, Any]:
        """Return parameters, buffers, what the optimizer remembers, and the step."""
        return {
            "step": self._step,
            "weights": self._model.parameters(),
            "buffers": self._model.buffers(),
            "optimizer": self._own_optimizer().state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` returned."""
        self._model.load(state["weights"])
        self._model.load_buffers(state["buffers"])
        self._own_optimizer().restore(state["optimizer"])
        self._step = state["step"]

    def codec_states(self) -> list[Any]:
        """Return nothing: what it sends is not encoded."""
        return []

    def restore_codecs(self, states: Sequence[Any]) -> None:
        """Do nothing."""

    def local_state(self) -> Mapping[str, Any]:
        """Return nothing: it steps with every batch."""
        return {}

    def restore_local(self, state: Mapping[str, Any]) -> None:
        """Do nothing."""

    def go_to(self, step: int) -> None:
        """Go on with the batch of this step."""
        self._step = step

    def follow(self, order: Order, since: int) -> None:
        """Read other data from now on; ``since`` is the step from which on the order counts."""
        self._order = order
        self.go_to(max(self._step, since))

    def _rows(self, micro: int) -> tuple[NDArray[np.int64], int]:
        """Return the rows of a micro-batch, and how many the batch has."""
        rows = self._order.batch(self._step)
        return np.array_split(rows, self._parts.micro_batches)[micro], len(rows)

    def _seed_of(self, micro: int) -> int:
        step = (self._seed * 1_000_003 + self._pipeline) * 1_000_003 + self._step
        return step * self._parts.micro_batches + micro

    def _sends(self, array: NDArray[Any]) -> None:
        self._tally.elements_up += array.size
        self._tally.packed_up += array.nbytes

    def _own_optimizer(self) -> FlatOptimizer:
        if self._optimizer is None:
            self._optimizer = FlatOptimizer(self._settings, self._near.parameters())
        return self._optimizer
