"""FedAdam (Reddi et al. 2021, "Adaptive Federated Optimization", algorithm 2)."""

from __future__ import annotations

from typing import Any

from chimera.strategies.fed_avg import FedAvg
from chimera.strategies.strategy import STRATEGIES


@STRATEGIES.register("fed-adam")
class FedAdam(FedAvg):
    """`fed-avg` with servers that step by Adam without bias correction (Reddi et al. 2021).

    Parameters
    ----------
    server_learning_rate : learning rate of the servers; default 0.03.
    beta1, beta2 : decay of the means of the change and of its square; defaults 0.9 and 0.99.
    tau : degree of adaptivity; default 1e-3. It is added to the root of the mean square, and the mean square starts at tau
        squared.
    options : options of `FedAvg`.
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
