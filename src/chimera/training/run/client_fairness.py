"""How evenly a model serves those who learn it (Li et al. 2020, "Fair Resource Allocation in Federated Learning")."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np

from chimera.training.progress.budget import CLIENT, smaller_is_better


def spread(of_clients: Collection[Mapping[str, float]]) -> dict[str, float]:
    """Return of each metric its mean over the clients, their standard deviation, and the mean of the worst tenth of them.

    Clients count alike, however much data they have; the worst tenth is one client at least. They are called, for a metric
    ``accuracy``: ``client_accuracy_mean``, ``client_accuracy_std`` and ``client_accuracy_worst_tenth``.
    """
    found: dict[str, float] = {}
    for name in next(iter(of_clients), {}):
        values = np.sort([each[name] for each in of_clients])
        worst = math.ceil(len(values) / 10)
        found |= {
            f"{CLIENT}{name}_mean": float(values.mean()),
            f"{CLIENT}{name}_std": float(values.std()),
            f"{CLIENT}{name}_worst_tenth": float(
                (values[-worst:] if smaller_is_better(name) else values[:worst]).mean()
            ),
        }
    return found
