"""FedAdagrad (Reddi et al. 2021, "Adaptive Federated Optimization", algorithm 2)."""

from __future__ import annotations

from typing import Any

from chimera.strategies.fed_avg import FedAvg
from chimera.strategies.strategy import STRATEGIES


@STRATEGIES.register("fed-adagrad")
class FedAdagrad(FedAvg):
    """As `fed-avg`, with servers that step by the change over the root of its summed squares (Reddi et al. 2021).

    Parameters
    ----------
    server_learning_rate : of the servers.
    beta1 : how fast the mean of the change decays.
    tau : how adaptive it is: it is added to the root of the sum, and the sum begins at its square.
    options : those of `FedAvg`.
    """

    def __init__(
        self, *, server_learning_rate: float = 0.1, beta1: float = 0.0, tau: float = 1e-3, **options: Any
    ) -> None:
        super().__init__(**options)
        self.server_optimizer = {"name": "fed-adagrad", "lr": server_learning_rate, "beta1": beta1, "tau": tau}
