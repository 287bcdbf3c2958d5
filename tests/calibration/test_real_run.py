"""A calibration of real runs predicts their own rounds, and those of other settings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chimera.calibration.calibration import calibrate
from chimera.calibration.measured_run import MeasuredRun, read_measured
from chimera.calibration.prediction import predict
from chimera.training.experiment.experiment import Experiment

MODEL = """
import time
from chimera.calibration.still_model import StillModel
from chimera.core.batch import samples_in
from chimera.models.conversion import build_model


class Waiting(StillModel):
    def gradient(self, batch):
        time.sleep(0.02 + 2e-4 * samples_in(batch))  # needs no processor, so that other load of the machine matters less
        return super().gradient(batch)


def waiting(input_shape, outputs, task, seed):
    sizes = {"input_shape": input_shape, "outputs": outputs, "task": task, "seed": seed}
    return Waiting(build_model("logistic-regression", {}, **sizes))
"""


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    path = tmp_path_factory.mktemp("model") / "waiting_model.py"
    path.write_text(MODEL)
    train = {"workers": 2, "rounds": 60, "log_every": 30, "evaluate_every": 30, "checkpoint_every": 60}
    return Experiment({"data": "digits", "model": f"{path}:waiting", "train": train, "engine": "local"})


def run(experiment: Experiment, out: Path, *settings: str) -> MeasuredRun:
    return read_measured(experiment.with_settings(settings).trainer(out=out).fit().run_dir)


@pytest.mark.long
def test_predictions_are_near_real_runs(waiting, tmp_path):
    sizes = [("train.batch_size=32",), ("train.batch_size=128",)]
    runs = [run(waiting, tmp_path / str(i), *size) for i, size in enumerate(sizes)]
    calibration = calibrate([each.files.folder for each in runs])
    assert calibration.values["seconds_per_sample"] == pytest.approx(2e-4, rel=0.25)
    others = [("train.batch_size=64",), ("strategy=all-reduce",), ("train.workers=3",)]
    measured = [*runs, *(run(waiting, tmp_path / f"other-{i}", *each) for i, each in enumerate(others))]
    for settings, each in zip([*sizes, *others], measured, strict=True):
        (found,) = predict(waiting.with_settings(settings), calibration, processors=0, draws=3, rounds=40)
        real_s = float(np.median(each.seconds_of_rounds()[0]))
        assert found.round_s.median == pytest.approx(real_s, rel=0.3), settings
