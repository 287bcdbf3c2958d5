"""Runs of an experiment in virtual time, with the times that a calibration measured."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chimera.calibration.measured_run import Floats, read_measured
from chimera.calibration.still_model import StillFactory
from chimera.core.errors import ConfigurationError
from chimera.report.run_files import finite
from chimera.training.artifacts.result import Run
from chimera.training.experiment.experiment import Experiment
from chimera.training.plugin import named

_LIMITS = "epochs", "rounds", "max_seconds", "max_bytes", "target", "patience"
_LEFT_OUT = frozenset((*_LIMITS, "checkpoint_seconds", "faults", "keep", "monitor"))
"""Settings of a run that would end or interrupt the rounds of `time_only`."""


@dataclass(frozen=True, eq=False)
class Simulated:
    """The result of a run in virtual time.

    Attributes
    ----------
    rounds_s : the seconds of rounds that no evaluation interrupted.
    bytes_up, bytes_down : bytes of a round, of all workers.
    epochs : epochs of a round.
    has_servers : whether the run has parameter servers.
    """

    rounds_s: Floats
    bytes_up: float
    bytes_down: float
    epochs: float
    has_servers: bool


def time_only(experiment: Experiment, engine: Mapping[str, Any], rounds: int) -> Simulated:
    """Simulate some rounds of an experiment without the arithmetic of its gradients.

    If the engine has groups, as many other rounds come first: their calls are shorter, because the driver does not know yet
    how long a round takes. With rounds below about 5 ms, the calls are still shorter than half a second after 100 rounds.
    """
    tables = experiment.tables
    if not isinstance(tables["model"], str | Mapping):
        raise ConfigurationError('a prediction needs a model by name: a table [model] with name = "..."')
    train = {key: value for key, value in tables["train"].items() if key not in _LEFT_OUT}
    total = 2 * rounds if engine.get("servers_in_groups") else rounds
    train |= {"rounds": total, "log_every": total, "evaluate_every": 10 * total, "checkpoint_every": 10 * total}
    name, options = named(tables["model"])
    still = StillFactory(name, options)
    with _folder() as folder:
        run = _run(Experiment({**tables, "train": train, "engine": engine}), folder, model=still)
        measured = read_measured(run.run_dir, allow_simulated=True)
    last = measured.files.metrics[-1]
    count = int(last["round"])
    return Simulated(
        measured.seconds_of_rounds()[0][-rounds:],
        finite(last["bytes_up"]) / count,
        finite(last["bytes_down"]) / count,
        finite(last["epoch"]) / count,
        measured.has_servers,
    )


def complete(experiment: Experiment, engine: Mapping[str, Any]) -> tuple[int, str]:
    """Simulate an experiment with all its arithmetic, to its end; return the number of rounds and the limit that ended it."""
    with _folder() as folder:
        run = _run(Experiment({**experiment.tables, "engine": engine}), folder)
    return run.cost.rounds, run.stopped_by


def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="chimera-predict-")


def _run(experiment: Experiment, folder: str, **overrides: Any) -> Run:
    """Run an experiment. Trackers do not record it: it is not a run of the user."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return experiment.trainer(out=Path(folder) / "run", track=(), **overrides).fit()
