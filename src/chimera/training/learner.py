"""The worker: an actor that holds a model and its share of the data, and computes gradients or takes steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from chimera.codecs.codec import CODECS, Codec, decode
from chimera.core.call import work
from chimera.core.engine import Group
from chimera.core.errors import NonFiniteError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout, shard_views
from chimera.data.dataset import Dataset
from chimera.data.order import Order
from chimera.models.device import move
from chimera.models.model import Model
from chimera.training.optimizer import FlatOptimizer, OptimizerSettings


class Learner:
    """One worker.

    Parameters
    ----------
    rank : its number.
    model : its own copy of the model; all workers begin with the same parameters.
    dataset : the whole training set, in memory that all share.
    order : which rows of it are this worker's, step by step.
    optimizer : what steps the model where the worker does it itself.
    codec : name and options of the codec of its uplink.
    seed : with rank and step, the seed of whatever is random in a forward pass.
    device : where the model computes, see `chimera.models.device`; by default where it is.

    Raises
    ------
    ConfigurationError : the model cannot compute there.
    """

    def __init__(
        self,
        rank: int,
        model: Model,
        dataset: Dataset,
        order: Order,
        *,
        optimizer: OptimizerSettings,
        codec: tuple[str, Mapping[str, Any]] = ("identity", {}),
        seed: int = 0,
        device: str | None = None,
    ) -> None:
        if device is not None:
            move(model, device, rank)
        self._rank, self._model, self._dataset, self._order, self._seed = rank, model, dataset, order, seed
        self._optimizer_settings, self._codec = optimizer, codec
        self._optimizer: FlatOptimizer | None = None  # its memory is not spent where servers step
        self._bounds: list[int] = []
        self._codecs: list[Codec] = []
        self._layouts: list[Layout] = []
        self._step = 0
        self._loss_sum, self._loss_count = 0.0, 0

    def gradient(self, *weights: Encoded) -> list[Encoded]:
        """Load the weights, a message a shard, and return the gradient of the next batch, encoded, a message a shard."""
        self._load([decode(shard) for shard in weights])
        gradient = self._next_gradient()
        self._step += 1
        return self._encoded(gradient)

    def delta(self, *weights: Encoded, steps: int, learning_rate: float) -> list[Encoded]:
        """Load the weights, take ``steps`` steps of plain SGD from there, and return the way back, encoded, a message a shard.

        That is the weights given less those reached: a server that takes it for a gradient moves towards what was learnt.
        """
        self._load([decode(shard) for shard in weights])
        flat = self._model.parameters()
        begin = flat.copy()
        for _ in range(steps):
            flat -= np.float32(learning_rate) * self._next_gradient()
            self._step += 1
        begin -= flat
        work(elements=flat.size * (steps + 1))
        return self._encoded(begin)

    def train(self, steps: int, group: Group | None = None) -> int:
        """Take ``steps`` steps of its own, with the group's mean gradient if there is one, and return how many it has taken.

        Raises
        ------
        ActorLost : a member of the group died; the step under way was not taken.
        NonFiniteError : the loss is NaN or infinite; the step was not taken.
        """
        optimizer = self._own_optimizer()
        for _ in range(steps):
            gradient = self._next_gradient()
            if group is not None:
                group.all_reduce(gradient)
            optimizer.step(gradient)
            self._step += 1
        return self._step

    def weights(self) -> Encoded:
        """Return all parameters."""
        return Encoded("identity", self._model.layout.size, (self._model.parameters(),))

    def step(self) -> int:
        """Return how many steps it has taken or computed gradients for."""
        return self._step

    def loss(self) -> tuple[float, int]:
        """Return the sum of the batches' mean losses since the last time, and how many batches it covers."""
        report = self._loss_sum, self._loss_count
        self._loss_sum, self._loss_count = 0.0, 0
        return report

    def buffers(self) -> Flat:
        """Return what the model carries besides parameters."""
        return self._model.buffers()

    def load_buffers(self, flat: Flat) -> None:
        """Set what the model carries besides parameters."""
        self._model.load_buffers(flat)

    def state(self) -> dict[str, Any]:
        """Return the replica: parameters, optimizer and step."""
        return {"step": self._step, "weights": self._model.parameters(), "optimizer": self._own_optimizer().state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become a copy of the replica that `state` returned."""
        self._model.load(state["weights"])
        self._own_optimizer().restore(state["optimizer"])
        self._step = state["step"]

    def go_to(self, step: int) -> None:
        """Go on with the batch of this step."""
        self._step = step

    def follow(self, order: Order, since: int) -> None:
        """Read other data from now on; ``since`` is the step from which on the order counts."""
        self._order, self._step = order, max(self._step, since)

    def _own_optimizer(self) -> FlatOptimizer:
        if self._optimizer is None:
            self._optimizer = FlatOptimizer(self._optimizer_settings, self._model.parameters())
        return self._optimizer

    def _next_gradient(self) -> Flat:
        batch = self._dataset.take(self._order.batch(self._step))
        # So that what is random in the forward pass depends on nothing that ran before.
        self._model.reseed((self._seed * 1_000_003 + self._rank) * 1_000_003 + self._step)
        gradient, loss = self._model.gradient(batch)
        work(samples=len(batch[0]))
        if not math.isfinite(loss):
            raise NonFiniteError(f"rank {self._rank}, step {self._step}: the loss is {loss}")
        self._loss_sum += loss
        self._loss_count += 1
        return gradient

    def _encoded(self, flat: Flat) -> list[Encoded]:
        """Return a vector in the form of all parameters as messages, one for each shard of the weights last loaded."""
        pieces = shard_views(flat, self._bounds)
        return [c.encode(p, layout) for c, p, layout in zip(self._codecs, pieces, self._layouts, strict=True)]

    def _load(self, shards: Sequence[Flat]) -> None:
        if len(shards) == 1:
            self._model.load(shards[0])
        else:
            flat = self._model.parameters()
            begin = 0
            for shard in shards:
                np.copyto(flat[begin : begin + shard.size], shard)
                begin += shard.size
        if len(self._codecs) != len(shards):
            name, options = self._codec
            self._bounds = [0, *np.cumsum([shard.size for shard in shards]).tolist()]
            self._codecs = [CODECS.create(name, options) for _ in shards]
            self._layouts = [self._model.layout.cut(b, e) for b, e in zip(self._bounds, self._bounds[1:], strict=False)]
