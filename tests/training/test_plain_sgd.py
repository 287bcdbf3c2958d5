"""SGD without torch equals torch's up to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chimera.core.errors import ConfigurationError
from chimera.core.rows import RowLayout, SparseRows
from chimera.training.optimizers.flat_optimizer import FlatOptimizer
from chimera.training.optimizers.optimizer import OptimizerSettings
from chimera.training.optimizers.plain_sgd import PlainSGD

ROWS = RowLayout((6, 1), (10, 4))  # six rows of ten elements, and one of four


def both(options: dict[str, Any]) -> tuple[PlainSGD, np.ndarray, FlatOptimizer, np.ndarray]:
    settings = OptimizerSettings.of("sgd", options).over(20)
    assert settings.plain
    mine, torchs = np.random.default_rng(0).normal(size=(1, 64)).astype(np.float32).repeat(2, axis=0)
    return PlainSGD(mine, settings.learning_rate), mine, FlatOptimizer(settings, torchs), torchs


@pytest.mark.parametrize("options", [{}, {"lr": 0.3}, {"lr": 0.3, "schedule": "cosine"}])
def test_steps_match_torch(options: dict[str, Any]) -> None:
    plain, mine, torchs_optimizer, torchs = both(options)
    rng = np.random.default_rng(1)
    for number in range(20):
        gradient = rng.normal(size=64).astype(np.float32)
        plain.step(gradient.copy(), number)
        torchs_optimizer.step(gradient.copy(), number)
    np.testing.assert_allclose(
        mine, torchs, rtol=0, atol=20 * np.finfo(np.float32).eps * 8
    )  # a rounding of |x| < 8 a step
    assert not np.array_equal(mine, both(options)[1])


def test_row_steps_equal_dense_steps_with_zeros_elsewhere() -> None:
    plain, mine, *_ = both({"lr": 0.3})
    whole, expected, *_ = both({"lr": 0.3})
    rows = SparseRows(np.array([1, 4, 6], np.uint32), np.random.default_rng(2).normal(size=24).astype(np.float32))
    plain.step_rows(rows, ROWS, 0)
    whole.step(ROWS.filled(rows), 0)
    np.testing.assert_array_equal(mine, expected)
    assert (plain.state(), plain.curvature()) == ({}, None)


@pytest.mark.parametrize("rate", [-1, "fast", float("nan"), None])
def test_an_invalid_learning_rate_is_rejected(rate: Any) -> None:
    settings = OptimizerSettings("sgd", {"lr": rate})
    with pytest.raises(ConfigurationError, match=r"the optimizer 'sgd'(, option 'lr': 'fast' is| refuses its options)"):
        PlainSGD(np.zeros(3, np.float32), settings.learning_rate)
