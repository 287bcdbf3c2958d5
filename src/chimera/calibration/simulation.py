"""Runs of an experiment in virtual time, with the times that a calibration measured."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chimera.calibration.measured_run import Floats, read_measured
from chimera.calibration.still_model import StillFactory
from chimera.core.errors import ConfigurationError
from chimera.report.run_files import finite
from chimera.training.experiment.experiment import Experiment
from chimera.training.plugin import named

_LIMITS = "epochs", "rounds", "max_seconds", "max_bytes", "target", "patience"


@dataclass(frozen=True, eq=False)
class Simulated:
    """The result of a run in virtual time.

    Attributes
    ----------
    rounds_s : the seconds of rounds that no evaluation interrupted.
    bytes_up, bytes_down : bytes of a round, of all workers.
    epochs : epochs of a round.
    evaluations : evaluations of the model.
    rounds : the number of rounds.
    stopped_by : the limit that ended the run.
    has_servers : whether the run has parameter servers.
    """

    rounds_s: Floats
    bytes_up: float
    bytes_down: float
    epochs: float
    evaluations: int
    rounds: int
    stopped_by: str
    has_servers: bool


def time_only(experiment: Experiment, engine: Mapping[str, Any], rounds: int) -> Simulated:
    """Simulate some rounds of an experiment without the arithmetic of its gradients.

    If the engine has groups, as many other rounds come first: their calls are shorter, because the driver does not know yet
    how long a round takes. With rounds below about 5 ms, the calls are still shorter than half a second after 100 rounds.
    """
    tables = experiment.tables
    if not isinstance(tables["model"], str | Mapping):
        raise ConfigurationError('a prediction needs a model by name: a table [model] with name = "..."')
    train = {key: value for key, value in tables["train"].items() if key not in (*_LIMITS, "faults", "keep", "monitor")}
    total = 2 * rounds if engine.get("servers_in_groups") else rounds
    train |= {"rounds": total, "log_every": total, "evaluate_every": 10 * total, "checkpoint_every": 10 * total}
    name, options = named(tables["model"])
    found = _run(Experiment({**tables, "train": train, "engine": engine}), model=StillFactory(name, options))
    return replace(found, rounds_s=found.rounds_s[-rounds:])


def complete(experiment: Experiment, engine: Mapping[str, Any]) -> Simulated:
    """Simulate an experiment with all its arithmetic, to its end."""
    return _run(Experiment({**experiment.tables, "engine": engine}))


def _run(experiment: Experiment, **overrides: Any) -> Simulated:
    with tempfile.TemporaryDirectory(prefix="chimera-predict-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = experiment.trainer(out=Path(folder) / "run", **overrides).fit()
        measured = read_measured(run.run_dir, allow_simulated=True)
        last = measured.files.metrics[-1]
        rounds = int(last["round"])
        return Simulated(
            measured.seconds_of_rounds()[0],
            finite(last["bytes_up"]) / rounds,
            finite(last["bytes_down"]) / rounds,
            finite(last["epoch"]) / rounds,
            sum("loss" in row for row in measured.files.metrics),
            rounds,
            str(measured.files.summary.get("stopped_by", "")),
            measured.has_servers,
        )
