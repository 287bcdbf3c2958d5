"""FedAvgM (Hsu et al. 2019, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification")."""

from __future__ import annotations

from typing import Any

from chimera.strategies.fed_avg import FedAvg
from chimera.strategies.strategy import STRATEGIES


@STRATEGIES.register("fed-avg-m")
class FedAvgM(FedAvg):
    """`fed-avg` with momentum on the servers, which dampens contrary changes of different workers (Hsu et al. 2019).

    Parameters
    ----------
    server_learning_rate, server_momentum : of the servers' SGD; defaults 1 and 0.9. With rate 1 and momentum 0 it is FedAvg.
    nesterov : whether the momentum is Nesterov's; default False.
    options : options of `FedAvg`.
    """

    def __init__(
        self,
        *,
        server_learning_rate: float = 1.0,
        server_momentum: float = 0.9,
        nesterov: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        moving = {"momentum": server_momentum, "nesterov": nesterov} if server_momentum else {}
        self.server_optimizer = {"name": "sgd", "lr": server_learning_rate, **moving}
