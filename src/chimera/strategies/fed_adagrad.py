"""FedAdagrad (Reddi et al. 2021, "Adaptive Federated Optimization", algorithm 2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from chimera.strategies.fed_avg import FedAvg
from chimera.strategies.local_steps import CLIENT_SGD
from chimera.strategies.strategy import STRATEGIES


@STRATEGIES.register("fed-adagrad")
class FedAdagrad(FedAvg):
    """`fed-avg` with servers that step by Adagrad: change over the root of summed squares (Reddi et al. 2021).

    Options of the default ``server_optimizer``: ``lr``, default 0.03; ``beta1``, the decay of the mean of the change, default 0
    (only the newest change); ``tau``, the degree of adaptivity, default 1e-3. ``tau`` is added to the root of the sum, and the
    sum starts at its square. If the experiment sets no optimizer, workers use ``sgd`` with learning rate 0.1, since the paper's
    clients use plain SGD.
    """

    default_optimizer = CLIENT_SGD
    server_default: ClassVar[Mapping[str, Any]] = {"name": "fed-adagrad", "lr": 0.03, "beta1": 0.0, "tau": 1e-3}
