"""Train the module on two processes, and load the weights into plain PyTorch: python train.py."""

from pathlib import Path
from typing import Any

import torch
from model import Network, Points

import chimera


def fit(**options: Any) -> chimera.Run:
    """Train; ``options`` replace the arguments below, such as ``strategy="fed-avg"`` or ``engine="simulated"``."""
    arguments: dict[str, Any] = {
        "strategy": "all-reduce",
        "engine": "local",
        "workers": 2,
        "batch_size": 32,
        "epochs": 20,
        "optimizer": {"name": "adam", "lr": 3e-3},
        "seed": 1,
    }
    return chimera.train(Network(), (Points(2000, seed=1), Points(500, seed=2)), **{**arguments, **options})


if __name__ == "__main__":
    run = fit()
    print(run.metrics, "report:", Path(run.run_dir, "report.html"))
    network = run.model  # the trained module
    print(network(torch.zeros(1, 8)))
