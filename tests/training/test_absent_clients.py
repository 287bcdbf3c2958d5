"""Federated runs of clients that are on and off, with drawn devices, on the simulated engine."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import chimera
from training.conftest import Fit

CLIENTS = {
    "name": "simulated",
    "compute": {"seconds_per_sample": 1.0, "straggler_spread": 0.3},
    "network": {"topology": {"name": "two-level", "edges": 4, "latency_s": 0.1, "bandwidth_bytes_s": 1e4}},
    "devices": {"model": {"name": "pareto", "alpha": 1.0, "uplink_bytes_s": 1e4, "bandwidth_alpha": 1.0}},
    "availability": {"model": {"name": "markov", "mean_on_s": 60.0, "mean_off_s": 60.0}},
}
DROPS = {"name": "fed-avg", "local_steps": 2, "fraction": 0.2, "over_selection": 1.5, "deadline_s": 40.0}


def clients(fit: Fit, name: str = "run", **options: Any) -> chimera.Run:
    given = {"engine": CLIENTS, "strategy": DROPS, "workers": 30, "batch_size": 4, "rounds": 8, "evaluate_every": 4}
    return fit(name, **{**given, **options})


def rows(run: chimera.Run, call: str) -> list[dict[str, Any]]:
    lines = (run.run_dir / "trace.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if row["call"] == call]


def test_a_round_drops_clients_that_do_not_answer_in_time_and_a_checkpoint_does_not_wait_for_them(fit: Fit) -> None:
    run = clients(fit, checkpoint_every=4)
    updates = sorted(row["start_s"] for row in rows(run, "update"))
    assert len(updates) == 8
    assert max(later - before for before, later in pairwise(updates)) < 40 + 15  # the deadline, and the last download
    assert any(row["end_s"] - row["start_s"] > 40 for row in rows(run, "delta"))  # whose results were dropped
    assert run.rows[-1]["seconds"] < 8 * (40 + 15)


def test_without_a_deadline_a_round_waits_for_clients_until_they_return(fit: Fit) -> None:
    engine = {**CLIENTS, "availability": {"model": {"name": "markov", "mean_on_s": 5.0, "mean_off_s": 200.0}}}
    plain = {"name": "fed-avg", "local_steps": 2, "fraction": 0.2}
    assert clients(fit, engine=engine, strategy=plain, rounds=2).rows[-1]["seconds"] > 200


def test_participants_are_clients_that_are_on(fit: Fit, tmp_path: Path) -> None:
    absent = "".join(f"{rank},1e9,inf\n" for rank in range(10, 30))
    (tmp_path / "on_off.csv").write_text(f"client,on_s,off_s\n{absent}", encoding="utf-8")
    engine = {**CLIENTS, "availability": {"path": str(tmp_path / "on_off.csv")}}
    run = clients(fit, engine=engine, rounds=4)
    asked = {row["rank"] for row in rows(run, "delta")}
    assert len(asked) > 5
    assert asked <= set(range(10))
    assert run.rows[-1]["seconds"] < 4 * (40 + 15)


@pytest.mark.long
@pytest.mark.parametrize("interrupted", ["continue", "restart"])
def test_a_run_of_absent_clients_resumes_to_the_same_bits_and_times(fit: Fit, tmp_path: Path, interrupted: str) -> None:
    engine = {**CLIENTS, "availability": {**CLIENTS["availability"], "interrupted": interrupted}}
    options = {"engine": engine, "checkpoint_every": 4, "rounds": 12}
    whole = clients(fit, "whole", **options)
    clients(fit, "part", **{**options, "rounds": 4})
    resumed = clients(fit, "part", resume=True, **options)
    for name in ("weights.safetensors", "metrics.jsonl", "trace.jsonl"):
        assert (resumed.run_dir / name).read_bytes() == (whole.run_dir / name).read_bytes(), name


@pytest.mark.long
def test_a_private_run_does_not_choose_by_who_is_on(fit: Fit) -> None:
    pytest.importorskip("opacus", reason="opacus is not installed: pip install 'chimera-dml[privacy]'")
    always = {key: value for key, value in CLIENTS.items() if key != "availability"}
    options = {"privacy": {"clip": 1.0, "noise": 1.0}, "rounds": 3, "strategy": {**DROPS, "deadline_s": 1e6}}
    asked = [
        sorted({row["actor"] for row in rows(clients(fit, name, engine=engine, **options), "delta")})
        for name, engine in (("on", always), ("off", CLIENTS))
    ]
    assert asked[0] == asked[1]
