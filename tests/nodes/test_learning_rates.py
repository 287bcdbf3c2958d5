"""The learning rates of a parameter-server master follow scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chimera.nodes.masters.learning_rate import LearningRate


def lengths(rate: LearningRate, gradients: list[float]) -> list[float]:
    """Return the length of each step, divided by the gradient."""
    flat, found = np.zeros(1), []
    steps = rate.stepper(flat)
    for number, gradient in enumerate(gradients):
        before = float(flat[0])
        steps.step(np.array([gradient]), number)
        found.append((before - float(flat[0])) / gradient)
    return found


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        ({"kind": "constant"}, [0.4, 0.4, 0.4, 0.4]),
        ({"kind": "invscaling", "power_t": 0.5}, [0.4, 0.4 / 2**0.5, 0.4 / 3**0.5, 0.2]),
        ({"kind": "optimal", "alpha": 0.1, "t0": 9.0}, [1.0, 10 / 11, 10 / 12, 10 / 13]),
    ],
)
def test_step_lengths_follow_the_schedule(rate: dict[str, Any], expected: list[float]) -> None:
    assert lengths(LearningRate(eta0=0.4, **rate), [1.0, -2.0, 3.0, 0.5]) == pytest.approx(expected)


def test_an_adaptive_rate_decreases_after_consecutive_steps_without_improvement() -> None:
    rate = LearningRate(kind="adaptive", eta0=1.0, tol=0.1, patience=3)
    improving, constant = [8.0, 4.0, 2.0], [2.0, 1.9]  # 1.9 is shorter, but not by a tenth
    assert lengths(rate, [*improving, *constant, 1.0, 1.0, 1.0]) == pytest.approx([1.0] * 8)
    found = lengths(rate, [*improving, *constant, 2.0, 2.0, 2.0, 2.0, 0.5])
    assert found == pytest.approx([1.0] * 5 + [0.2] * 3 + [0.04] * 2)
