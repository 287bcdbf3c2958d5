"""Fairness over clients: the spread of a metric (Li et al. 2020, "Fair Resource Allocation in Federated Learning")."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np

from chimera.training.progress.budget import CLIENT, smaller_is_better


def client_fairness(of_clients: Collection[Mapping[str, float]]) -> dict[str, float]:
    """Return, for each metric, its mean over the clients, the standard deviation, and the mean over the worst tenth.

    Metrics that not all clients have are left out. Each client has the same weight, whatever its number of rows. The worst
    tenth has at least one client. For a metric ``accuracy`` the names are ``client_accuracy_mean``, ``client_accuracy_std`` and
    ``client_accuracy_worst_tenth``.
    """
    found: dict[str, float] = {}
    for name in next(iter(of_clients), {}):
        if not all(name in each for each in of_clients):
            continue  # the owner of a node may give fewer metrics than others
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
