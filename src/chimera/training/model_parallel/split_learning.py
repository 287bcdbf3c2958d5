"""Client and server of split learning: actors that hold one half of the model each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.batch import pair_of
from chimera.core.call import work
from chimera.data.dataset import RowData
from chimera.data.order import Order
from chimera.strategies.model_partition import SplitPartition
from chimera.training.messages.rejection import Applied
from chimera.training.model_parallel.part_holder import BACK, THERE, PartHolder
from chimera.training.model_parallel.partitioning import Part
from chimera.training.optimizers.optimizer import OptimizerSettings

Array = NDArray[Any]


class SplitClient(PartHolder):
    """The actor with the first layers, and with the last ones if labels stay; only it has data.

    Parameters
    ----------
    rank : the worker's number.
    part : its own copy of the client's layers.
    dataset : the training set, of which it reads the rows of ``order`` in each step.
    halves : the split of the model.
    optimizer, seed, device : see `PartHolder`.
    """

    def __init__(
        self,
        rank: int,
        part: Part,
        dataset: RowData,
        order: Order,
        *,
        halves: SplitPartition,
        optimizer: OptimizerSettings,
        seed: int = 0,
        device: str | None = None,
    ) -> None:
        super().__init__(f"worker {rank}", rank, part, dataset, order, optimizer=optimizer, seed=seed, device=device)
        self._below = part.model.stage(part.layers[: halves.cut])
        self._head = part.model.stage(part.layers[halves.cut :], halves.cut)
        self._keeps_labels = halves.head is not None
        self._read, self._targets = 0, np.empty(0, np.float32)

    def forward(self) -> tuple[Array, Array | None]:
        """Run the forward pass of the next batch; return the activations, and the labels if they are sent to the server."""
        assert self._order is not None
        assert self._dataset is not None
        rows = self._order.batch(self._read)
        self._read += 1
        inputs, self._targets = pair_of(self._dataset.take(rows, (self._seed_of_step(),)), "split learning")
        self._head.begin()
        self._below.begin()
        activations = self._below.forward(0, inputs, self._seed_of_step())
        work(samples=len(rows), effort=len(rows) * self._share * THERE)
        self._sends(activations)
        if self._keeps_labels:
            return activations, None
        self._sends(self._targets)
        return activations, self._targets

    def loss(self, activations: Array) -> Array:
        """Finish the forward pass from the server's activations; return the gradient of these."""
        self._got(activations)
        self._loss = float(self._head.forward(0, activations, self._seed_of_step(), self._targets))
        back = self._head.backward(0)
        self._sends(back)
        return back

    def update(self, gradient: Array, loss: float | None = None) -> Applied:
        """Run the backward pass from the gradient of the activations, and step; ``loss`` is the server's, if unknown here.

        Raises
        ------
        NonFiniteError : the gradient is NaN or infinite; the step was not taken.
        """
        self._got(gradient)
        if loss is not None:
            self._loss = loss
        self._below.backward(0, gradient)
        work(effort=len(self._targets) * self._share * BACK)
        return self._stepped(self._below.gradient(), losses=1)

    def hand_on(self) -> dict[str, Any]:
        """Return the client's half and its optimizer's state, for the next client."""
        return super().state()

    def take_over(self, half: Mapping[str, Any]) -> None:
        """Continue with the half of another client, on this client's data."""
        super().restore(half)

    def state(self) -> dict[str, Any]:
        """Return the client's half of the model and the number of batches that this client has read."""
        return {**super().state(), "read": self._read}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned."""
        super().restore(state)
        self._read = state["read"]

    def follow(self, order: Order, since: int) -> None:
        """Read the data of another order from now on; ``since`` is the batch at which the order starts."""
        super().follow(order, since)
        self._read = max(self._read, since)

    def _peak_bytes(self) -> int:
        return self._below.peak_bytes + self._head.peak_bytes

    def _got(self, array: Array) -> None:
        self._tally.elements_down += array.size
        self._tally.packed_down += array.nbytes


class SplitServer(PartHolder):
    """The actor with the middle layers, or all later layers; it receives activations and no data.

    Parameters
    ----------
    part : its own copy of the server's layers.
    optimizer, seed : see `PartHolder`.
    """

    def __init__(self, part: Part, *, optimizer: OptimizerSettings, seed: int = 0) -> None:
        super().__init__("server 0", 0, part, None, None, optimizer=optimizer, seed=seed, device=None)
        self._passes = part.model.stage(part.layers)
        self._rows = 0

    def train(self, activations: Array, targets: Array) -> tuple[Array, float, Applied]:
        """Run both passes with a client's labels; return the gradient of its activations, the loss and the step."""
        self._loss = float(self.forward(activations, targets))
        gradient, applied = self.update()
        return gradient, self._loss, applied

    def forward(self, activations: Array, targets: Array | None = None) -> Array:
        """Run the forward pass of a client's activations."""
        self._passes.begin()
        self._rows = len(activations)
        work(effort=self._rows * self._share * THERE)
        return self._passes.forward(0, activations, self._seed_of_step(), targets)

    def update(self, gradient: Array | None = None) -> tuple[Array, Applied]:
        """Run the backward pass from the gradient of `forward`'s result, and step; return the gradient of activations.

        Raises
        ------
        NonFiniteError : the gradient is NaN or infinite; the step was not taken.
        """
        back = self._passes.backward(0, gradient)
        work(effort=self._rows * self._share * BACK)
        return back, self._stepped(self._passes.gradient(), losses=0)

    def _peak_bytes(self) -> int:
        return self._passes.peak_bytes
