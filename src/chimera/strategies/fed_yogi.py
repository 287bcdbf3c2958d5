"""FedYogi (Reddi et al. 2021, "Adaptive Federated Optimization", algorithm 2)."""

from __future__ import annotations

from typing import Any

from chimera.strategies.fed_adam import FedAdam
from chimera.strategies.strategy import STRATEGIES


@STRATEGIES.register("fed-yogi")
class FedYogi(FedAdam):
    """`fed-adam` with Yogi's mean square, which falls slowly when changes become small (Reddi et al. 2021).

    Parameters
    ----------
    options : options of `FedAdam`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.server_optimizer = {**(self.server_optimizer or {}), "name": "fed-yogi"}
