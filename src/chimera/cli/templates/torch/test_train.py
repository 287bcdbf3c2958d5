"""The module trains: python -m pytest."""

from train import fit


def test_the_loss_falls(tmp_path):
    run = fit(engine="simulated", epochs=3, evaluate_every=10, out=tmp_path / "run")
    losses = [row["loss"] for row in run.rows if "loss" in row]
    assert losses[-1] < losses[0]
