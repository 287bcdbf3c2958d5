"""What the tests of models that are cut share: networks, and small runs to compare with the unsplit one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

import chimera
from chimera.core.errors import ConfigurationError
from chimera.data.dataset import Dataset

Fit = Callable[..., chimera.Run]


def fit_in(folder: Path, model: Any, **common: Any) -> Fit:
    """Return what trains for 50 steps, by default this model on the digits with Adam, each time in a new folder."""
    numbers = itertools.count()

    def fit(workers: int, strategy: Any, **options: Any) -> chimera.Run:
        given = {
            "model": model, "data": "digits", "engine": "simulated", "batch_size": 32, "rounds": 50, "evaluate_every": 25,
            "optimizer": {"name": "adam", "lr": 0.01}, "seed": 1, "out": folder / f"run {next(numbers)}", **common,
        }  # fmt: skip
        return chimera.train(strategy=strategy, workers=workers, **{**given, **options})

    return fit


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Sequential(nn.Linear(32, 24), nn.Tanh()), nn.Linear(24, 10))


def random_and_normalised() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 24), nn.BatchNorm1d(24),
        nn.Dropout(0.3), nn.Tanh(), nn.Linear(24, 10),
    )  # fmt: skip


class Pooled(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.mean(1)


def transformer(layers: int = 2) -> nn.Module:
    """Return words, layers of attention with dropout, and an answer."""
    stacked = [nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True) for _ in range(layers)]
    return nn.Sequential(nn.Embedding(20, 16), *stacked, Pooled(), nn.Linear(16, 5))


def sentences() -> Dataset:
    """Return 200 sentences of 7 words."""
    words = np.random.default_rng(0).integers(0, 20, (200, 7))
    return Dataset(words, words.sum(1) % 5)


def parameters(run: chimera.Run) -> np.ndarray[Any, Any]:
    return run.trained.parameters().copy()


def assert_same(run: chimera.Run, whole: chimera.Run) -> None:
    """Check that weights, buffers, losses and samples of two runs are equal up to rounding."""
    np.testing.assert_allclose(parameters(run), parameters(whole), atol=2e-6)
    np.testing.assert_allclose(run.trained.buffers(), whole.trained.buffers(), atol=2e-6)
    assert run.cost.samples == whole.cost.samples
    losses = [[row["train_loss"] for row in each.rows if "train_loss" in row] for each in (run, whole)]
    np.testing.assert_allclose(*losses, atol=1e-5)


def assert_refused(why: str, fit: Fit, *given: Any, **options: Any) -> None:
    """Check that the run is rejected before it starts, with a one-line reason."""
    with pytest.raises(ConfigurationError, match=why) as caught:
        fit(*given, **options)
    assert "\n" not in str(caught.value)
