"""DiLoCo (Douillard et al. 2023, "DiLoCo: Distributed Low-Communication Training of Language Models")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from chimera.strategies.fed_avg import FedAvg
from chimera.strategies.strategy import STRATEGIES


@STRATEGIES.register("diloco")
class DiLoCo(FedAvg):
    """`fed-avg` with many local steps of AdamW, and servers that step by Nesterov momentum (Douillard et al. 2023).

    Synchronous training exchanges a vector at every step; DiLoCo exchanges one every ``local_steps`` steps. The workers'
    optimizers keep their state between rounds. If the experiment sets no optimizer, workers use ``adamw``.

    Parameters
    ----------
    local_steps : steps of a worker between two exchanges; default 50. The paper uses 50 to 500.
    server_optimizer : the outer optimizer; default ``sgd`` with learning rate 0.7 and Nesterov momentum 0.9. See `LocalSteps`.
    options : options of `FedAvg`.
    """

    default_optimizer: ClassVar[Mapping[str, Any]] = {"name": "adamw", "lr": 1e-3}
    server_default: ClassVar[Mapping[str, Any]] = {"name": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}

    def __init__(self, *, local_steps: int = 50, **options: Any) -> None:
        super().__init__(local_steps=local_steps, **options)
