"""Word models learn by the strategies of every other model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chimera.data.dataset import Dataset
from chimera.data.split import Split
from training.conftest import Fit

WORDS = 30


def text(windows: int, seed: int) -> Dataset:
    """Return windows whose context words are the neighbours of the word."""
    rng = np.random.default_rng(seed)
    targets = rng.integers(0, WORDS, windows)
    inputs = (targets[:, None] + np.array([-2, -1, 1, 2])) % WORDS
    inputs[::7, 0] = -1
    return Dataset(inputs, targets, tuple(f"word{place}" for place in range(WORDS)))


DATA = Split(text(3000, 0), text(300, 1))
COUNTS = [100] * WORDS


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "strategy", "engine"),
    [
        ({"name": "cbow", "output": "negative-sampling", "counts": COUNTS}, "parameter-server", "simulated"),
        ({"name": "cbow", "output": "negative-sampling", "counts": COUNTS}, "fed-buff", "simulated"),
        ({"name": "skip-gram", "output": "hierarchical-softmax", "counts": COUNTS}, "all-reduce", "local"),
        ({"name": "cbow"}, "parameter-server", "local"),
    ],
)
def test_word_models_learn_related_words(fit: Fit, model: dict[str, Any], strategy: str, engine: str) -> None:
    options: dict[str, Any] = {"strategy": strategy, "optimizer": {"name": "adam", "lr": 0.05}}
    if strategy == "fed-buff":
        options = {"strategy": {"name": strategy, "local_steps": 10, "buffer": 2}}
        options["optimizer"] = {"name": "sgd", "lr": 2.0}
    run = fit(
        model={**model, "dim": 16}, data=DATA, engine=engine, workers=2, batch_size=50, rounds=None, epochs=5,
        evaluate_every=1000, **options,
    )  # fmt: skip
    assert run.metrics["accuracy"] > 0.8


def test_two_runs_with_one_seed_leave_the_same_bytes(fit: Fit) -> None:
    model = {"name": "cbow", "output": "negative-sampling", "counts": COUNTS, "dim": 8}
    first, second = (fit(name, model=model, data=DATA, batch_size=50) for name in "ab")
    for file in ("metrics.jsonl", "weights.safetensors"):
        assert (first.run_dir / file).read_bytes() == (second.run_dir / file).read_bytes()
