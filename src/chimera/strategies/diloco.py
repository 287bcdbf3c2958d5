"""DiLoCo (Douillard et al. 2023, "DiLoCo: Distributed Low-Communication Training of Language Models")."""

from __future__ import annotations

from typing import Any

from chimera.strategies.fed_avg_m import FedAvgM
from chimera.strategies.strategy import STRATEGIES


@STRATEGIES.register("diloco")
class DiLoCo(FedAvgM):
    """As `fed-avg`, with many local steps of AdamW, and servers that step by Nesterov's momentum (Douillard et al. 2023).

    Workers exchange once in ``local_steps`` what synchronous training exchanges at every step. The local optimizers keep
    their state.

    Parameters
    ----------
    local_steps : of AdamW between two exchanges, 50 to 500 in the paper.
    local_optimizer, local_learning_rate : the inner optimizer; see `FedAvg`.
    server_learning_rate, server_momentum, nesterov : of the outer one; see `FedAvgM`.
    options : those of `FedAvg`.
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
