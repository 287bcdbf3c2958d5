"""Plug-ins of other distributions: found by their entry points, in every process, and never in place of Chimera's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PLUGINS = '''
"""Plug-ins of another distribution."""

from chimera.codecs.codec import Codec
from chimera.core.message import Encoded
from chimera.strategies.fed_avg import FedAvg


class Halves(Codec):
    """Half precision (Doe 2020, "Halves")."""

    def encode(self, vector, layout):
        return Encoded("doe-halves", vector.size, (vector.astype("float16"),))

    def decode(self, encoded, out=None):
        return encoded.arrays[0].astype("float32")


class Twice(FedAvg):
    """Each round, workers train twice (Doe 2021, "Twice")."""

    def __init__(self, *, times: int = 2, **options):
        super().__init__(local_steps=times, **options)
'''
POINTS = """
[chimera.codecs]
doe-halves = doe_plugins:Halves
int8 = doe_plugins:Halves

[chimera.strategies]
doe-twice = doe_plugins:Twice
doe-broken = doe_missing:Nothing
"""
EXPERIMENT = """
data = "digits"
strategy = { name = "doe-twice", times = 3 }
codec = "doe-halves"
model = { name = "sklearn-sgd-classifier", loss = "log_loss" }
train = { workers = 2, rounds = 3, batch_size = 16, optimizer = { name = "sgd", lr = 0.1 } }
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a distribution as pip installs it, and an experiment."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "doe_plugins.py").write_text(PLUGINS)
    about = folder / "doe_plugins-1.2.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: doe-plugins\nVersion: 1.2\n")
    (about / "entry_points.txt").write_text(POINTS)
    (folder / "experiment.toml").write_text(EXPERIMENT)
    return folder


def run(installed: Path, *command: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(installed), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]).rstrip(os.pathsep)
    return subprocess.run(
        [sys.executable, "-m", "chimera", *command],
        cwd=installed, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_they_are_listed_with_their_distribution(installed):
    done = run(installed, "list", "strategies")
    assert done.returncode == 0, done.stderr
    row = next(line for line in done.stdout.splitlines() if line.startswith("doe-twice"))
    assert "Each round, workers train twice." in row
    assert "times=2" in row
    assert row.rstrip().endswith("doe-plugins 1.2")
    assert "doe-broken" not in done.stdout
    assert done.stderr == (
        "warning: the strategy 'doe-broken' of doe-plugins 1.2 cannot be loaded from doe_missing:Nothing: "
        "ModuleNotFoundError: No module named 'doe_missing'; update or uninstall that distribution\n"
    )


def test_they_cannot_take_the_place_of_one_of_chimera(installed):
    done = run(installed, "list", "codecs")
    assert "warning: the codec 'int8' of doe-plugins 1.2 is ignored: Chimera has one\n" in done.stderr
    row = next(line for line in done.stdout.splitlines() if line.startswith("int8"))
    assert "doe-plugins" not in row


@pytest.mark.long
@pytest.mark.parametrize("engine", ["simulated", "local"])
def test_runs_train_with_them(installed, engine):
    done = run(installed, "train", "experiment.toml", "--engine", engine, "--json", "--out", engine)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["strategy"], summary["codec"], summary["rounds"]) == ("doe-twice", "doe-halves", 3)
    assert summary["bits_per_element_up"] == 16


def test_one_that_cannot_be_loaded_is_an_error_where_it_is_named(installed):
    done = run(installed, "train", "experiment.toml", "--set", "strategy=doe-broken")
    assert done.returncode == 2
    assert done.stderr.startswith("error: the strategy 'doe-broken' of doe-plugins 1.2 cannot be loaded")
    assert len(done.stderr.splitlines()) == 1


def test_an_unknown_name_is_answered_with_theirs_too(installed):
    done = run(installed, "train", "experiment.toml", "--set", "codec=doe-halfs")
    assert done.returncode == 2
    assert "doe-halves" in done.stderr
