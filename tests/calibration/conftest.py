"""Runs in virtual time with known parameters, whose traces a calibration reads as if they were measured."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from calibration_truth import experiment
from chimera.calibration.calibration import Calibration, calibrate
from chimera.cli.main import app


@pytest.fixture(scope="session")
def virtual_runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the folders of two runs that differ in their batch size."""
    root = tmp_path_factory.mktemp("virtual")
    return [experiment(batch_size=size).trainer(out=root / f"batch-{size}").fit().run_dir for size in (16, 64)]


@pytest.fixture(scope="session")
def calibrated(virtual_runs: list[Path]) -> Calibration:
    """Return the calibration with both runs."""
    return calibrate(virtual_runs, allow_simulated=True, codecs=["int8"])


@pytest.fixture
def invoke() -> Callable[..., Result]:
    """Return a function that runs the program inside this process."""
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def disguised(virtual_runs: list[Path], tmp_path: Path) -> Callable[..., Path]:
    """Return a function that copies a run, names ``local`` as its engine, and changes its summary."""

    def copied(number: int = 0, **summary: Any) -> Path:
        folder = tmp_path / f"run-{number}"
        shutil.copytree(virtual_runs[number], folder)
        path = folder / "summary.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "engine": "local", **summary}))
        return folder

    return copied
