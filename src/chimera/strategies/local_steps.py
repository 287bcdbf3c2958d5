"""The common part of strategies with local steps: workers train between two messages, and servers step by their changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from chimera.core.optimizer_table import optimizer_table
from chimera.strategies.strategy import Strategy

_SERVERS = "the strategy's option server_optimizer has it: set server_optimizer"

CLIENT_SGD = {"name": "sgd", "lr": 0.1}
"""The default optimizer of workers in strategies whose papers use or need plain SGD on workers."""


class LocalSteps(Strategy):
    """Workers that take local steps with the experiment's optimizer, and servers with an optimizer of the strategy.

    Parameters
    ----------
    server_optimizer : the servers' optimizer, which uses the mean change of the weights as a gradient. A name, a table with its
        options and a ``schedule``, or an object; see `optimizer_table`. Default: `server_default`. A table without a ``name``
        changes options of the default. The learning rate of ``sgd`` is 1 unless it is set.

    Attributes
    ----------
    server_default : the table of the paper's server optimizer. ``sgd`` with learning rate 1 applies the mean change.
    """

    server_default: ClassVar[Mapping[str, Any]] = {"name": "sgd", "lr": 1.0}
    moved: ClassVar[Mapping[str, str]] = {
        "local_optimizer": "workers step with the optimizer of [train]: set train.optimizer",
        "local_learning_rate": "workers step with the optimizer of [train]: set train.optimizer.lr",
        "server_learning_rate": f"{_SERVERS}.lr",
        "server_momentum": f"{_SERVERS}.momentum",
        "nesterov": f"{_SERVERS}.nesterov",
        "beta1": f"{_SERVERS}.betas (of fed-adagrad: .beta1)",
        "beta2": f"{_SERVERS}.betas",
        "tau": f"{_SERVERS}.tau",
    }

    def __init__(self, *, server_optimizer: Any = None) -> None:
        table = optimizer_table(server_optimizer, self.server_default)
        if str(table["name"]).lower() in ("sgd", "momentum"):
            table.setdefault("lr", 1.0)
        self.server_optimizer = table
