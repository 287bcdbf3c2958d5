"""The experiment trains: python -m pytest."""

from pathlib import Path

import chimera

SHORT = ["engine=simulated", "train.epochs=2", "train.evaluate_every=2"]


def test_the_loss_falls(tmp_path):
    experiment = chimera.Experiment.load(Path(__file__).with_name("experiment.toml")).with_settings(SHORT)
    run = experiment.trainer(out=tmp_path / "run").fit()
    losses = [row["loss"] for row in run.rows if "loss" in row]
    assert losses[-1] < losses[0]
