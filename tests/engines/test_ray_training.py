"""What a run meets and what it wrote on one engine, it meets and goes on from on Ray; tests/strategies has that all come to the
same weights there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chimera
from chimera.core.engine import ENGINES, Engine
from chimera.models.torch_model import TorchModel
from training.poisoned import Fragile, digits, in_turn


@pytest.fixture(scope="module")
def ray_engine() -> Iterator[Engine]:
    with ENGINES.create("ray") as engine:
        yield engine


@pytest.mark.parametrize("strategy", [{"name": "parameter-server", "shards": 2}, {"name": "all-reduce"}], ids=str)
def test_a_run_goes_on_from_processes_to_ray_to_virtual_time(
    ray_engine: Engine, strategy: dict[str, Any], tmp_path: Path
) -> None:
    def trained(engine: Engine | str, rounds: int, folder: str, resume: bool = False) -> chimera.Run:
        return chimera.train(
            "mlp",
            "digits",
            engine=engine,
            workers=2,
            strategy=strategy,
            batch_size=16,
            rounds=rounds,
            evaluate_every=4,
            optimizer={"name": "sgd", "lr": 0.1, "momentum": 0.9},
            seed=5,
            out=tmp_path / folder,
            resume=resume,
        )

    whole = trained("local", 24, "whole")
    trained("local", 8, "run")
    for engine, rounds in ((ray_engine, 16), ("simulated", 24)):
        run = trained(engine, rounds, "run", resume=True)
        assert (run.cost.rounds, run.cost.samples) == (rounds, rounds * 2 * 16)
    np.testing.assert_allclose(run.trained.parameters(), whole.trained.parameters(), atol=2e-6)
    assert [row["round"] for row in run.rows] == [row["round"] for row in whole.rows]


@pytest.mark.parametrize("strategy", [{"name": "parameter-server", "shards": 2}, {"name": "all-reduce"}], ids=str)
def test_a_gradient_that_is_not_finite_is_left_out_on_ray_too(
    ray_engine: Engine, strategy: dict[str, Any], tmp_path: Path
) -> None:
    runs = [
        chimera.train(
            TorchModel(Fragile, seed=0),
            digits({1: 40}, workers=2),
            engine=engine,
            workers=2,
            strategy=strategy,
            partition=in_turn,
            batch_size=16,
            rounds=20,
            out=tmp_path / name,
        )
        for name, engine in (("ray", ray_engine), ("simulated", "simulated"))
    ]
    told = [[(event.event, event.actor, event.detail) for event in run.events] for run in runs]
    assert told[0] == told[1] != []
    assert {actor for _, actor, _ in told[0]} == {"worker 1"}
    np.testing.assert_allclose(*(run.trained.parameters() for run in runs), atol=2e-6)
