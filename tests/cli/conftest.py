"""Fixtures: a small experiment, and the program as a user starts it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

SMALL = """
[data]
name = "digits"

[model]
name = "logistic-regression"

[train]
workers = 2
batch_size = 8
rounds = 6
evaluate_every = 3
seed = 1

[strategy]
name = "parameter-server"

[engine]
name = "simulated"
"""


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """Return the path of a file that trains for six rounds in virtual time."""
    path = tmp_path / "small.toml"
    path.write_text(SMALL, encoding="utf-8")
    return path


@pytest.fixture
def invoke() -> Callable[..., Result]:
    """Return a function that runs the program inside this process."""
    from chimera.cli.main import app

    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., "subprocess.Popen[str]"]:
    """Return a function that starts the program as a separate process in ``tmp_path``."""

    def started(*arguments: object, **options: object) -> "subprocess.Popen[str]":
        defaults = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "stdin": subprocess.DEVNULL,
            "env": os.environ,
        }
        given = {**defaults, **options}
        environment = {**given.pop("env"), "COLUMNS": "100"}
        command = [sys.executable, "-m", "chimera", *map(str, arguments)]
        return subprocess.Popen(command, cwd=tmp_path, env=environment, text=True, **given)

    return started
