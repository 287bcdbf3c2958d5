"""Local steps: the optimizer and the rule that a worker applies between two messages to its servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.batch import Batch
from chimera.training.optimizers.optimizer import OptimizerSettings, Stepper
from chimera.training.plugin import named
from chimera.training.worker.local_rules import LOCAL_RULES, LocalRule

RULE = "rule."  # prefix of the rule's entries in a state


class LocalTraining:
    """Updates a model on its device.

    Plain SGD needs no optimizer of torch. A model with a method ``descend`` takes plain SGD steps itself, unless a rule changes
    the gradient.

    Parameters
    ----------
    settings : settings of the optimizer.
    model : the model; its vectors may be on a GPU.
    """

    __slots__ = (
        "_descend", "_kept", "_kept_of_rule", "_model", "_optimizer", "_plain", "_rate", "_rule", "_rule_table", "_settings",
    )  # fmt: skip

    def __init__(self, settings: OptimizerSettings, model: Any) -> None:
        self._settings, self._model, self._plain = settings, model, settings.plain
        self._rate = settings.learning_rate(0) if self._plain and not settings.schedule.changes else None
        self._descend = getattr(model, "descend", None) if self._plain else None
        self._optimizer: Stepper | None = None  # created at the first step: other strategies do not need its memory
        self._kept: Mapping[str, NDArray[Any]] = {}
        self._rule: LocalRule | None = None
        self._rule_table: Mapping[str, Any] | None = None
        self._kept_of_rule: Mapping[str, NDArray[Any]] = {}

    def follow(self, rule: Mapping[str, Any] | None) -> LocalRule | None:
        """Apply the rule that a table describes from now on; None: no rule. The rule's state is kept if it does not change."""
        if rule != self._rule_table:
            self._rule, self._rule_table = LOCAL_RULES.create(*named(rule)) if rule else None, rule
            if self._rule is not None:
                self._rule.restore(self._kept_of_rule)
        return self._rule

    @property
    def descends(self) -> bool:
        """Whether the model takes steps itself and returns no gradient."""
        return self._descend is not None and self._rule is None

    def descend(self, batch: Batch, number: int) -> float:
        """Take step ``number`` (from 0) by the model's own method; return the mean loss of the batch."""
        assert self._descend is not None
        return float(self._descend(batch, self._settings.learning_rate(number) if self._rate is None else self._rate))

    def rates(self, numbers: Sequence[int]) -> list[float]:
        """Return the learning rates of these steps; empty unless they are steps of plain SGD, which needs gradients only."""
        if not self._plain or self._rule is not None or self._descend is not None:
            return []
        return [self._settings.learning_rate(number) for number in numbers]

    def step(self, gradient: Any, number: int) -> None:
        """Take step ``number`` (from 0) with a gradient, shape (P,), which may be overwritten."""
        flat = self._model.parameters()
        if self._rule is not None:
            self._rule.correct(gradient, flat)
        if self._plain:
            gradient *= np.float32(self._settings.learning_rate(number) if self._rate is None else self._rate)
            flat -= gradient
            return
        if self._optimizer is None:
            self._optimizer = self._settings.stepper(flat)
            self._optimizer.restore(self._kept)
        self._optimizer.step(gradient, number)

    def forget(self) -> None:
        """Reset the optimizer. The rule's state is kept."""
        self._optimizer, self._kept = None, {}

    def momenta(self) -> Mapping[str, NDArray[Any]]:
        """Return the optimizer's state."""
        return self._kept if self._optimizer is None else self._optimizer.state()

    def ruled(self) -> Mapping[str, NDArray[Any]]:
        """Return the rule's state."""
        return self._kept_of_rule if self._rule is None else self._rule.state()

    def forget_rule(self) -> None:
        """Discard the rule's state."""
        self._kept_of_rule = {}
        if self._rule is not None:
            self._rule.restore({})

    def state(self) -> Mapping[str, NDArray[Any]]:
        """Return the states of optimizer and rule."""
        return {**self.momenta(), **{RULE + key: value for key, value in self.ruled().items()}}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore what `state` returned."""
        self._kept = {key: value for key, value in state.items() if not key.startswith(RULE)}
        self._kept_of_rule = {key.removeprefix(RULE): v for key, v in state.items() if key.startswith(RULE)}
        self._optimizer = self._rule = self._rule_table = None
