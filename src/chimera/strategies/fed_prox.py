"""FedProx (Li et al. 2020, "Federated Optimization in Heterogeneous Networks")."""

from __future__ import annotations

from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.strategies.fed_avg import FedAvg
from chimera.strategies.strategy import STRATEGIES


@STRATEGIES.register("fed-prox")
class FedProx(FedAvg):
    """`fed-avg` with a proximal term that holds workers near the round's first weights, and partial work (Li et al. 2020).

    Local steps use the gradient of the loss plus mu/2 ||w - w_0||^2, with the weights w_0 at the start of the round. Partial
    results of stragglers count; FedAvg drops them.

    Parameters
    ----------
    mu : strength of the proximal term; default 0.1. With 0 it is FedAvg with partial work.
    options : options of `FedAvg`.
    """

    takes_partial = True

    def __init__(self, *, mu: float = 0.1, **options: Any) -> None:
        super().__init__(**options)
        if not 0 <= mu < float("inf"):
            raise ConfigurationError(f"mu must be at least 0, not {mu}")
        self._rule = {"name": "proximal", "mu": mu}
