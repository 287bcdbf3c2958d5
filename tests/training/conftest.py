"""Fixtures of the training tests: quick experiments on digits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import chimera

Fit = Callable[..., chimera.Run]


@pytest.fixture
def fit(tmp_path: Path) -> Fit:
    """Train a small network on digits, by default in virtual time."""

    def fit(name: str = "run", **options: Any) -> chimera.Run:
        given = {
            "model": {"name": "mlp", "hidden": [16]},
            "data": "digits",
            "engine": "simulated",
            "workers": 3,
            "batch_size": 16,
            "optimizer": {"name": "adam", "lr": 5e-3},
            "rounds": 30,
            "out": tmp_path / name,
        }
        return chimera.train(**{**given, **options})

    return fit
