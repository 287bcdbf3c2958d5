"""FedProx (Li et al. 2020, "Federated Optimization in Heterogeneous Networks")."""

from __future__ import annotations

from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.strategies.fed_avg import FedAvg
from chimera.strategies.strategy import STRATEGIES


@STRATEGIES.register("fed-prox")
class FedProx(FedAvg):
    """As `fed-avg`, with each worker held near the weights that its round began with, and partial work taken (Li et al. 2020).

    Local steps go by the gradient of the loss plus mu/2 ||w - w_0||^2. Results of stragglers count, where FedAvg drops them.

    Parameters
    ----------
    mu : the strength; with 0 it is FedAvg that takes partial work.
    options : those of `FedAvg`.
    """

    takes_partial = True

    def __init__(self, *, mu: float = 0.1, **options: Any) -> None:
        super().__init__(**options)
        if not 0 <= mu < float("inf"):
            raise ConfigurationError(f"mu must be at least 0, not {mu}")
        self._rule = {"name": "proximal", "mu": mu}
