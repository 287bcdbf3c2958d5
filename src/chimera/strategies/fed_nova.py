"""FedNova (Wang et al. 2020, "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization")."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.strategies.fed_avg import FedAvg
from chimera.strategies.local_steps import CLIENT_SGD
from chimera.strategies.participation import Work
from chimera.strategies.strategy import STRATEGIES, Aggregated


@STRATEGIES.register("fed-nova")
class FedNova(FedAvg):
    """`fed-avg` with each change divided by its gradient weight before the mean (Wang et al. 2020).

    The gradient weight, ||a_i||_1 in the paper, is the sum of the weights of a worker's local gradients in its change. Dividing
    by it prevents bias towards the optimum of workers that take more local steps. The mean is multiplied by the mean gradient
    weight, so that with equal steps it is FedAvg. Partial results of stragglers count.

    The experiment's optimizer must be ``sgd``, with or without ``momentum``, because its gradient weight is known; default
    ``sgd`` with learning rate 0.1.

    Parameters
    ----------
    keep_state : default False, and required with momentum: the gradient weight is known for steps from zero momentum only.
    options : options of `FedAvg`.
    """

    takes_partial = True
    default_optimizer = CLIENT_SGD

    def __init__(self, *, keep_state: bool = False, **options: Any) -> None:
        super().__init__(keep_state=keep_state, **options)
        self._momentum = 0.0
        if self._reached:
            raise ConfigurationError("fed-nova divides changes: send = 'weights' leaves it nothing to divide")

    def optimizer_of(self, optimizer: Mapping[str, Any], workers: int) -> Mapping[str, Any]:
        """Return the table of the workers' optimizer, whose momentum determines the gradient weight."""
        try:
            self._momentum = float(optimizer.get("momentum", 0))
        except (TypeError, ValueError):
            self._momentum = math.nan  # refused below
        known = optimizer["name"] == "sgd" and set(optimizer) <= {"name", "lr", "momentum", "schedule"}
        if not known or not 0 <= self._momentum < 1:
            raise ConfigurationError(
                "fed-nova knows the gradient weight of sgd only: set train.optimizer to sgd, with no other options than lr, "
                f"momentum (from 0 to less than 1) and schedule, not {dict(optimizer)!r}"
            )
        if self._momentum and self._keep_state:
            raise ConfigurationError("fed-nova begins each round with zero momentum: set keep_state = false")
        return super().optimizer_of(optimizer, workers)

    def aggregated(self, workers: int) -> Aggregated:
        """Return the value of FedAvg. With ``local_epochs``, the steps and thus the result depend on the numbers of samples."""
        return replace(super().aggregated(workers), by_samples=self._local_epochs is not None)

    def _weights(self, plan: Sequence[Work]) -> list[float]:
        """Return the weights of FedAvg times the mean gradient weight, divided by the worker's own."""
        samples, of_steps = super()._weights(plan), [self._gradient_weight(work.steps) for work in plan]
        mean = sum(map(float.__mul__, samples, of_steps)) / sum(samples)
        return [each * (mean / own) for each, own in zip(samples, of_steps, strict=True)]

    def _factor(self, weight: float) -> dict[str, float]:
        return {"weight": weight}

    def _gradient_weight(self, steps: int) -> float:
        """Return the sum of the weights of the gradients of ``steps`` local steps in the change (the paper's ||a_i||_1)."""
        rho = self._momentum
        return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
