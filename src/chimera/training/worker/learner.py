"""The worker: an actor that holds a model and its share of the data, and computes gradients or takes steps."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.codec import CODECS
from chimera.codecs.reduction import Reduction
from chimera.core import call
from chimera.core.engine import Group
from chimera.core.errors import NonFiniteError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat
from chimera.data.dataset import TrainingData
from chimera.data.loader import Loading
from chimera.data.order import Order
from chimera.models.device import device_view, move
from chimera.models.model import Model
from chimera.training.messages.message_key import Key, keyed
from chimera.training.messages.rejection import ADVICE, Applied, Rejected
from chimera.training.messages.tally import Tally
from chimera.training.optimizers.optimizer import OptimizerSettings, Stepper
from chimera.training.privacy.masking import Masking
from chimera.training.privacy.settings import Privacy
from chimera.training.worker.attack import Attacker
from chimera.training.worker.exchange import Exchange
from chimera.training.worker.extension import ExtensionName, Extensions, WorkerContext
from chimera.training.worker.gradients import Gradients
from chimera.training.worker.group_gradient import GroupGradient
from chimera.training.worker.last_result import LastResult
from chimera.training.worker.local_rounds import LocalRounds
from chimera.training.worker.local_training import LocalTraining
from chimera.training.worker.row_exchange import RowExchange
from chimera.training.worker.shared_parameters import SharedParameters
from chimera.training.worker.side_by_side import SideBySide
from chimera.training.worker.worker_state import WorkerState


class Learner(GroupGradient, Attacker, Masking, LocalRounds, WorkerState):
    """One worker. If nodes own the data, it is created there, see `chimera.nodes.workers.learner`.

    Parameters
    ----------
    rank : number of the worker.
    model : its own copy of the model; all workers start with the same parameters.
    dataset : the whole training set, in memory that all workers share.
    order : the rows that this worker reads in each step.
    optimizer : turns its gradients into steps, if it takes local steps or there are no servers.
    codec : name and options of the codec of its uplink, or of its vectors in collectives.
    downlink : name and options of the codec of received weights, so that this process loads it.
    seed : together with rank and step, the seed of random numbers in a forward pass.
    privacy : privacy settings of its updates, see `Masking`.
    loading : reading ahead of batches; default: the worker reads itself.
    device : device of the model, see `chimera.models.device`; default: unchanged.
    personal : the indices, in the model's layout, of the parameters that stay on this worker.
    extensions : the worker extensions that the strategy declares; the worker answers their calls, too.
    side_by_side : computes its local steps with those of other workers of this process, where it can.

    Raises
    ------
    ConfigurationError : the model cannot be moved to the device.
    """

    hosted = True  # engine http: this actor runs in a node, and not in the driver
    one_per_node = True  # with two workers on a node, its rows would count twice
    # Engine http: these calls share the request of a call before them. Their answers are small: each node and hub bounds the
    # size of a whole answer, and other answers can be as large as the model.
    brief = frozenset(["tally", "step"])
    failure_is_loss = True  # a node that misses a deadline or answers with an error must not end the run
    # Engine simulated: by these calls the driver observes a worker or sets its state, also while the worker is off.
    administrative = frozenset([
        "samples", "share", "batches_per_pass", "step", "tally", "go_to", "follow", "attack", "reduce_rates", "state",
        "restore", "buffers", "load_buffers", "codec_states", "restore_codecs", "local_state", "restore_local", "momenta",
        "remembers", "take_over", "forget_answer", "evaluate", "measure", "personal",
    ])  # fmt: skip

    def __init__(
        self,
        rank: int,
        model: Model,
        dataset: TrainingData,
        order: Order,
        *,
        optimizer: OptimizerSettings,
        codec: tuple[str, Mapping[str, Any]] = ("identity", {}),
        downlink: tuple[str, Mapping[str, Any]] = ("identity", {}),
        seed: int = 0,
        privacy: Privacy | None = None,
        loading: Loading | None = None,
        device: str | None = None,
        personal: Sequence[int] = (),
        extensions: Sequence[ExtensionName] = (),
        side_by_side: SideBySide | None = None,
    ) -> None:
        if device is not None:
            move(model, device, rank)
        self._rank, self._model, self._dataset, self._seed = rank, model, dataset, seed
        self._gradients = Gradients(
            rank, model, dataset, order, seed=seed, count=self._count, loading=loading or Loading()
        )
        self._optimizer_settings, self._codec, self._privacy = optimizer.own(), codec, privacy
        own = seed * 1_000_003 + rank  # no two codecs of a run draw the same random numbers
        self._rows = RowExchange(model) if CODECS.create(*downlink).by_rows else None
        # Vectors are on the device of the model: messages are unpacked and packed there.
        self._replica = device_view(model)
        self._device_model = self._rows or self._replica
        self._part = SharedParameters(model.layout, personal) if personal else None
        self._exchange = self._rows or Exchange(model.layout, codec, seed=own, part=self._part)
        self._optimizer: Stepper | None = None  # created when needed: workers of strategies with servers need none
        self._local = LocalTraining(self._optimizer_settings, self._device_model)
        self._last, self._side_by_side = LastResult(rank, model), side_by_side
        self._reduction: Reduction | None = None  # the codec's form for a group
        self._kept: Sequence[Mapping[str, Any]] = ()  # restored states of codecs that are not created yet
        self._kept_shared: Mapping[str, Any] = {}
        self._step = 0
        self._tally = Tally()
        self._own: Flat | None = None  # the worker's gradient before the all-reduce; kept after the first repeated step
        self._stepped: Any = model  # already while extensions are created
        self._extensions = Extensions(extensions, WorkerContext(self))
        if not self._extensions.on_host:
            self._stepped = self._replica

    def __getattr__(self, name: str) -> Any:
        """Return a method of a worker extension."""
        if name.startswith("_"):
            raise AttributeError(name)
        return self._extensions.call(name)

    def reduce_rates(self, *factors: float) -> None:
        """Set the reduction of the learning rate, the first of these factors, if the schedule is a plateau."""
        self._optimizer_settings.schedule.reduce(factors[0])
        self._extensions.reduce_rates(*factors)

    def wanted(self, shards: int, batches: int = 1, first: int | None = None) -> list[NDArray[np.uint32]]:
        """Return the numbers of the rows, in each shard, that the next ``batches`` batches need; the next call must get them.

        ``first`` is the index of the first batch; default: the next batch.
        """
        assert self._rows is not None
        self._gradients.forget_ahead()
        first = self._step if first is None else first
        needs = [self._rows.of(self._gradients.ahead(step)) for step in range(first, first + batches)]
        asked = self._rows.ask(needs, shards)
        self._tally.asked(asked)
        return asked

    def gradient(self, *weights: Encoded) -> list[Encoded] | list[Rejected]:
        """Load the weights, one message per shard; return the gradient of the next batch, encoded, one message per shard.

        A non-finite gradient is rejected: the messages report it, and the batch does not change the worker.
        """
        messages = self._answer(weights)
        if self._rows is None:  # otherwise it must report the rows that it needs
            call.afterwards(self._prepare)
        return messages

    def coded(
        self, *weights: Encoded, shares: Sequence[tuple[int, float]], block: int, step: int, again: bool = False
    ) -> list[Any]:
        """Load the weights; return a combination of gradients of held blocks, encoded, a message a shard.

        ``shares`` holds pairs: a block's index in this worker's order, and its factor. A non-finite gradient is left out, as on
        all holders of the block; the `Applied` after the messages reports it. The messages have the `Key` of ``block``. With
        ``again``, samples and losses are counted elsewhere.
        """
        self._load(weights)
        total, rejected = np.zeros_like(self._model.parameters()), []
        order: Any = self._gradients.order  # a `MultiBlockOrder`
        for part, share in shares:
            own = part == 0 and not again
            gradient, fault = self._gradients.of(order.parts[part], self._model, step, share, own=own)
            if fault is None:
                total += gradient
            else:
                rejected.append(fault)
        self._falsify(total, step)
        self._step = step + 1
        told = Applied(self._step, len(shares) - len(rejected), tuple(rejected))
        if not told.gradients:
            return [*([rejected[0]] * len(weights)), told]
        key = Key(int(step / order.steps_per_epoch), step, block, self._rank)
        return [*self._counted([keyed(message, key) for message in self._exchange.packed(total)]), told]

    def train(self, steps: int, group: Group | None = None) -> Applied:
        """Take ``steps`` steps, with the group's mean gradient if there is a group; report this worker's rejected gradients.

        The codec determines how the mean is computed.

        Raises
        ------
        ActorLost : a member of the group died; the current step was not taken.
        NonFiniteError : no worker's gradient is finite; the step was not taken.
        """
        optimizer = self._own_optimizer()
        rejected = []
        for _ in range(steps):
            began_s = call.now()
            gradient, own = self._next_gradient(self._stepped) if group is None else self._mean_gradient(group)
            if own is not None:
                if group is None:
                    raise NonFiniteError(f"{own}: {ADVICE}")
                rejected.append(own)
            optimizer.step(gradient, self._step)
            self._step += 1
            if group is not None:  # each step is a round
                call.record("train", began_s)
        return Applied(self._step, steps, tuple(rejected))

    def weights(self) -> Encoded:
        """Return all parameters."""
        return Encoded("identity", self._model.layout.size, (self._model.parameters(),))

    def samples(self) -> int:
        """Return the number of rows of its data set, without those that it keeps for its evaluation."""
        kept = getattr(self._gradients.order, "kept", None)
        return len(self._dataset) - (0 if kept is None else len(kept))

    def share(self) -> float:
        """Return the number of rows of this worker's share."""
        return self._gradients.order.share

    def batches_per_pass(self) -> float:
        """Return the number of batches in one pass over these rows."""
        return self.share() / self._gradients.order.batch_size

    def step(self) -> int:
        """Return the number of steps taken, or of gradients computed."""
        return self._step

    def tally(self) -> Tally:
        """Return losses and messages since the last call."""
        done, self._tally = self._tally, Tally()
        self._gradients.report_work(done)
        reported_fill = getattr(self._gradients.order, "reported_fill", None)
        if reported_fill is not None and (fill := reported_fill()) is not None:
            done.fill, done.worker = fill, f"worker {self._rank}"
        return done

    def _answer(self, weights: Sequence[Encoded]) -> list[Any]:
        """See `gradient`."""
        self._load(weights)
        gradient, rejected = self._next_gradient(self._device_model)
        if rejected is None:
            self._falsify(gradient, self._step)
        self._step += 1
        return self._packed(gradient) if rejected is None else [rejected] * len(weights)

    def _prepare(self) -> None:
        with contextlib.suppress(Exception):  # the call that needs the batch raises the same error
            self._gradients.prepare(self._step)

    def _next_gradient(self, model: Any) -> tuple[Any, Rejected | None]:
        """Return the gradient of this step's batch, on the device of ``model``, and whether it must be rejected."""
        return self._gradients.next(model, self._step)

    def _own_optimizer(self) -> Stepper:
        # Read each time, so that the current vector is where the optimizer updates it.
        flat = self._stepped.parameters()
        if self._optimizer is None:
            self._optimizer = self._optimizer_settings.stepper(flat)
        return self._optimizer

    def _count(self, loss: float) -> None:
        self._tally.loss += loss
        self._tally.losses += 1

    def _packed(self, flat: Flat) -> list[Encoded]:
        return self._counted(self._exchange.packed(flat))

    def _counted(self, messages: list[Encoded]) -> list[Encoded]:
        self._tally.sent(messages)
        return messages

    def _load(self, weights: Sequence[Encoded]) -> tuple[Any, Any]:
        """Load the weights; return the vector that holds them, and the result of `Exchange.load`."""
        self._tally.got(weights)
        flat = self._device_model.parameters()
        return flat, self._exchange.load(weights, flat)
