"""An experiment that ran on this machine's processes runs on Ray unchanged, with the same result."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chimera
from chimera.core.engine import ENGINES, Engine


@pytest.fixture(scope="module")
def ray_engine() -> Iterator[Engine]:
    with ENGINES.create("ray") as engine:
        yield engine


def trained(engine: Engine | str, strategy: dict[str, Any], folder: Path) -> Any:
    return chimera.train(
        "mlp",
        "digits",
        engine=engine,
        workers=2,
        strategy=strategy,
        batch_size=16,
        rounds=15,
        evaluate_every=5,
        optimizer={"name": "sgd", "lr": 0.1, "momentum": 0.9},
        seed=5,
        out=folder,
    )


@pytest.mark.parametrize("strategy", [{"name": "parameter-server", "shards": 2}, {"name": "all-reduce"}], ids=str)
def test_training_on_ray_gives_what_training_on_processes_gives(
    ray_engine: Engine, strategy: dict[str, Any], tmp_path: Path
) -> None:
    runs = [trained(engine, strategy, tmp_path / name) for name, engine in (("ray", ray_engine), ("local", "local"))]
    on_ray, on_local = (run.trained.parameters() for run in runs)
    np.testing.assert_allclose(on_ray, on_local, atol=2e-6)
    assert runs[0].cost.samples == runs[1].cost.samples == 15 * 2 * 16
    assert runs[0].cost.rounds == runs[1].cost.rounds == 15
    assert np.abs(on_ray).max() > 0.05
