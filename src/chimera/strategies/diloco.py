"""DiLoCo (Douillard et al. 2023, "DiLoCo: Distributed Low-Communication Training of Language Models")."""

from __future__ import annotations

from typing import Any

from chimera.strategies.fed_avg_m import FedAvgM
from chimera.strategies.strategy import STRATEGIES


@STRATEGIES.register("diloco")
class DiLoCo(FedAvgM):
    """`fed-avg` with many local steps of AdamW, and servers that step by Nesterov momentum (Douillard et al. 2023).

    Synchronous training exchanges a vector at every step; DiLoCo exchanges one every ``local_steps``. Local optimizers keep
    their state between rounds.

    Parameters
    ----------
    local_steps : AdamW steps between two exchanges; default 50. The paper uses 50 to 500.
    local_optimizer, local_learning_rate : the inner optimizer, default ``adamw``; see `FedAvg`.
    server_learning_rate, server_momentum, nesterov : the outer optimizer; defaults 0.7, 0.9 and True; see `FedAvgM`.
    options : options of `FedAvg`.
    """

    def __init__(
        self,
        *,
        local_steps: int = 50,
        local_optimizer: Any = "adamw",
        server_learning_rate: float = 0.7,
        server_momentum: float = 0.9,
        nesterov: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(
            local_steps=local_steps,
            local_optimizer=local_optimizer,
            server_learning_rate=server_learning_rate,
            server_momentum=server_momentum,
            nesterov=nesterov,
            **options,
        )
