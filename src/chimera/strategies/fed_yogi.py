"""FedYogi (Reddi et al. 2021, "Adaptive Federated Optimization", algorithm 2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from chimera.strategies.fed_avg import FedAvg
from chimera.strategies.local_steps import CLIENT_SGD
from chimera.strategies.strategy import STRATEGIES


@STRATEGIES.register("fed-yogi")
class FedYogi(FedAvg):
    """`fed-adam` with Yogi's mean square, which falls slowly when changes become small (Reddi et al. 2021).

    The options of the default ``server_optimizer``, and the default optimizer of workers, are those of `FedAdam`.
    """

    default_optimizer = CLIENT_SGD
    server_default: ClassVar[Mapping[str, Any]] = {"name": "fed-yogi", "lr": 0.03, "betas": [0.9, 0.99], "tau": 1e-3}
