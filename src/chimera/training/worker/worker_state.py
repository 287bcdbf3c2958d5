"""The state of a worker: its replica, the states of its codecs, and its position in the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chimera.codecs.codec import State
from chimera.codecs.reduction import Reduction
from chimera.core.parameters import Flat
from chimera.data.order import Order
from chimera.models.model import Model
from chimera.training.optimizers.optimizer import Stepper
from chimera.training.worker.extension import Extensions
from chimera.training.worker.gradients import Gradients


class WorkerState:
    """The part of a `Learner` that returns and sets its state, for checkpoints and for workers that replace lost ones."""

    _model: Model
    _step: int
    _gradients: Gradients
    _exchange: Any
    _reduction: Reduction | None
    _kept: Sequence[Mapping[str, Any]]
    _kept_shared: Mapping[str, Any]
    _extensions: Extensions

    def _own_optimizer(self) -> Stepper:
        raise NotImplementedError

    def buffers(self) -> Flat:
        """Return the buffers of the model."""
        return self._model.buffers()

    def load_buffers(self, flat: Flat) -> None:
        """Set the buffers of the model."""
        self._model.load_buffers(flat)

    def state(self) -> dict[str, Any]:
        """Return the replica: parameters, optimizer, step, the state of codecs that the group shares, states of extensions."""
        return {
            "step": self._step,
            "weights": self._model.parameters(),
            "optimizer": self._own_optimizer().state(),
            "codec": self._kept_shared if self._reduction is None else self._reduction.shared(),
            **self._extensions.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become a copy of the replica that `state` returned."""
        self._model.load(state["weights"])
        self._own_optimizer().restore(state["optimizer"])
        self._step = state["step"]
        self._kept_shared = state.get("codec", {})  # older checkpoints have none
        if self._reduction is not None:
            self._reduction.restore_shared(self._kept_shared)
        self._extensions.restore(state)

    def codec_states(self) -> list[State]:
        """Return the states of its codecs, one for each shard or one for its group; restored states of unused codecs too."""
        return self._exchange.states() if self._reduction is None else [self._reduction.state()]

    def restore_codecs(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Restore states that `codec_states` returned, at once or when the codecs are created."""
        self._kept = states
        if self._reduction is None:
            self._exchange.restore(states)
        elif states:
            self._reduction.restore(states[0])

    def go_to(self, step: int) -> None:
        """Continue with the batch of this step."""
        self._step = step
        self._gradients.forget_ahead()

    def follow(self, order: Order, since: int) -> None:
        """Read the data of another order from now on; ``since`` is the step at which the order starts."""
        self._gradients.order = order
        self.go_to(max(self._step, since))
