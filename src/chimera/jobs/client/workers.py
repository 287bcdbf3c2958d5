"""Numbers of workers of an experiment."""

from __future__ import annotations

import inspect

from chimera.training.experiment.experiment import Experiment
from chimera.training.trainer import Trainer


def workers_of(experiment: Experiment) -> int:
    """Return the number of workers of a run."""
    workers = experiment.tables["train"].get("workers")
    return int(inspect.signature(Trainer).parameters["workers"].default if workers is None else workers)


def needed_workers(experiment: Experiment) -> int:
    """Return the number of workers of the cluster that a run needs: 1 for engines whose workers are not on the cluster."""
    engine = experiment.tables.get("engine", {"name": "local"})["name"]
    return workers_of(experiment) if engine in ("local", "ray") else 1
