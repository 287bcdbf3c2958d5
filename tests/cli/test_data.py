"""``chimera data`` shows what each worker will hold, and trains nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chimera.cli.data import picture
from chimera.core.worker_counts import WorkerCount, WorkerCounts

Invoke = Callable[..., Any]
EXPERIMENT = """
[data]
name = "csv"
path = "visits.csv"
target = "stay"
labels = "band"
drop = ["band"]
groups = "hospital"
[model]
name = "linear-regression"
[partition]
name = "by-group"
[train]
workers = 2
rounds = 2
evaluate_clients = true
test_per_client = 0.25
[strategy]
name = "fed-avg"
local_steps = 1
[engine]
name = "simulated"
"""


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    """Return an experiment on a table of three hospitals, of which each has another mixture of bands."""
    rows = [f"{i},{band},{name},{i / 7}" for name, bands in HOSPITALS.items() for i, band in enumerate(bands)]
    (tmp_path / "visits.csv").write_text("\n".join(["age,band,hospital,stay", *rows]), encoding="utf-8")
    path = tmp_path / "visits.toml"
    path.write_text(EXPERIMENT, encoding="utf-8")
    return path


HOSPITALS = {"north": ["low"] * 40, "south": ["high"] * 20, "east": ["low", "high"] * 10}


def test_a_table_and_a_picture_show_groups_and_labels_of_each_worker(invoke: Invoke, hospitals: Path) -> None:
    result = invoke("data", hospitals)
    assert result.exit_code == 0
    assert "64 train, 16 test · 1 feature" in result.stdout
    assert "2 labels from band (not an input) · 3 groups from hospital (not an input)" in result.stdout
    held = dict(re.findall(r"^worker \d +\d+ +\d+ +([a-z, ]+?)  +\d+ +(.*?) *$", result.stdout, re.MULTILINE))
    assert set(held) == {"north", "east, south"}
    assert held["north"].startswith("low: ")
    bars = re.findall(r"^worker \d \|(.*)$", result.stdout, re.MULTILINE)
    assert sorted({"".join(sorted(set(bar))) for bar in bars}) == ["ab", "b"]
    assert not (hospitals.parent / "runs").exists()


def test_json_has_the_counts_that_the_run_writes(invoke: Invoke, hospitals: Path, tmp_path: Path) -> None:
    found = json.loads(invoke("data", hospitals, "--json").stdout)
    workers = found["counts"]["workers"]
    assert sorted(each["group_names"] for each in workers) == [["east", "south"], ["north"]]
    assert [each["test"] for each in workers] == [round(each["samples"] / 4) for each in workers]
    assert found["counts"]["labels"] == ["high", "low"]
    assert invoke("train", hospitals, "--quiet", "--out", tmp_path / "out").exit_code == 0
    assert json.loads((tmp_path / "out" / "data.json").read_text()) == found["counts"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<h2>Data per worker</h2>" in page
    assert "east, south" in page


@pytest.mark.parametrize("ending", ["svg", *(pytest.param(each, marks=pytest.mark.long) for each in ("png", "pdf"))])
def test_the_picture_is_written_to_a_file(invoke: Invoke, experiment: Path, tmp_path: Path, ending: str) -> None:
    target = tmp_path / f"labels.{ending}"
    result = invoke("data", experiment, "--set", "partition=dirichlet", "--plot", target)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, str(target))
    assert target.stat().st_size > 2000


def test_many_workers_are_cut_with_their_number(invoke: Invoke, experiment: Path) -> None:
    result = invoke("data", experiment, "--set", "train.workers=300", "--set", "train.batch_size=1")
    assert "and 280 more workers; --json lists all" in result.stdout
    assert len(result.stdout.splitlines()) < 60
    assert (
        len(json.loads(invoke("data", experiment, "--set", "train.workers=300", "--json").stdout)["counts"]["workers"])
        == 300
    )


def test_a_private_run_shows_nothing_about_a_client(invoke: Invoke, hospitals: Path, tmp_path: Path) -> None:
    text = EXPERIMENT.replace("evaluate_clients = true\ntest_per_client = 0.25", "privacy = { clip = 1.0 }")
    hospitals.write_text(text, encoding="utf-8")
    result = invoke("data", hospitals)
    assert (
        "the run is private ([train.privacy]), so nothing about the data of a single client is shown" in result.stdout
    )
    assert "worker 0" not in result.stdout
    assert "north" not in invoke("data", hospitals, "--json").stdout
    refused = invoke("data", hospitals, "--plot", tmp_path / "labels.svg")
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert invoke("train", hospitals, "--quiet", "--out", tmp_path / "out").exit_code == 0
    assert not (tmp_path / "out" / "data.json").exists()
    assert "Data per worker" not in (tmp_path / "out" / "report.html").read_text()


def test_nodes_are_not_asked_for_their_data(invoke: Invoke, experiment: Path) -> None:
    result = invoke("data", experiment, "--set", "engine=http", "--set", 'engine.nodes=["http://127.0.0.1:9"]')
    assert (result.exit_code, result.stdout) == (
        0,
        "no counts per worker: each node holds its own data, which the driver does not have\n",
    )


def test_a_mistake_is_one_line(invoke: Invoke, hospitals: Path) -> None:
    result = invoke("data", hospitals, "--set", "train.workers=4")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "the partition 'by-group' has 3 groups for 4 workers: use at most 3 workers" in result.stderr


def test_bars_are_in_proportion_and_fit_the_width() -> None:
    workers = (WorkerCount("worker 0", 80, counts=(60, 20)), WorkerCount("worker 1", 40, counts=(0, 40)))
    lines = picture(WorkerCounts(workers, ("0", "1")), workers, 51)
    assert lines[-2:] == ["worker 0 |" + "0" * 30 + "1" * 10, "worker 1 |" + "1" * 20]
