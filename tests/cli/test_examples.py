"""The examples do what their first lines say."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def summary(invoke, tmp_path):
    def run(name, *arguments):
        result = invoke("train", EXAMPLES / name, "--json", "--quiet", "--out", tmp_path / "out", *arguments)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    return run


@pytest.mark.parametrize("engine", ["local", "simulated"])
def test_digits_needs_no_file_and_reaches_95_percent(summary, engine, monkeypatch):
    monkeypatch.delenv("CHIMERA_DATA", raising=False)
    assert summary("digits.toml", "--engine", engine)["metrics"]["accuracy"] >= 0.95


def test_all_reduce_stops_at_its_target(summary):
    outcome = summary("all_reduce.toml")
    assert outcome["stopped_by"] == "target"
    assert outcome["metrics"]["accuracy"] >= 0.95


def test_backup_workers_save_time_when_there_are_stragglers(summary, tmp_path):
    few = ("--set", "train.epochs=4")
    backup = summary("simulated_stragglers.toml", *few)
    full = summary("simulated_stragglers.toml", *few, "--set", "strategy.quorum=1.0", "--out", tmp_path / "full")
    assert backup["seconds"] / backup["rounds"] < full["seconds"] / full["rounds"]


def test_the_mnist_network_is_the_one_of_its_title(summary):
    outcome = summary("mnist.toml", "--engine", "simulated", "--set", "data=digits", "--set", "train.epochs=30")
    assert outcome["metrics"]["accuracy"] >= 0.9
    assert (outcome["strategy"], outcome["workers"]) == ("parameter-server", 2)


def test_the_python_api_in_fifteen_lines(tmp_path):
    done = subprocess.run(
        [sys.executable, EXAMPLES / "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "stopped by target" in done.stdout
    assert list(tmp_path.rglob("*.png"))
