"""With redundant blocks, a codec that commutes with sums changes the traffic only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chimera
from chimera.codecs.codec import CODECS
from chimera.strategies.strategy import STRATEGIES

ENOUGH = {"powersgd": {"rank": 64}, "error-feedback": {"codec": {"name": "powersgd", "rank": 64}}}
"""Options by which those that leave something out leave out nothing of these matrices."""
LINEAR = [entry.name for entry in CODECS.entries() if entry.factory().reduction() is not None]
REDUNDANT = [entry.name for entry in STRATEGIES.entries() if entry.factory.family == "redundant work"]
OPTIONS = {"approximate-coding": {"stragglers": 0}, "coded-distributed-computing": {"copies": 1}}
"""By which all of them are exact, and send something also where two work."""


def trained(folder: Path, strategy: Any, workers: int = 3, **options: Any) -> chimera.Run:
    model = {"name": "mlp", "hidden": [16]}
    given: dict[str, Any] = {
        "engine": "simulated",
        "batch_size": 32,
        "epochs": 2,
        "seed": 3,
        "optimizer": {"name": "sgd", "lr": 0.1},
    }
    return chimera.train(model, "digits", strategy=strategy, workers=workers, out=folder, **{**given, **options})


@pytest.mark.sampled(8)
@pytest.mark.parametrize("workers", [3, 2])
@pytest.mark.parametrize("codec", LINEAR)
@pytest.mark.parametrize("strategy", REDUNDANT)
def test_two_epochs_equal_those_of_a_parameter_server(tmp_path: Path, strategy: str, codec: str, workers: int) -> None:
    packed = {"name": codec, **ENOUGH.get(codec, {})}
    run = trained(tmp_path / "coded", {"name": strategy, **OPTIONS.get(strategy, {})}, workers, codec=packed)
    plain = trained(tmp_path / "plain", "parameter-server", workers)
    assert run.cost.epochs == plain.cost.epochs >= 2
    np.testing.assert_allclose(run.trained.parameters(), plain.trained.parameters(), atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("strategy", REDUNDANT)
def test_lossy_codecs_send_less_and_learn(tmp_path: Path, strategy: str) -> None:
    run = trained(tmp_path, {"name": strategy, **OPTIONS.get(strategy, {})}, batch_size=16, epochs=6, codec="powersgd")
    assert run.cost.bits_per_element_up < 24
    assert run.metrics["accuracy"] > 0.75
