"""FedAvgM (Hsu et al. 2019, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from chimera.strategies.fed_avg import FedAvg
from chimera.strategies.strategy import STRATEGIES


@STRATEGIES.register("fed-avg-m")
class FedAvgM(FedAvg):
    """`fed-avg` with momentum on the servers, which dampens contrary changes of different workers (Hsu et al. 2019).

    The default of ``server_optimizer`` is ``sgd`` with learning rate 1 and momentum 0.9. With momentum 0, the strategy is
    FedAvg.
    """

    server_default: ClassVar[Mapping[str, Any]] = {"name": "sgd", "lr": 1.0, "momentum": 0.9}
