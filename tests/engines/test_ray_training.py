"""Runs on Ray: losses, files and resumption as on the other engines. tests/strategies checks that all engines reach the same
weights.
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
from chimera.testing.poison import NanOnPoison, digits, round_robin

pytestmark = pytest.mark.long


STRATEGIES: list[dict[str, Any]] = [
    {"name": "parameter-server", "shards": 2},
    {"name": "parameter-server", "shards": 2, "placement": "with-workers"},
    {"name": "all-reduce"},
]


@pytest.fixture(scope="module")
def ray_engine() -> Iterator[Engine]:
    with ENGINES.create("ray") as engine:
        yield engine


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
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


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_a_gradient_that_is_not_finite_is_left_out_on_ray_too(
    ray_engine: Engine, strategy: dict[str, Any], tmp_path: Path
) -> None:
    runs = [
        chimera.train(
            TorchModel(NanOnPoison, seed=0),
            digits({1: 40}, workers=2),
            engine=engine,
            workers=2,
            strategy=strategy,
            partition=round_robin,
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


@pytest.mark.parametrize("strategy", [{"name": "parameter-server", "shards": 2}, {"name": "all-reduce"}], ids=str)
def test_the_dead_and_the_hung_are_survived_on_ray_and_copies_stay_identical(
    ray_engine: Engine, strategy: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[Any] = []
    kill, ending = ray_engine.kill, {"now": False}

    def look_and_kill(actor: Any) -> None:
        if (
            ending["now"] and actor.name.startswith("worker") and ray_engine.get(actor.step()) == 60
        ):  # not one that had not arrived yet
            copies.append(ray_engine.get(actor.weights()).arrays[0].copy())
        kill(actor)

    class AtTheEnd(chimera.Callback):
        def on_progress(self, progress: chimera.Progress) -> None:
            ending["now"] = progress.rounds == 60

    monkeypatch.setattr(ray_engine, "kill", look_and_kill)
    servers = ["kill server 1 at step 20"] if strategy["name"] == "parameter-server" else []
    run = chimera.train(
        "mlp",
        "digits",
        engine=ray_engine,
        workers=3,
        strategy=strategy,
        batch_size=16,
        rounds=60,
        evaluate_every=20,
        worker_timeout_s=8,
        max_restarts=5,
        faults=["kill worker 1 at step 5", *servers, "hang worker 2 at step 40"],
        callbacks=[AtTheEnd()],
        optimizer={"name": "sgd", "lr": 0.1, "momentum": 0.9},
        out=tmp_path / "run",
    )
    struck = {event.actor: event for event in run.events if event.event == "fault"}
    lost = {event.actor: event for event in run.events if event.event.endswith("lost")}
    assert set(lost) == set(struck) == {"worker 1", "worker 2"} | ({"server 1"} if servers else set())
    assert "died" in lost["worker 1"].detail
    assert "sent no heartbeat" in lost["worker 2"].detail
    assert lost["worker 1"].seconds - struck["worker 1"].seconds < 3
    assert ("went back" in {event.event for event in run.events}) == bool(servers)
    assert run.cost.rounds == 60
    assert run.metrics["accuracy"] > 0.6
    if not servers:
        assert len(copies) >= 2
        assert all(np.array_equal(copies[0], copy) for copy in copies)
