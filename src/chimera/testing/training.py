"""Small experiments for the conformance kit: a strategy by name on an engine, a network and the digits."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from chimera.core.errors import ConfigurationError
from chimera.strategies.strategy import STRATEGIES, Strategy
from chimera.training.artifacts.result import Run
from chimera.training.progress.callback import Callback, Progress
from chimera.training.trainer import Trainer

Fit = Callable[..., Run]
WORKERS, BATCH, ROUNDS = 3, 16, 12
SAMPLES = 1437
"""Number of training samples in the digits."""
STRAGGLERS = {"name": "simulated", "compute": {"straggler_spread": 3.0}}


class InterruptedRunError(Exception):
    """An interruption between rounds, as in a power failure."""


class InterruptAt(Callback):
    """A callback that interrupts a run after a round."""

    def __init__(self, round_: int) -> None:
        self.round = round_

    def on_progress(self, progress: Progress) -> None:
        """Interrupt the run at that round."""
        if progress.rounds >= self.round:
            raise InterruptedRunError


def create(strategy: str | Strategy) -> Strategy:
    """Return a strategy of this name with its default options, or the given one."""
    return STRATEGIES.create(strategy) if isinstance(strategy, str) else strategy


def size(strategy: str) -> int:
    """Return the number of workers that a strategy uses, at most `WORKERS`."""
    return create(strategy).world_size(WORKERS)


def needs_batch_norm(strategy: Strategy) -> bool:
    """Return whether a strategy needs a network with batch normalisation, because it keeps its parameters on workers."""
    from chimera.testing.poison import nan_on_poison

    try:
        strategy.keeps(nan_on_poison())
    except ConfigurationError:
        return True
    return False


def epochs(strategy: str, count: int, batch_size: int) -> dict[str, int]:
    """Return a budget of ``count`` epochs, in rounds: it also stops strategies that count no samples."""
    samples = create(strategy).samples_per_round(size(strategy), batch_size, SAMPLES)
    rounds = math.ceil(count * SAMPLES / samples)
    return {"batch_size": batch_size, "rounds": rounds, "evaluate_every": rounds}


def train(strategy: str | Strategy, folder: Path, **options: Any) -> Run:
    """Train a small network on the digits in ``folder``; the options are those of `Trainer`."""
    strategy = create(strategy)
    given = {
        "model": {"name": "mlp", "hidden": [16, 16], "batch_norm": needs_batch_norm(strategy)},
        "data": "digits",
        "engine": "simulated",
        "workers": WORKERS,
        "batch_size": BATCH,
        "optimizer": {"name": "sgd", "lr": 0.1},
        "rounds": ROUNDS,
        "evaluate_every": ROUNDS,
        "seed": 5,
        "out": folder,
    }
    return Trainer(strategy=strategy, **{**given, **options}).fit()


def weights(run: Run) -> np.ndarray[Any, Any]:
    """Return the final flat parameters of a run."""
    return run.trained.parameters().copy()


def fit_in(folder: Path) -> Fit:
    """Return a function that trains each time in a new folder within this one."""
    numbers = itertools.count()
    return lambda strategy, **options: train(strategy, **{"folder": folder / f"run {next(numbers)}", **options})


@cache
def in_virtual_time(strategy: str, workers: int = WORKERS, spread: float = 0.0) -> Run:
    """Return the run of a strategy whose workers differ in speed at random by ``spread``; cached."""
    with TemporaryDirectory() as folder:
        engine = {"name": "simulated", "compute": {"straggler_spread": spread}}
        return train(strategy, Path(folder) / "run", engine=engine, workers=workers)


@cache
def depends_on_speed(strategy: str) -> bool:
    """Return whether the result of several workers depends on their speed, by more than the order of sums."""
    even, uneven = (in_virtual_time(strategy, spread=spread).trained.parameters() for spread in (0.0, 3.0))
    return not np.allclose(even, uneven, rtol=0, atol=2e-6)


def samples_by_call(run: Run) -> Counter[tuple[str, int]]:
    """Return, from the run's trace, the number of calls for each worker method and number of samples."""
    rows = map(json.loads, (run.run_dir / "trace.jsonl").read_text(encoding="utf-8").splitlines())
    return Counter((row["actor"], row["samples"]) for row in rows if row.get("samples"))
