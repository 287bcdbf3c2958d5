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
LATENCY_S = 0.02
GROUPED = {
    "name": "simulated",
    "servers_in_groups": True,
    "network": {"latency_s": LATENCY_S, "bandwidth_bytes_s": float("inf")},
}
OPTIONS: list[dict[str, Any]] = [
    {"codec": "int8"},
    {"codec": {"name": "top-k", "ratio": 0.1}, "strategy": SHARDS},
    {"codec": {"name": "sign", "downlink": "cast"}},
    {"strategy": {**SHARDS, "aggregation": "median"}, "optimizer": "adam"},
    {"strategy": SHARDS, "checkpoint_every": 7, "evaluate_every": 5},
]


def rows_of(run: Any) -> list[TraceRow]:
    return [
        msgspec.json.decode(line, type=TraceRow) for line in (run.run_dir / "trace.jsonl").read_bytes().splitlines()
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
        rows = [row for row in rows_of(run) if row.call in STEPS]
        found.append(Counter((row.actor, row.call, row.samples, row.samples and row.bytes_out) for row in rows))
        for actor in {row.actor for row in rows}:
            times = [(row.start_s, row.end_s) for row in rows if row.actor == actor]
            flat = [moment for both in times for moment in both]
            assert flat == sorted(flat)
    assert found[0] == found[1]


@pytest.mark.parametrize("engine", ["simulated", "local"])
def test_each_step_of_a_collective_has_a_row(fit: Fit, engine: str) -> None:
    run = fit(engine=engine, strategy="all-reduce", rounds=12, workers=2)
    found = Counter((row.actor, row.samples) for row in rows_of(run) if row.call == "train" and row.samples)
    assert found == {("worker 0", 16): 12, ("worker 1", 16): 12}


@pytest.mark.parametrize("strategy", ["parameter-server", SHARDS], ids=str)
def test_groups_in_virtual_time_train_as_single_calls_do(fit: Fit, strategy: Any) -> None:
    single, group = (
        fit(str(grouped), strategy=strategy, engine={**GROUPED, "servers_in_groups": grouped}, log_every=30)
        for grouped in (False, True)
    )
    assert np.array_equal(single.trained.parameters(), group.trained.parameters())
    assert single.metrics == group.metrics
    assert (single.cost.rounds, single.cost.bytes_up) == (group.cost.rounds, group.cost.bytes_up)
    ends_s = [row.end_s for row in rows_of(group) if row.call == "update" and row.actor == "server 0"]
    assert np.median(np.diff(sorted(ends_s))) == pytest.approx(2 * LATENCY_S, rel=0.02)


def test_the_end_of_an_asynchronous_call_takes_a_round_trip(fit: Fit) -> None:
    options = {"workers": 2, "rounds": 80, "log_every": 80, "evaluate_every": 80, "checkpoint_every": 80}
    run = fit(strategy="async-parameter-server", engine=GROUPED, **options)
    ends_s = sorted(row.end_s for row in rows_of(run) if row.call == "update")
    calls = sum(row.call == "serve_each" for row in rows_of(run))
    trips = np.rint(np.diff(ends_s) / (2 * LATENCY_S)).astype(int)  # two workers: a step each round trip, in pairs
    assert calls > 3
    assert Counter(trips[trips > 1].tolist()) == {2: calls - 1}


def test_an_asynchronous_run_in_virtual_time_resumes_with_the_same_bits(fit: Fit) -> None:
    options = {"strategy": "async-parameter-server", "engine": GROUPED, "checkpoint_every": 40, "log_every": 40}
    whole = fit("whole", rounds=80, **options)
    fit("part", rounds=40, **options)
    resumed = fit("part", rounds=80, resume=True, **options)
    assert np.array_equal(whole.trained.parameters(), resumed.trained.parameters())
    assert whole.staleness == resumed.staleness


def test_the_virtual_time_of_an_asynchronous_update_includes_the_copy_of_the_weights(fit: Fit) -> None:
    compute = {"seconds_per_call": 0.0, "seconds_per_sample": 0.0, "seconds_per_element": 1e-6}
    run = fit(strategy="async-parameter-server", log_every=30, engine={**GROUPED, "compute": compute})
    updates = [row for row in rows_of(run) if row.call == "update"]
    seconds = [row.end_s - row.start_s - row.wait_s - row.transfer_s for row in updates]
    assert np.median(seconds) == pytest.approx(2 * run.trained.parameters().size * 1e-6)


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
    calls = Counter(row.call for row in rows_of(run))
    assert calls["gradient"] == calls["update"] == 50
    assert run.cost.samples == 50 * 16


@pytest.mark.sampled(1)
@pytest.mark.parametrize("at", [1, 9])
def test_an_asynchronous_run_survives_a_death_in_the_middle_of_a_call(fit: Fit, at: int, tmp_path: Path) -> None:
    run = fit(engine="local", strategy="async-parameter-server", rounds=60, model=Failing(tmp_path, at, dies=True))
    assert [event.event for event in run.events] == ["worker lost", "worker respawned"]
    assert sum(run.staleness.values()) == run.cost.rounds == 60
    assert np.isfinite(run.trained.parameters()).all()
