"""FedAdam (Reddi et al. 2021, "Adaptive Federated Optimization", algorithm 2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from chimera.strategies.fed_avg import FedAvg
from chimera.strategies.local_steps import CLIENT_SGD
from chimera.strategies.strategy import STRATEGIES


@STRATEGIES.register("fed-adam")
class FedAdam(FedAvg):
    """`fed-avg` with servers that step by Adam without bias correction (Reddi et al. 2021).

    Options of the default ``server_optimizer``: ``lr``, default 0.03; ``betas``, the decays of the means of the change and of
    its square, defaults 0.9 and 0.99; ``tau``, the degree of adaptivity, default 1e-3. ``tau`` is added to the root of the mean
    square, and the mean square starts at its square. If the experiment sets no optimizer, workers use ``sgd`` with learning
    rate 0.1, since the paper's clients use plain SGD.
    """

    default_optimizer = CLIENT_SGD
    server_default: ClassVar[Mapping[str, Any]] = {"name": "fed-adam", "lr": 0.03, "betas": [0.9, 0.99], "tau": 1e-3}
