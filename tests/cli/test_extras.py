"""Tests of an installation without extras: working commands, and errors that name the missing extra."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

import bare_environment

LIMIT_S = 120.0
EXPERIMENT = """
data = "digits"
strategy = "parameter-server"
engine = "simulated"
model = { name = "sklearn-sgd-classifier", loss = "log_loss" }
train = { workers = 2, rounds = 10, batch_size = 16, optimizer = { name = "sgd", lr = 1.0 } }
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Python that has the packages that `pip install chimera-dml` brings, and no others."""
    return bare_environment.create(tmp_path_factory.mktemp("bare"))


@pytest.fixture
def run(bare, tmp_path):
    """Run a command of Chimera with that Python, in an empty folder."""

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        return subprocess.run(
            [bare, "-m", "chimera", *command],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip

    return run


def test_the_fixture_has_no_extra(bare):
    script = (
        "import importlib.util as u; print([n for n in ('torch', 'ray', 'fastapi', 'transformers') if u.find_spec(n)])"
    )
    done = subprocess.run([bare, "-c", script], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.long
def test_the_demo_and_its_report_need_no_extra(run, tmp_path):
    done = run("demo", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["strategy"], summary["engine"], summary["workers"]) == ("parameter-server", "local", 4)
    assert summary["lost_workers"] == 0
    assert summary["metrics"]["accuracy"] >= 0.95
    assert "<html" in (tmp_path / "runs/demo/report.html").read_text()
    assert "pip install 'chimera-dml[train]'" in done.stderr.splitlines()[-1]


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["fed-avg", "all-reduce"])
def test_models_of_scikit_learn_train_by_sgd_without_torch(run, tmp_path, strategy):
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    done = run("train", "experiment.toml", "--set", f"strategy={strategy}", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"]["accuracy"] > 0.5


@pytest.mark.parametrize("command", ["list", "train --help"])
def test_registered_names_are_listed_without_extras(run, command):
    done = run(*command.split())
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("cluster up", "nodes"),
        ("cluster up --ray auto", "ray"),
        ("infer up --workers 1", "inference"),
        ("infer up --ray auto", "inference"),
        ("nodes up", "nodes"),
        ("train experiment.toml --engine ray", "ray"),
        ("train experiment.toml --engine http", "nodes"),
        ("train experiment.toml --set model=mlp", "train"),
        ("train experiment.toml --out s3://bucket/run", "s3"),
        ("report gs://bucket/run", "gcs"),
        ("train experiment.toml --set train.optimizer.name=adam", "train"),
        ("compare experiment.toml --vary model=mlp,cnn", "train"),
    ],
)
def test_a_command_that_needs_an_extra_names_it_and_starts_nothing(run, tmp_path, command, extra):
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    done = run(*command.split())
    assert done.returncode == 2, done.stderr
    assert re.fullmatch(rf"error: .* which is not installed: pip install 'chimera-dml\[{extra}\]'\n", done.stderr)
    assert [file.name for file in tmp_path.iterdir()] == ["experiment.toml"]
