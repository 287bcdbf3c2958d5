"""The parameters of simulated runs that tests of calibrations must find."""

from __future__ import annotations

from typing import Any

from chimera.training.experiment.experiment import Experiment

TRUTH = {
    "seconds_per_call": 5e-5,
    "seconds_per_batch": 2e-4,
    "seconds_per_sample": 1e-5,
    "seconds_per_element": 3e-8,
    "latency_s": 1e-3,
    "seconds_per_byte": 8e-8,
}
SPREAD = 0.2
COMPUTE = {key: TRUTH[key] for key in TRUTH if key not in ("latency_s", "seconds_per_byte")}
ENGINE: dict[str, Any] = {
    "name": "simulated",
    "compute": {**COMPUTE, "straggler_spread": SPREAD},
    "network": {"latency_s": TRUTH["latency_s"], "bandwidth_bytes_s": 1 / TRUTH["seconds_per_byte"]},
}


def experiment(**train: Any) -> Experiment:
    """Return an experiment with the true parameters."""
    tables = {"data": "digits", "model": "logistic-regression", "engine": ENGINE}
    return Experiment(
        {
            **tables,
            "train": {"workers": 2, "batch_size": 16, "rounds": 150, "log_every": 50, "evaluate_every": 75, **train},
        }
    )
