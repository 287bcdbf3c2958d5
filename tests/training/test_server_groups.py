"""Tests of parameter servers and workers that run many steps in one call, on the engine ``local``."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest
import torch

from chimera.core.trace import TraceRow
from training.conftest import Fit

SHARDS = {"name": "parameter-server", "shards": 2}
STEPS = {"gradient", "update"}
OPTIONS: list[dict[str, Any]] = [
    {"codec": "int8"},
    {"codec": {"name": "top-k", "ratio": 0.1}, "strategy": SHARDS},
    {"codec": {"name": "sign", "downlink": "cast"}},
    {"strategy": {**SHARDS, "aggregation": "median"}, "optimizer": "adam"},
    {"strategy": SHARDS, "checkpoint_every": 7, "evaluate_every": 5},
]


class Failing(torch.nn.Module):
    """A network that fails, or kills its process, at one forward pass of one worker."""

    def __init__(self, folder: Path, at: int, *, dies: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 16), torch.nn.Tanh(), torch.nn.Linear(16, 10))
        self.folder, self.at, self.dies, self.passes = folder, at, dies, 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.passes += self.training
        if self.training and self.passes == self.at and self._is_first():
            if self.dies:
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("this worker fails")
        return self.layers(images)  # type: ignore[no-any-return]

    def _is_first(self) -> bool:
        try:
            (self.folder / "failed").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


@pytest.mark.sampled(1)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_group_trains_as_single_calls_do(fit: Fit, options: dict[str, Any]) -> None:
    options = {"strategy": "parameter-server", **options}
    single, group = fit("single", **options), fit("group", engine="local", **options)
    assert np.array_equal(single.trained.parameters(), group.trained.parameters())
    assert single.metrics == group.metrics
    assert (single.cost.rounds, single.cost.samples) == (group.cost.rounds, group.cost.samples)


@pytest.mark.long
def test_the_trace_has_a_row_for_each_step(fit: Fit) -> None:
    found = []
    for engine in ("simulated", "local"):
        run = fit(engine, engine=engine, strategy=SHARDS)
        lines = (run.run_dir / "trace.jsonl").read_bytes().splitlines()
        rows = [row for row in (msgspec.json.decode(line, type=TraceRow) for line in lines) if row.call in STEPS]
        found.append(Counter((row.actor, row.call, row.samples, row.samples and row.bytes_out) for row in rows))
        for actor in {row.actor for row in rows}:
            times = [(row.start_s, row.end_s) for row in rows if row.actor == actor]
            flat = [moment for both in times for moment in both]
            assert flat == sorted(flat)
    assert found[0] == found[1]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("strategy", [SHARDS, "async-parameter-server", "all-reduce"], ids=str)
def test_a_worker_that_fails_ends_the_run_with_its_error(fit: Fit, strategy: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="this worker fails"):
        fit(engine="local", model=Failing(tmp_path, 7, dies=False), strategy=strategy)
    assert psutil.Process().children() == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("at", [1, 5, 12])
@pytest.mark.parametrize("strategy", ["parameter-server", SHARDS], ids=str)
def test_a_death_in_the_middle_of_a_call_loses_no_step(fit: Fit, strategy: Any, at: int, tmp_path: Path) -> None:
    (tmp_path / "failed").touch()
    whole = fit("whole", strategy=strategy, model=Failing(tmp_path, at, dies=True))
    (tmp_path / "failed").unlink()
    run = fit("cut", engine="local", strategy=strategy, model=Failing(tmp_path, at, dies=True))
    assert [event.event for event in run.events] == ["worker lost", "worker respawned"]
    assert np.array_equal(run.trained.parameters(), whole.trained.parameters())
    assert (run.cost.rounds, run.cost.lost_rounds) == (whole.cost.rounds, 1)


def test_an_asynchronous_server_counts_staleness_and_rounds_exactly(fit: Fit) -> None:
    run = fit(engine="local", strategy="async-parameter-server", rounds=50, evaluate_every=20, checkpoint_every=30)
    assert sum(run.staleness.values()) == run.cost.rounds == 50
    assert max(run.staleness) <= 50
    rows = [
        msgspec.json.decode(line, type=TraceRow) for line in (run.run_dir / "trace.jsonl").read_bytes().splitlines()
    ]
    calls = Counter(row.call for row in rows)
    assert calls["gradient"] == calls["update"] == 50
    assert run.cost.samples == 50 * 16


@pytest.mark.sampled(1)
@pytest.mark.parametrize("at", [1, 9])
def test_an_asynchronous_run_survives_a_death_in_the_middle_of_a_call(fit: Fit, at: int, tmp_path: Path) -> None:
    run = fit(engine="local", strategy="async-parameter-server", rounds=60, model=Failing(tmp_path, at, dies=True))
    assert [event.event for event in run.events] == ["worker lost", "worker respawned"]
    assert sum(run.staleness.values()) == run.cost.rounds == 60
    assert np.isfinite(run.trained.parameters()).all()
