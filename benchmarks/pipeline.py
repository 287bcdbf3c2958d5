"""Speed of a pipeline of two stages on this machine and of one process, with and without micro-batches.

A network of ten equal layers (10.5 million parameters) trains with SGD on batches of 1,024; each process has one thread. The
variants alternate. The table shows medians of the milliseconds of a step, and the share of the theoretical speed-up
S M / (M + S - 1) that two stages reach over one process. Run it on an idle machine::

    python benchmarks/pipeline.py [--turns 5] [--micro-batches 8] [--batch 1024]
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
from pathlib import Path
from typing import Any

STAGES, SAMPLES, WIDTH, LAYERS, CLASSES = 2, 8192, 1024, 10, 100
WARM_UP, STEPS = 3, 13


def network() -> Any:
    import torch

    torch.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers)


def milliseconds(strategy: Any, workers: int, batch: int) -> float:
    """Return the milliseconds of a step, after the steps to warm up."""
    import numpy as np

    from chimera.data.dataset import Dataset
    from chimera.data.split import Split
    from chimera.training.trainer import Trainer

    rng = np.random.default_rng(0)
    inputs, targets = rng.random((SAMPLES, WIDTH), np.float32), rng.integers(0, CLASSES, SAMPLES)
    with tempfile.TemporaryDirectory() as folder:
        run = Trainer(
            f"{__file__}:network",
            Split(Dataset(inputs, targets), Dataset(inputs[:64], targets[:64])),
            strategy=strategy,
            engine="local",
            workers=workers,
            batch_size=batch,
            optimizer={"name": "sgd", "lr": 0.01},
            rounds=WARM_UP + STEPS,
            log_every=WARM_UP,
            evaluate_every=10**9,
            out=Path(folder) / "run",
        ).fit()
    first, last = run.rows[0], run.rows[-1]
    return 1e3 * (last["seconds"] - first["seconds"]) / (last["round"] - first["round"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--batch", type=int, default=1024)
    arguments = parser.parse_args()
    import torch

    import chimera

    micro = arguments.micro_batches
    pipeline = {"name": "pipeline-parallel", "micro_batches": micro}
    variants = {
        "one process": ("single-worker", 1),
        f"one stage, {micro} micro-batches": (pipeline, 1),
        f"two stages, {micro} micro-batches": (pipeline, STAGES),
    }
    about = f"chimera {chimera.__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    print(
        f"{about}, {os.cpu_count()} processors, batches of {arguments.batch}, medians of {arguments.turns} repetitions"
    )
    found: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(arguments.turns):
        for name, (strategy, workers) in variants.items():
            found[name].append(milliseconds(strategy, workers, arguments.batch))
    theory = STAGES * micro / (micro + STAGES - 1)
    split = statistics.median(found[f"two stages, {micro} micro-batches"])
    print(f"{'':32}{'ms a step':>10}{'spread':>8}{'speed-up of two stages':>24}{'of theory':>11}")
    for name, values in found.items():
        value = statistics.median(values)
        spread = (max(values) - min(values)) / value
        print(f"{name:32}{value:10.0f}{spread:8.0%}{value / split:24.2f}{value / split / theory:11.2f}")


if __name__ == "__main__":
    main()
