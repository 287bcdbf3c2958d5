"""FedAdagrad (Reddi et al. 2021, "Adaptive Federated Optimization", algorithm 2)."""

from __future__ import annotations

from typing import Any

from chimera.strategies.fed_avg import FedAvg
from chimera.strategies.strategy import STRATEGIES


@STRATEGIES.register("fed-adagrad")
class FedAdagrad(FedAvg):
    """`fed-avg` with servers that step by Adagrad: change over the root of summed squares (Reddi et al. 2021).

    Parameters
    ----------
    server_learning_rate : learning rate of the servers; default 0.1.
    beta1 : decay of the mean of the change; default 0, only the newest change.
    tau : degree of adaptivity; default 1e-3. It is added to the root of the sum, and the sum starts at tau squared.
    options : options of `FedAvg`.
    """

    def __init__(
        self, *, server_learning_rate: float = 0.1, beta1: float = 0.0, tau: float = 1e-3, **options: Any
    ) -> None:
        super().__init__(**options)
        self.server_optimizer = {"name": "fed-adagrad", "lr": server_learning_rate, "beta1": beta1, "tau": tau}
