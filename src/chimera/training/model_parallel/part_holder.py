"""The common base of actors that hold a part of a model: its vectors, its optimizer, and its statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from chimera.core.call import work
from chimera.core.errors import NonFiniteError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat
from chimera.data.dataset import RowData
from chimera.data.order import Order
from chimera.models.device import device_view, move
from chimera.training.messages.rejection import ADVICE, Applied, fault_of_gradient
from chimera.training.messages.tally import Tally
from chimera.training.model_parallel.partitioning import Part
from chimera.training.optimizers.flat_optimizer import FlatOptimizer
from chimera.training.optimizers.optimizer import OptimizerSettings

THERE, BACK = (
    1 / 3,
    2 / 3,
)  # shares of a forward and a backward pass in the work of a sample: a gradient takes two products


class PartHolder:
    """An actor that holds a part of the model and steps it.

    Parameters
    ----------
    name : name of the actor.
    rank : rank of the worker, which determines its GPU, if any.
    part : its own copy of the part.
    dataset : the training set; None if the actor receives activations only.
    order : the rows that it reads in each step; None if it reads none.
    optimizer : optimizer of the part.
    seed : together with step and layer, the seed of random numbers in a forward pass.
    device : device of the part, see `chimera.models.device`; default the CPU.
    """

    hosted = True

    def __init__(
        self,
        name: str,
        rank: int,
        part: Part,
        dataset: RowData | None,
        order: Order | None,
        *,
        optimizer: OptimizerSettings,
        seed: int,
        device: str | None,
    ) -> None:
        if device is not None:
            move(part.model, device, rank)
        self._name, self._model, self._share, self._dataset, self._order = name, part.model, part.share, dataset, order
        self._seed, self._settings = seed, optimizer.own()
        self._device_model = device_view(part.model)
        self._optimizer: FlatOptimizer | None = None
        self._step, self._loss = 0, 0.0
        self._tally = Tally()

    def weights(self) -> Encoded:
        """Return the parameters of the part."""
        return Encoded("identity", self._model.layout.size, (self._model.parameters(),))

    def samples(self) -> int:
        """Return the number of rows of its data set; 0 if it reads none."""
        return 0 if self._dataset is None else len(self._dataset)

    def step(self) -> int:
        """Return the number of steps taken."""
        return self._step

    def tally(self) -> Tally:
        """Return losses and messages since the last call, and the memory of parameters, gradient, optimizer and activations."""
        done, self._tally = self._tally, Tally()
        held = self._model.layout.size * 8 + sum(array.nbytes for array in self._own_optimizer().state().values())
        done.peak_bytes, done.worker = held + self._peak_bytes(), self._name
        return done

    def buffers(self) -> Flat:
        """Return the buffers of the part."""
        return self._model.buffers()

    def load_buffers(self, flat: Flat) -> None:
        """Set the buffers of the part."""
        self._model.load_buffers(flat)

    def state(self) -> dict[str, Any]:
        """Return parameters, buffers, optimizer state and step."""
        return {
            "step": self._step,
            "weights": self._model.parameters(),
            "buffers": self._model.buffers(),
            "optimizer": self._own_optimizer().state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned."""
        self._model.load(state["weights"])
        self._model.load_buffers(state["buffers"])
        self._own_optimizer().restore(state["optimizer"])
        self._step = state["step"]

    def codec_states(self) -> list[Any]:
        """Return no state: messages are not encoded."""
        return []

    def restore_codecs(self, states: Sequence[Any]) -> None:
        """Do nothing."""

    def local_state(self) -> Mapping[str, Any]:
        """Return no state: the part steps with every batch."""
        return {}

    def restore_local(self, state: Mapping[str, Any]) -> None:
        """Do nothing."""

    def reduce_rates(self, *factors: float) -> None:
        """Set the reduction of the learning rate, the first of these factors, if the schedule is a plateau."""
        self._settings.schedule.reduce(factors[0])

    def go_to(self, step: int) -> None:
        """Continue with the batch of this step."""
        self._step = step

    def follow(self, order: Order, since: int) -> None:
        """Read the data of another order from now on; ``since`` is the step at which the order starts."""
        self._order = order
        self.go_to(max(self._step, since))

    def _peak_bytes(self) -> int:
        """Return the peak memory of activations in bytes."""
        raise NotImplementedError

    def _stepped(self, gradient: Any, *, losses: int) -> Applied:
        """Step with a gradient; ``losses`` are the known losses of its batches."""
        if reason := fault_of_gradient(gradient, self._loss):
            raise NonFiniteError(f"{self._name}, step {self._step}: {reason}: {ADVICE}")
        optimizer = self._own_optimizer()
        self._device_model.parameters()  # read each time, so that it is the current one and not a copy on the host
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
            self._optimizer = FlatOptimizer(self._settings, self._device_model.parameters())
        return self._optimizer
