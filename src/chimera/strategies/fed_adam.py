"""FedAdam (Reddi et al. 2021, "Adaptive Federated Optimization", algorithm 2)."""

from __future__ import annotations

from typing import Any

from chimera.strategies.fed_avg import FedAvg
from chimera.strategies.strategy import STRATEGIES


@STRATEGIES.register("fed-adam")
class FedAdam(FedAvg):
    """As `fed-avg`, with the servers stepping by an Adam without bias correction (Reddi et al. 2021).

    Parameters
    ----------
    server_learning_rate : of the servers.
    beta1, beta2 : how fast the means of the change and of its square decay.
    tau : how adaptive it is: it is added to the root of the mean square, and the mean square begins at its square.
    options : those of `FedAvg`.
    """

    def __init__(
        self,
        *,
        server_learning_rate: float = 0.03,
        beta1: float = 0.9,
        beta2: float = 0.99,
        tau: float = 1e-3,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.server_optimizer = {"name": "fed-adam", "lr": server_learning_rate, "betas": [beta1, beta2], "tau": tau}
