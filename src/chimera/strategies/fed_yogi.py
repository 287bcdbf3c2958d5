"""FedYogi (Reddi et al. 2021, "Adaptive Federated Optimization", algorithm 2)."""

from __future__ import annotations

from typing import Any

from chimera.strategies.fed_adam import FedAdam
from chimera.strategies.strategy import STRATEGIES


@STRATEGIES.register("fed-yogi")
class FedYogi(FedAdam):
    """As `fed-adam`, with a mean square that falls slowly where changes become small, as in Yogi (Reddi et al. 2021).

    Parameters
    ----------
    options : those of `FedAdam`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.server_optimizer = {**(self.server_optimizer or {}), "name": "fed-yogi"}
