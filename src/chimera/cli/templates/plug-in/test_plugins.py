"""The plug-ins keep what Chimera promises of them: python -m pytest, after pip install -e '.'."""

import numpy as np
from my_project.codec import HalfPrecision
from my_project.strategy import Cyclic

import chimera
from chimera.core.parameters import Layout


def test_the_codec_keeps_three_digits():
    vector = np.linspace(-2, 2, 100, dtype=np.float32)
    codec = HalfPrecision()
    decoded = codec.decode(codec.encode(vector, Layout(("weights",), ((100,),))))
    np.testing.assert_allclose(decoded, vector, rtol=1e-3, atol=1e-6)


def test_a_run_trains_with_both(tmp_path):
    model = {"name": "sklearn-sgd-classifier", "loss": "log_loss"}
    run = chimera.train(
        model, "digits", strategy=Cyclic(skip=1), codec="my-project-codec", engine="simulated", workers=2, rounds=40,
        evaluate_every=10, optimizer={"name": "sgd", "lr": 0.5}, out=tmp_path / "run",
    )  # fmt: skip
    losses = [row["loss"] for row in run.rows if "loss" in row]
    assert losses[-1] < losses[0]
