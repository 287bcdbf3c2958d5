"""The worker: an actor that holds a model and its share of the data, and computes gradients or takes steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from chimera.codecs.codec import CODECS, Codec, State, decode
from chimera.core.call import work
from chimera.core.device import copy_of
from chimera.core.engine import Group
from chimera.core.errors import NonFiniteError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout, all_finite, shard_bounds, shard_views
from chimera.data.dataset import Dataset
from chimera.data.order import Order
from chimera.models.device import move, near
from chimera.models.model import Model
from chimera.training.optimizer import FlatOptimizer, OptimizerSettings
from chimera.training.rejection import ADVICE, Applied, Rejected, fault, fault_of_gradient
from chimera.training.tally import Tally


class Learner:
    """One worker. Where nodes own the data, it is made there, see `chimera.nodes.workers.learner`.

    Parameters
    ----------
    rank : its number.
    model : its own copy of the model; all workers begin with the same parameters.
    dataset : the whole training set, in memory that all share.
    order : which rows of it are this worker's, step by step.
    optimizer : what steps the model where the worker does it itself.
    codec : name and options of the codec of its uplink.
    downlink : those of the codec of the weights that it gets, so that this process knows it.
    seed : with rank and step, the seed of whatever is random in a forward pass.
    device : where the model computes, see `chimera.models.device`; by default where it is.

    Raises
    ------
    ConfigurationError : the model cannot compute there.
    """

    hosted = (
        True  # where some actors live in nodes and others in the driver (the engine http), this one lives in a node
    )

    def __init__(
        self,
        rank: int,
        model: Model,
        dataset: Dataset,
        order: Order,
        *,
        optimizer: OptimizerSettings,
        codec: tuple[str, Mapping[str, Any]] = ("identity", {}),
        downlink: tuple[str, Mapping[str, Any]] = ("identity", {}),
        seed: int = 0,
        device: str | None = None,
    ) -> None:
        if device is not None:
            move(model, device, rank)
        self._near = near(model)  # its vectors where it computes: what travels is unpacked and packed there
        self._rank, self._model, self._dataset, self._order, self._seed = rank, model, dataset, order, seed
        self._optimizer_settings, self._codec = optimizer, codec
        CODECS.create(*downlink)
        self._optimizer: FlatOptimizer | None = None  # its memory is not spent where servers step
        self._bounds: list[int] = []
        self._codecs: list[Codec] = []
        self._kept: Sequence[Mapping[str, Any]] = ()  # what codecs remembered that are not made yet
        self._layouts: list[Layout] = []
        self._step = 0
        self._tally = Tally()
        self._has_buffers = model.buffers().size > 0
        self._own: Flat | None = None  # the gradient as it was before the group's; kept once a step had to be repeated

    def gradient(self, *weights: Encoded) -> list[Encoded] | list[Rejected]:
        """Load the weights, a message a shard, and return the gradient of the next batch, encoded, a message a shard.

        One that is not finite is rejected: the messages say so instead, and the batch leaves no trace in the worker.
        """
        self._load(weights)
        gradient, rejected = self._next_gradient(self._near)
        self._step += 1
        return self._encoded(gradient) if rejected is None else [rejected] * len(weights)

    def delta(self, *weights: Encoded, steps: int, learning_rate: float) -> list[Encoded] | list[Rejected]:
        """Load the weights, take ``steps`` steps of plain SGD from there, and return the way back, encoded, a message a shard.

        That is the weights given less those reached: a server that takes it for a gradient moves towards what was learnt.
        The first gradient that is not finite ends it, and the messages say so instead.
        """
        self._load(weights)
        flat = self._near.parameters()
        begin, first = copy_of(flat), self._step
        rejected: Rejected | None = None
        with np.errstate(over="ignore", invalid="ignore"):  # what became of it is looked at below
            for self._step in range(first, first + steps):
                gradient, rejected = self._next_gradient(self._near)
                if rejected is not None:
                    break
                flat -= gradient * np.float32(learning_rate)
            begin -= flat
        self._step = first + steps
        work(elements=len(flat) * (steps + 1))
        if rejected is None and (why := fault(begin, "the change of the weights")):
            rejected = Rejected(self._rank, first, why)
        return self._encoded(begin) if rejected is None else [rejected] * len(weights)

    def train(self, steps: int, group: Group | None = None) -> Applied:
        """Take ``steps`` steps of its own, with the group's mean gradient if there is one; say which of its own were rejected.

        Raises
        ------
        ActorLost : a member of the group died; the step under way was not taken.
        NonFiniteError : nobody's gradient is finite; the step was not taken.
        """
        optimizer = self._own_optimizer()
        rejected = []
        for _ in range(steps):
            gradient, own = self._next_gradient(self._model) if group is None else self._mean_gradient(group)
            if own is not None:
                if group is None:
                    raise NonFiniteError(f"{own}: {ADVICE}")
                rejected.append(own)
            optimizer.step(gradient)
            self._step += 1
        return Applied(self._step, steps, tuple(rejected))

    def weights(self) -> Encoded:
        """Return all parameters."""
        return Encoded("identity", self._model.layout.size, (self._model.parameters(),))

    def samples(self) -> int:
        """Return how many rows the data set has that it reads from."""
        return len(self._dataset)

    def step(self) -> int:
        """Return how many steps it has taken or computed gradients for."""
        return self._step

    def tally(self) -> Tally:
        """Return losses and messages since the last time."""
        done, self._tally = self._tally, Tally()
        return done

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

    def codec_states(self) -> list[State]:
        """Return what the codecs of its uplink remember, one for each shard; nothing before they are used."""
        return [codec.state() for codec in self._codecs]

    def restore_codecs(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Take back what `codec_states` returned, at once or when the codecs are made."""
        self._kept = states
        for codec, kept in zip(self._codecs, states, strict=False):
            codec.restore(kept)

    def go_to(self, step: int) -> None:
        """Go on with the batch of this step."""
        self._step = step

    def follow(self, order: Order, since: int) -> None:
        """Read other data from now on; ``since`` is the step from which on the order counts."""
        self._order, self._step = order, max(self._step, since)

    def _own_optimizer(self) -> FlatOptimizer:
        flat = self._model.parameters()  # asked for each time: so it is what counts, and not a copy of it on a device
        if self._optimizer is None:
            self._optimizer = FlatOptimizer(self._optimizer_settings, flat)
        return self._optimizer

    def _next_gradient(self, model: Any) -> tuple[Any, Rejected | None]:
        """Return the gradient of this step's batch, where ``model`` has it, and whether it is to be rejected."""
        buffers = self._buffers_before()
        gradient, loss = self._computed(model)
        return gradient, self._verdict(gradient, loss, buffers)

    def _mean_gradient(self, group: Group) -> tuple[Flat, Rejected | None]:
        """Return the mean gradient of the group, and whether its own is not in it.

        Nobody looks at his own gradient first, and so this is one collective: if the mean is not finite, all see the same.
        """
        buffers = self._buffers_before()
        gradient, loss = self._computed(self._model)
        if self._own is not None:
            np.copyto(self._own, gradient)
        if not math.isfinite(loss):
            gradient[0] = np.nan  # so that the others notice
        group.all_reduce(gradient)
        if all_finite(gradient):
            self._count(loss)
            return gradient, None
        if self._own is None:  # the collective has overwritten it; the same batch and seed give it again
            self._restore_buffers(buffers)
            gradient, loss = self._computed(self._model, again=True)
            self._own = gradient.copy()
        else:
            np.copyto(gradient, self._own)
        rejected = self._verdict(gradient, loss, buffers)
        return self._mean_of_finite(group, gradient, rejected), rejected

    def _mean_of_finite(self, group: Group, gradient: Flat, rejected: Rejected | None) -> Flat:
        """Return the mean over those members whose gradients are not rejected; all members get the same bits."""
        count = np.array([rejected is None], np.float32)
        group.all_reduce(count, "sum")
        if count[0] == 0:
            raise NonFiniteError(f"{rejected}, and there is no other gradient: {ADVICE}")
        if rejected is not None:
            gradient.fill(0)
        group.all_reduce(gradient, "sum")
        gradient *= np.float32(1 / count[0])
        if why := fault(gradient, "the sum of all gradients"):
            raise NonFiniteError(f"step {self._step}: {why}: {ADVICE}")
        return gradient

    def _computed(self, model: Any, again: bool = False) -> tuple[Any, float]:
        """Return gradient and loss of this step's batch; ``again`` if its samples were counted before."""
        batch = self._dataset.take(self._order.batch(self._step))
        # So that what is random in the forward pass depends on nothing that ran before.
        self._model.reseed((self._seed * 1_000_003 + self._rank) * 1_000_003 + self._step)
        gradient, loss = model.gradient(batch)
        if not again:
            work(samples=len(batch[0]))
        return gradient, loss

    def _verdict(self, gradient: Flat, loss: float, buffers: Flat | None) -> Rejected | None:
        """Count the loss, or say why the gradient is rejected and undo what its batch did to the buffers."""
        if why := fault_of_gradient(gradient, loss):
            self._restore_buffers(buffers)
            return Rejected(self._rank, self._step, why)
        self._count(loss)
        return None

    def _count(self, loss: float) -> None:
        self._tally.loss += loss
        self._tally.losses += 1

    def _buffers_before(self) -> Flat | None:
        return self._model.buffers() if self._has_buffers else None

    def _restore_buffers(self, buffers: Flat | None) -> None:
        if buffers is not None:
            self._model.load_buffers(buffers)

    def _encoded(self, flat: Flat) -> list[Encoded]:
        """Return a vector in the form of all parameters as messages, one for each shard of the weights last loaded."""
        pieces = shard_views(flat, self._bounds)
        messages = [c.pack(p, layout) for c, p, layout in zip(self._codecs, pieces, self._layouts, strict=True)]
        self._tally.sent(messages)
        return messages

    def _load(self, weights: Sequence[Encoded]) -> None:
        self._tally.got(weights)
        bounds = shard_bounds(self._model.layout.size, len(weights))
        flat = self._near.parameters()
        for shard, begin, end in zip(weights, bounds, bounds[1:], strict=False):
            piece = flat[begin:end]
            if (values := decode(shard, end - begin, piece)) is not piece:
                np.copyto(piece, values)
        if len(self._codecs) != len(weights):
            name, options = self._codec
            own = self._seed * 1_000_003 + self._rank  # so that no two codecs of a run draw the same random numbers
            self._bounds = bounds
            self._codecs = [CODECS.create(name, options, seed=own * 1_000_003 + i) for i in range(len(weights))]
            for codec, kept in zip(self._codecs, self._kept, strict=False):
                codec.restore(kept)
            self._layouts = [self._model.layout.cut(b, e) for b, e in itertools.pairwise(bounds)]
