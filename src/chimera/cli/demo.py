"""``chimera demo``: something to watch at once, with no file and no network."""

from __future__ import annotations

from chimera.cli.train import Json, Out, Quiet, Resume, run_experiment

DEMO = {
    "data": {"name": "digits"},
    "model": {"name": "mlp", "hidden": [64, 64]},
    "train": {
        "name": "demo",
        "workers": 4,
        "batch_size": 16,
        "epochs": 40,
        "optimizer": {"name": "adam", "lr": 0.002},
        "evaluate_every": 22,
        "seed": 1,
    },
    "strategy": {"name": "parameter-server"},
    "engine": {"name": "local"},
}


def demo(out: Out = None, resume: Resume = False, as_json: Json = False, quiet: Quiet = False) -> None:
    """Train a small network on handwritten digits with four local workers and a parameter server."""
    from chimera.training.experiment import Experiment

    experiment = Experiment(DEMO, "the demo")
    run_experiment(experiment, out=out, resume=resume, as_json=as_json, quiet=quiet, command=["chimera", "demo"])
