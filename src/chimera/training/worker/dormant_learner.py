"""Workers that are created when they are first needed: of many clients of one process, most participate in few rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from chimera.core.parameters import Flat
from chimera.data.dataset import Dataset, TrainingData
from chimera.data.order import Order
from chimera.models.model import Model
from chimera.models.shared_model import SharedInstance, SharedModel
from chimera.training.messages.tally import Tally
from chimera.training.worker.learner import Learner
from chimera.training.worker.side_by_side import SideBySide


class Population(SharedInstance):
    """The objects that the workers of one process share: the model, the data set, and the arguments of `Learner`.

    Parameters
    ----------
    model : the model object. No other code may use it.
    dataset : the data set.
    options : further arguments of `Learner`, the same for all workers.

    Attributes
    ----------
    orders : the order in which each worker reads its rows, by rank. The order must be set before the worker is started.
    side_by_side : computes local steps of several workers at once; None if the model or the data do not offer it.
    """

    def __init__(self, model: Model, dataset: TrainingData, **options: Any) -> None:
        super().__init__(model)
        self._dataset, self._options = dataset, options
        self.orders: dict[int, Order] = {}
        self.side_by_side: SideBySide | None = None
        if isinstance(dataset, Dataset) and (steps_of := getattr(model, "batched_steps", None)) is not None:
            batched = steps_of(dataset.input_shape)
            self.side_by_side = None if batched is None else SideBySide(batched, dataset, self.orders)

    def learner(self, rank: int) -> Learner:
        """Create the worker of a rank."""
        model, order = SharedModel(self), self.orders[rank]
        return Learner(rank, model, self._dataset, order, side_by_side=self.side_by_side, **self._options)

    def samples(self, rank: int) -> int:
        """Return the number of rows of the data set, without those that the worker of a rank keeps."""
        kept = getattr(self.orders[rank], "kept", None)
        return len(self._dataset) - (0 if kept is None else len(kept))


class DormantLearner:
    """A `Learner` that is created at the first call that needs it.

    Before that, calls that read or set the state of a worker are answered from the state of a new worker, or from the state
    that was set. Such a worker takes a few hundred bytes. The answers are those of a `Learner`, bit by bit.

    Parameters
    ----------
    rank : number of the worker.
    population : what the worker shares with others.
    """

    administrative = Learner.administrative

    def __init__(self, rank: int, population: Population) -> None:
        self._rank, self._population = rank, population
        self._learner: Learner | None = None
        self._step = 0
        self._given: Mapping[
            str, Sequence[Any]
        ] = {}  # the arguments of the last call of each method that sets other state

    def __getattr__(self, name: str) -> Any:
        """Create the worker, and return its method."""
        if name.startswith("_"):
            raise AttributeError(name)
        learner = self._learner or self._created()
        self.__dict__[name] = method = getattr(learner, name)
        return method

    def samples(self) -> int:
        """See `Learner`, also for the following methods."""
        return self._population.samples(self._rank)

    def share(self) -> float:
        """Return the number of rows of this worker's share."""
        return self._population.orders[self._rank].share

    def batches_per_pass(self) -> float:
        """Return the number of batches in one pass over these rows."""
        return self.share() / self._population.orders[self._rank].batch_size

    def step(self) -> int:
        """Return the step to which the worker was positioned."""
        return self._step

    def tally(self) -> Tally:
        """Return an empty tally."""
        return Tally()

    def buffers(self) -> Flat:
        """Return the initial buffers, or the loaded ones."""
        (buffers,) = self._given.get("load_buffers", (self._population.initial_buffers,))
        return np.asarray(buffers)

    def codec_states(self) -> Sequence[Any]:
        """Return the restored states of codecs; a new worker has none."""
        (states,) = self._given.get("restore_codecs", ((),))
        return [dict(state) for state in states]

    def local_state(self) -> Mapping[str, Any]:
        """Return the restored local state; a new worker has none."""
        (state,) = self._given.get("restore_local", ({},))
        return dict(state)

    def go_to(self, step: int) -> None:
        """Continue with the batch of this step."""
        self._step = step

    def follow(self, order: Order, since: int) -> None:
        """Read the data of another order from now on."""
        self._population.orders[self._rank] = order
        if self._learner is None:
            self._step = max(self._step, since)
        else:
            self._learner.follow(order, since)

    def forget_answer(self) -> None:
        """Do nothing: a new worker has no result."""

    def load_buffers(self, flat: Flat) -> None:
        """Keep buffers."""
        self._keep("load_buffers", flat)

    def restore_codecs(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Keep the states of codecs."""
        self._keep("restore_codecs", states)

    def restore_local(self, state: Mapping[str, Any]) -> None:
        """Keep a local state."""
        self._keep("restore_local", state)

    def reduce_rates(self, *factors: float) -> None:
        """Keep the reductions of learning rates."""
        self._keep("reduce_rates", *factors)

    def _keep(self, call: str, *given: Any) -> None:
        self._given = {**self._given, call: given}

    def _created(self) -> Learner:
        self._learner = learner = self._population.learner(self._rank)
        learner.go_to(self._step)
        for call, given in self._given.items():
            getattr(learner, call)(*given)
        self.__dict__.update({call: getattr(learner, call) for call in _ANSWERED})
        return learner


_ANSWERED = [
    name for name in vars(DormantLearner) if not name.startswith("_") and name not in ("follow", "administrative")
]
"""The calls that do not create a worker. After its creation, the worker answers them."""
