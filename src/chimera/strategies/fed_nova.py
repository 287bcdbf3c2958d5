"""FedNova (Wang et al. 2020, "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.strategies.fed_avg import FedAvg
from chimera.strategies.participation import Work
from chimera.strategies.strategy import STRATEGIES, Aggregated


@STRATEGIES.register("fed-nova")
class FedNova(FedAvg):
    """As `fed-avg`, with each change divided by how far its worker's steps reach, before they are averaged (Wang et al. 2020).

    Who takes more local steps, having more data or being no straggler, does not pull the model to its own optimum. The mean is
    multiplied by the mean reach: with equal steps it is FedAvg. Results of stragglers count.

    Parameters
    ----------
    local_optimizer : ``sgd``, with or without ``momentum``, whose reach is known.
    keep_state : not for momentum: a round's reach is that of steps from a standstill.
    options : those of `FedAvg`.
    """

    takes_partial = True

    def __init__(self, *, keep_state: bool = False, **options: Any) -> None:
        super().__init__(keep_state=keep_state, **options)
        table = dict(self.local_optimizer or {})
        self._momentum = float(table.get("momentum", 0))
        if table["name"] != "sgd" or set(table) - {"name", "lr", "momentum", "schedule"} or not 0 <= self._momentum < 1:
            raise ConfigurationError(
                "fed-nova knows how far steps of plain sgd and of its momentum (0 to 1) reach: "
                f"choose such a local_optimizer, not {table!r}"
            )
        if self._momentum and keep_state:
            raise ConfigurationError("fed-nova begins each round from a standstill: set keep_state = false")
        if self._reached:
            raise ConfigurationError("fed-nova divides changes: send = 'weights' leaves it nothing to divide")

    def aggregated(self, workers: int) -> Aggregated:
        """Return as FedAvg does; where workers take as many steps as they have data for, reaches depend on that."""
        return replace(super().aggregated(workers), by_samples=self._local_epochs is not None)

    def _weights(self, plan: Sequence[Work]) -> list[float]:
        """Return the weights of FedAvg, times the mean reach over one's own."""
        samples, reaches = super()._weights(plan), [self._reach(work.steps) for work in plan]
        mean = sum(map(float.__mul__, samples, reaches)) / sum(samples)
        return [each * (mean / reach) for each, reach in zip(samples, reaches, strict=True)]

    def _reach(self, steps: int) -> float:
        """Return how often the gradients of so many steps count in the change, all together (the paper's ||a_i||_1)."""
        rho = self._momentum
        return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
