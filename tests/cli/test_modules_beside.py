"""An experiment file names modules and packages beside it, whatever folder the command runs in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXPERIMENT = """
model = "users_package.models:linear"
data = "users_data:points"
strategy = "users_package.rounds:OwnStrategy"
[train]
rounds = 3
optimizer = { name = "users_package.rounds:OwnOptimizer", lr = 0.1 }
"""
FILES = {
    "users_data.py": """
        import numpy as np
        def points():
            inputs = np.random.default_rng(0).standard_normal((80, 3)).astype(np.float32)
            return inputs, (inputs[:, 0] > 0).astype(int)
    """,
    "users_package/__init__.py": "",
    "users_package/models.py": """
        from torch import nn
        from .layers import OwnLinear
        def linear(input_shape, outputs):
            return nn.Sequential(OwnLinear(*input_shape, outputs))
    """,
    "users_package/layers.py": """
        from torch import nn
        class OwnLinear(nn.Linear):
            pass
    """,
    "users_package/rounds.py": """
        import torch
        from chimera.strategies.parameter_server import ParameterServer
        class OwnStrategy(ParameterServer):
            pass
        class OwnOptimizer(torch.optim.SGD):
            pass
    """,
}


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    for name, text in FILES.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("\n".join(line[8:] for line in text.splitlines()))
    (home / "experiment.toml").write_text(EXPERIMENT)
    (home / "json.py").write_text("raise ImportError('a module that the file does not name')")
    return home / "experiment.toml"


def chimera(folder: Path, *arguments: object) -> str:
    environment = {
        **os.environ,
        "PYTHONSAFEPATH": "1",
    }  # as for the installed command: the current folder does not count
    command = [sys.executable, "-m", "chimera", *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "engine", ["local", *(pytest.param(name, marks=pytest.mark.long) for name in ("simulated", "ray"))]
)
@pytest.mark.takes("it starts processes that import torch")
def test_commands_and_workers_import_them(tmp_path: Path, experiment: Path, engine: str) -> None:
    shown = chimera(tmp_path, "train", experiment, "--engine", engine, "--json", "--out", tmp_path / "run")
    assert json.loads(shown)["rounds"] == 3


@pytest.mark.long
def test_cells_of_a_comparison_import_them(tmp_path: Path, experiment: Path) -> None:
    arguments = ["--vary", "train.batch_size=8,16", "--set", "engine=simulated", "--out", tmp_path / "grid", "--json"]
    assert len(json.loads(chimera(tmp_path, "compare", experiment, *arguments))["rows"]) == 2
