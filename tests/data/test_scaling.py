"""Standardization of features, its inverse, and its composition."""

from __future__ import annotations

import numpy as np
import pytest

from chimera.data.scaling import Scaling
from chimera.data.split import Split


def test_scaling_gives_mean_0_and_deviation_1_and_can_be_undone() -> None:
    values = np.random.default_rng(0).normal(5, 3, (50, 4))
    values[:, 2] = 7  # a constant feature becomes 0
    scaling = Scaling.of(values)
    scaled = scaling.apply(values)
    assert scaled.mean(0) == pytest.approx([0] * 4, abs=1e-6)
    assert scaled.std(0) == pytest.approx([1, 1, 0, 1], abs=1e-6)
    np.testing.assert_allclose(scaling.undo(scaled), values, rtol=1e-5)


def test_two_scalings_compose_to_one() -> None:
    values = np.random.default_rng(0).normal(5, 3, (50, 4))
    first, second = Scaling.of(values), Scaling.of(values**2)
    np.testing.assert_allclose(
        second.after(first).apply(values), second.apply(first.apply(values)), rtol=1e-5, atol=1e-6
    )


def test_a_split_stores_its_scaling() -> None:
    rng = np.random.default_rng(0)
    raw = rng.normal(5, 3, (50, 4)).astype(np.float32), rng.normal(9, 2, 50).astype(np.float32)
    plain = Split.of(raw, task="regression", standardize=False)
    assert plain.train.input_scaling is None
    split = plain.standardized(inputs=True, targets=True).limited(10)
    for part, before in ((split.test, plain.test), (split.train, plain.limited(10).train)):
        assert part.input_scaling is not None
        assert part.target_scaling is not None
        np.testing.assert_array_equal(part.input_scaling.apply(before.inputs), part.inputs)
        np.testing.assert_allclose(part.target_scaling.undo(part.targets), before.targets, rtol=1e-5)
