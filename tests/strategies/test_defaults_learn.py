"""Every registered strategy learns the digits if the user names only model, data and strategy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import chimera
from chimera.strategies.strategy import STRATEGIES
from chimera.testing.training import needs_batch_norm

ONE_OF_EACH_FAMILY = {entry.factory.family: entry.name for entry in reversed(STRATEGIES.entries())}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(entry.name, marks=() if entry.name in ONE_OF_EACH_FAMILY.values() else pytest.mark.long)
        for entry in STRATEGIES.entries()
    ],
)
def test_every_strategy_learns_by_its_defaults(strategy: str, tmp_path: Path) -> None:
    network: Any = "mlp"
    if needs_batch_norm(STRATEGIES.create(strategy)):  # it keeps these layers on workers, and refuses a model without
        network = {"name": "mlp", "batch_norm": True}
    run = chimera.train(network, "digits", strategy=strategy, engine="simulated", epochs=20, out=tmp_path / "run")
    assert run.metrics["accuracy"] >= 0.9
