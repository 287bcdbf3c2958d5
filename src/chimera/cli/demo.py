"""``chimera demo``: a short training run that needs no file and no network."""

from __future__ import annotations

from importlib.util import find_spec

import typer

from chimera.cli.train import Json, Out, Quiet, Resume, run_experiment

DEMO = {
    "data": {"name": "digits"},
    "model": {"name": "sklearn-sgd-classifier", "loss": "log_loss"},  # needs no torch, which is a large download
    "train": {
        "name": "demo",
        "workers": 4,
        "batch_size": 16,
        "epochs": 40,
        "optimizer": {"name": "sgd", "lr": 2.0},
        "evaluate_every": 22,
        "seed": 1,
    },
    "strategy": {"name": "parameter-server"},
    "engine": {"name": "local"},
}


def demo(out: Out = None, resume: Resume = False, as_json: Json = False, quiet: Quiet = False) -> None:
    """Train a linear classifier on handwritten digits with four local workers and a parameter server."""
    from chimera.training.experiment.experiment import Experiment

    experiment = Experiment(DEMO, "the demo")
    run_experiment(experiment, out=out, resume=resume, as_json=as_json, quiet=quiet, command=["chimera", "demo"])
    if find_spec("torch") is None and not quiet:
        typer.echo(
            "to train neural networks, install PyTorch: pip install 'chimera-dml[train]' (in a checkout: make install)",
            err=True,
        )
