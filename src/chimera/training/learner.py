"""The worker: an actor that holds a model and its share of the data, and computes gradients or takes steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from chimera.codecs.codec import CODECS, State
from chimera.codecs.reduction import Reduction
from chimera.core.call import work
from chimera.core.device import copy_of
from chimera.core.engine import Group
from chimera.core.errors import NonFiniteError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, all_finite
from chimera.data.dataset import Dataset
from chimera.data.order import Order
from chimera.models.device import move, near
from chimera.models.model import Model
from chimera.training.chunks import Chunks
from chimera.training.exchange import Exchange
from chimera.training.gossip import Gossip
from chimera.training.optimizer import FlatOptimizer, OptimizerSettings
from chimera.training.rejection import ADVICE, Applied, Rejected, fault, fault_of_gradient
from chimera.training.taking_part import TakingPart
from chimera.training.tally import Tally


class Learner(Gossip, Chunks):
    """One worker. Where nodes own the data, it is made there, see `chimera.nodes.workers.learner`.

    Parameters
    ----------
    rank : its number.
    model : its own copy of the model; all workers begin with the same parameters.
    dataset : the whole training set, in memory that all share.
    order : which rows of it are this worker's, step by step.
    optimizer : what steps the model where the worker does it itself.
    codec : name and options of the codec of its uplink, or of what it gives to collectives.
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
        own = seed * 1_000_003 + rank  # so that no two codecs of a run draw the same random numbers
        self._exchange = Exchange(model.layout, codec, seed=own)
        self._optimizer: FlatOptimizer | None = None  # its memory is not spent where servers step
        self._reduction: Reduction | None = None  # the codec's form for a group
        self._kept: Sequence[Mapping[str, Any]] = ()  # what it remembered, if it is not made yet
        self._kept_shared: Mapping[str, Any] = {}
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
        return self._packed(gradient) if rejected is None else [rejected] * len(weights)

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
        return self._packed(begin) if rejected is None else [rejected] * len(weights)

    def train(self, steps: int, group: Group | None = None) -> Applied:
        """Take ``steps`` steps of its own, with the group's mean gradient if there is one; say which of its own were rejected.

        How the mean comes about is the codec's affair.

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
        """Return the replica: parameters, optimizer, step, what the codecs of a group share, and what is for its neighbours."""
        return {
            "step": self._step,
            "weights": self._model.parameters(),
            "optimizer": self._own_optimizer().state(),
            "codec": self._kept_shared if self._reduction is None else self._reduction.shared(),
            "gossip": self._gossip_state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become a copy of the replica that `state` returned."""
        self._model.load(state["weights"])
        self._own_optimizer().restore(state["optimizer"])
        self._step = state["step"]
        self._kept_shared = state.get("codec", {})  # older checkpoints have none
        if self._reduction is not None:
            self._reduction.restore_shared(self._kept_shared)
        self._restore_gossip(state.get("gossip", {}))

    def codec_states(self) -> list[State]:
        """Return what its codecs remember, one for each shard or one for its group; nothing before they are used."""
        return self._exchange.states() if self._reduction is None else [self._reduction.state()]

    def restore_codecs(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Take back what `codec_states` returned, at once or when the codecs are made."""
        self._kept = states
        if self._reduction is None:
            self._exchange.restore(states)
        elif states:
            self._reduction.restore(states[0])

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

    def _own_reduction(self) -> Reduction:
        if self._reduction is None:
            name, options = self._codec
            self._reduction = CODECS.reduction(name, options, seed=self._seed)
            self._reduction.restore_shared(self._kept_shared)
            for kept in self._kept[:1]:
                self._reduction.restore(kept)
        return self._reduction

    def _next_gradient(self, model: Any) -> tuple[Any, Rejected | None]:
        """Return the gradient of this step's batch, where ``model`` has it, and whether it is to be rejected."""
        buffers = self._buffers_before()
        gradient, loss = self._computed(model)
        return gradient, self._verdict(gradient, loss, buffers)

    def _mean_gradient(self, group: Group) -> tuple[Flat, Rejected | None]:
        """Return the mean gradient of the group, and whether its own is not in it.

        Nobody looks at his own gradient first, which would take a collective: if the mean is not finite, all see the same.
        """
        reduction, part = self._own_reduction(), TakingPart(group, self._tally)
        buffers = self._buffers_before()
        gradient, loss = self._computed(self._model)
        if self._own is not None:
            np.copyto(self._own, gradient)
        if not math.isfinite(loss):
            gradient[0] = np.nan  # so that the others notice
        mean = reduction.all_reduce(gradient, self._model.layout, part.mean)
        if all_finite(mean):
            self._count(loss)
            return self._reduced(mean), None
        if self._own is None:  # the collective has overwritten it; the same batch and seed give it again
            self._restore_buffers(buffers)
            gradient, loss = self._computed(self._model, again=True)
            self._own = gradient.copy()
        else:
            np.copyto(gradient, self._own)
        rejected = self._verdict(gradient, loss, buffers)
        if not part.only_if(rejected is None):
            raise NonFiniteError(f"{rejected}, and there is no other gradient: {ADVICE}")
        if rejected is not None:
            gradient.fill(0)
        mean = reduction.all_reduce(gradient, self._model.layout, part.mean)
        if why := fault(mean, "the sum of all gradients"):
            raise NonFiniteError(f"step {self._step}: {why}: {ADVICE}")
        return self._reduced(mean, rejected is None), rejected

    def _reduced(self, mean: Flat, took_part: bool = True) -> Flat:
        """Return a mean that the next step is taken with."""
        self._own_reduction().commit(took_part)
        self._tally.reduced(mean)
        return mean

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

    def _packed(self, flat: Flat) -> list[Encoded]:
        messages = self._exchange.packed(flat)
        self._tally.sent(messages)
        return messages

    def _load(self, weights: Sequence[Encoded]) -> None:
        self._tally.got(weights)
        self._exchange.load(weights, self._near.parameters())
