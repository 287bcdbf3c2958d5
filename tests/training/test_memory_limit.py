"""Tests of memory limits: a worker keeps its limit, and several workers hold a model that is too large for one."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

import chimera
from chimera.core.errors import ConfigurationError, MemoryLimitError

# 26 million parameters, which are 420 MB with their gradients and Adam's state, but a sixth of them is 70.
LARGE = {"name": "mlp", "hidden": [2100] * 7}


@pytest.mark.long
def test_a_model_too_large_for_one_worker_is_trained_by_several_workers(tmp_path: Path) -> None:
    fit = functools.partial(
        chimera.train, LARGE, "digits", engine="local", batch_size=32, rounds=2, optimizer="adam", seed=1,
        evaluate_every=2, worker_resources={"memory_mb": 200},
    )  # fmt: skip
    with pytest.raises(MemoryLimitError, match=r"worker 0 needs more memory than its memory_mb = 200: allow more, "):
        fit(strategy="single-worker", workers=1, out=tmp_path / "one")
    run = fit(strategy={"name": "pipeline-parallel", "micro_batches": 4}, workers=6, out=tmp_path / "six")
    assert max(run.figures["peak_mb"].values()) < 200
    assert run.cost.rounds == 2


@pytest.mark.parametrize("given", [0, -1.0, float("inf"), float("nan"), "much"])
def test_an_invalid_memory_limit_is_rejected(given: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"worker_resources.*"):
        chimera.train(LARGE, "digits", worker_resources={"memory_mb": given}, out=tmp_path / "run")
