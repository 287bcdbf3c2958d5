"""What all actors have in common that hold a part of a model: its vectors, its optimizer, and what they tell of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from chimera.core.call import work
from chimera.core.errors import NonFiniteError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat
from chimera.data.dataset import Dataset
from chimera.data.order import Order
from chimera.models.device import move, near
from chimera.training.messages.rejection import ADVICE, Applied, fault_of_gradient
from chimera.training.messages.tally import Tally
from chimera.training.model_parallel.partitioning import Part
from chimera.training.optimizers.optimizer import FlatOptimizer, OptimizerSettings

THERE, BACK = 1 / 3, 2 / 3  # what a pass forward and one backward are worth of a sample: a gradient is two products


class PartHolder:
    """Holds a part of the model, and steps it.

    Parameters
    ----------
    name : of the actor.
    rank : which GPU it takes, where it computes on one.
    part : what it computes; its own copy.
    dataset : the training set; None if it sees activations only.
    order : which rows it reads, step by step; None if it reads nothing.
    optimizer : what steps the part.
    seed : with the step, and the layer, the seed of whatever is random in a forward pass.
    device : where it computes, see `chimera.models.device`; by default on the CPU.
    """

    hosted = True

    def __init__(
        self,
        name: str,
        rank: int,
        part: Part,
        dataset: Dataset | None,
        order: Order | None,
        *,
        optimizer: OptimizerSettings,
        seed: int,
        device: str | None,
    ) -> None:
        if device is not None:
            move(part.model, device, rank)
        self._name, self._model, self._share, self._dataset, self._order = name, part.model, part.share, dataset, order
        self._seed, self._settings = seed, optimizer
        self._near = near(part.model)
        self._optimizer: FlatOptimizer | None = None
        self._step, self._loss = 0, 0.0
        self._tally = Tally()

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
        done.peak_bytes, done.worker = held + self._peak_bytes(), self._name
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
        """Continue with the batch of this step."""
        self._step = step

    def follow(self, order: Order, since: int) -> None:
        """Read other data from now on; ``since`` is the step from which on the order counts."""
        self._order = order
        self.go_to(max(self._step, since))

    def _peak_bytes(self) -> int:
        """Return the most that activations took at a time."""
        raise NotImplementedError

    def _stepped(self, gradient: Any, *, losses: int) -> Applied:
        """Step with a gradient, after so many batches whose loss it knows."""
        if why := fault_of_gradient(gradient, self._loss):
            raise NonFiniteError(f"{self._name}, step {self._step}: {why}: {ADVICE}")
        optimizer = self._own_optimizer()
        self._near.parameters()  # asked for each time: so it is what counts, and not a copy of it on the host
        optimizer.step(gradient, self._step)
        work(elements=len(gradient))
        self._tally.loss += self._loss * losses
        self._tally.losses += losses
        self._step += 1
        return Applied(self._step, 1)

    def _seed_of_step(self, reader: int = 0) -> int:
        return (self._seed * 1_000_003 + reader) * 1_000_003 + self._step

    def _sends(self, array: NDArray[Any]) -> None:
        self._tally.elements_up += array.size
        self._tally.packed_up += array.nbytes

    def _own_optimizer(self) -> FlatOptimizer:
        if self._optimizer is None:
            self._optimizer = FlatOptimizer(self._settings, self._near.parameters())
        return self._optimizer
