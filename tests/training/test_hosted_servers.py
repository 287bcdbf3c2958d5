"""Tests of parameter servers whose slices are stepped in the processes of workers, on the engine ``local``."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest

import chimera
from chimera.core.errors import NonFiniteError
from chimera.core.parameters import Flat
from chimera.core.trace import TraceRow
from chimera.training.aggregation.mean import Mean
from training.conftest import Fit
from training.test_server_groups import Failing


def hosted(shards: int = 2, **options: Any) -> dict[str, Any]:
    return {"name": "parameter-server", "shards": shards, "placement": "with-workers", **options}


OPTIONS: list[dict[str, Any]] = [
    {"codec": {"name": "top-k", "ratio": 0.1}},
    {"codec": {"name": "sign", "downlink": "cast"}, "strategy": hosted(3)},
    {"codec": "int8", "strategy": hosted(1)},
    {"strategy": hosted(aggregation="median"), "workers": 2},
    {"workers": 1, "strategy": hosted(1)},
    {
        "checkpoint_every": 7,
        "evaluate_every": 5,
        "optimizer": {"name": "adam", "lr": 0.05, "schedule": {"decay": "plateau", "patience": 1}},
    },
]


def rows_of(run: chimera.Run) -> list[TraceRow]:
    lines = (run.run_dir / "trace.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=TraceRow) for line in lines]


class Breaks(Mean):
    """The mean, which cannot be computed the seventh time in a process."""

    linear = by_rows = False

    def __init__(self) -> None:
        self.calls = 0

    def dense(self, vectors: Sequence[Flat], out: Flat, rows: Any) -> Flat:
        self.calls += 1
        if self.calls == 7:
            raise ValueError("this server fails")
        return super().dense(vectors, out, rows)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_servers_with_workers_train_as_single_calls_do(fit: Fit, options: dict[str, Any]) -> None:
    options = {"strategy": hosted(), **options}
    single, group = fit("single", **options), fit("group", engine="local", **options)
    assert np.array_equal(single.trained.parameters(), group.trained.parameters())
    assert single.metrics == group.metrics
    assert (single.cost.rounds, single.cost.samples) == (group.cost.rounds, group.cost.samples)


def test_no_server_steps_and_the_trace_has_each_step_of_workers(fit: Fit) -> None:
    run = fit(engine="local", strategy=hosted())
    rows = rows_of(run)
    steps = Counter((row.actor, row.call) for row in rows if row.call in ("gradient", "update"))
    assert steps == {
        **{(f"worker {rank}", "gradient"): 30 for rank in range(3)},
        **{(f"worker {rank}", "update"): 30 for rank in range(2)},
    }
    assert sum(row.samples for row in rows) == run.cost.samples == 30 * 3 * 16


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the cores of a process can be set on Linux only")
def test_servers_are_with_workers_where_each_worker_needs_its_core(fit: Fit) -> None:
    allowed, found = os.sched_getaffinity(0), []
    for count in sorted({1, len(allowed)}):
        os.sched_setaffinity(0, set(sorted(allowed)[:count]))
        try:
            run = fit(f"{count}", engine="local", workers=1, rounds=3, strategy={**hosted(1), "placement": "auto"})
        finally:
            os.sched_setaffinity(0, allowed)
        found.append({row.actor for row in rows_of(run) if row.call == "update"})
    assert found == [{"worker 0"}, {"server 0"}][: len(found)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shards", [1, 2])
def test_a_worker_that_fails_ends_the_run_with_its_error(fit: Fit, shards: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="this worker fails"):
        fit(engine="local", model=Failing(tmp_path, 7, dies=False), strategy=hosted(shards))
    assert psutil.Process().children() == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shards", [1, 2])
def test_a_server_that_fails_ends_the_run_with_its_error(fit: Fit, shards: int) -> None:
    with pytest.raises(ValueError, match="this server fails"):
        fit(engine="local", strategy=hosted(shards, aggregation="training.test_hosted_servers:Breaks"))
    assert psutil.Process().children() == []


@pytest.mark.long
def test_a_run_without_finite_gradients_ends(fit: Fit) -> None:
    with pytest.raises(NonFiniteError, match="the run has diverged"):
        fit(engine="local", strategy=hosted(), optimizer={"name": "sgd", "lr": 1e38})


@pytest.mark.sampled(1)
@pytest.mark.parametrize("at", [1, 12])
def test_a_death_returns_the_run_to_its_snapshot(fit: Fit, at: int, tmp_path: Path) -> None:
    options = {"codec": {"name": "top-k", "ratio": 0.1, "error_feedback": True}, "strategy": hosted()}
    (tmp_path / "failed").touch()
    whole = fit("whole", model=Failing(tmp_path, at, dies=True), **options)
    (tmp_path / "failed").unlink()
    run = fit("cut", engine="local", model=Failing(tmp_path, at, dies=True), **options)
    assert [event.event for event in run.events] == ["worker lost", "worker respawned", "went back"]
    assert np.array_equal(run.trained.parameters(), whole.trained.parameters())
    assert run.cost.rounds == whole.cost.rounds


@pytest.mark.sampled(1)
@pytest.mark.parametrize("every", [1, 10])
def test_a_server_that_dies_before_it_lends_its_slice_is_replaced(fit: Fit, every: int) -> None:
    options = {"workers": 2, "strategy": hosted(), "checkpoint_every": 10, "log_every": every, "evaluate_every": 10}
    whole = fit("whole", **options)
    run = fit("cut", engine="local", faults=["kill server 1 at step 10"], **options)
    assert [event.event for event in run.events][-3:] == ["server lost", "server respawned", "went back"]
    assert np.array_equal(run.trained.parameters(), whole.trained.parameters())


@pytest.mark.long
def test_bytes_do_not_depend_on_the_number_of_calls(fit: Fit) -> None:
    runs = [
        fit(f"{every}", engine="local", strategy=hosted(), log_every=every, checkpoint_every=every) for every in (2, 30)
    ]
    assert runs[0].cost.bytes_up == runs[1].cost.bytes_up
    assert runs[0].cost.bytes_down == runs[1].cost.bytes_down


@pytest.mark.long
def test_servers_step_themselves_when_there_are_fewer_workers(fit: Fit, tmp_path: Path) -> None:
    run = fit(
        engine="local", workers=2, model=Failing(tmp_path, 5, dies=True), strategy=hosted(), on_worker_loss="drop"
    )
    rows = rows_of(run)
    assert {row.actor for row in rows if row.call == "update"} >= {"server 0", "server 1"}
    assert run.cost.rounds == 30
