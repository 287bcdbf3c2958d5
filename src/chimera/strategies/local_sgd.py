"""Local SGD (Stich 2019, "Local SGD Converges Fast and Communicates Little")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chimera.strategies.fed_avg import FedAvg
from chimera.strategies.strategy import STRATEGIES


@STRATEGIES.register("local-sgd")
class LocalSGD(FedAvg):
    """All workers take ``local_steps`` steps of their own, then continue from the mean of their weights (Stich 2019).

    It is `fed-avg` in which all workers participate in each round with equal weight. Workers need not have fixed data of their
    own.

    Parameters
    ----------
    local_steps, server_optimizer, scaled, aggregation, shards : see `FedAvg`.
    """

    family = "local steps"
    private = False

    def __init__(
        self,
        *,
        local_steps: int = 10,
        server_optimizer: Any = None,
        scaled: bool = False,
        aggregation: str | Mapping[str, Any] = "mean",
        shards: int = 1,
    ) -> None:
        super().__init__(
            local_steps=local_steps,
            server_optimizer=server_optimizer,
            scaled=scaled,
            aggregation=aggregation,
            shards=shards,
            send="weights",
        )
