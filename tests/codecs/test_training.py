"""Tests of training with codecs: accuracy, resuming with the same bytes, and counted traffic."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import chimera

Fit = Callable[..., chimera.Run]
SCRIPT = '''
"""A codec of a user's own."""

import numpy as np

from chimera.codecs.codec import Codec
from chimera.core.message import Encoded


class Halves(Codec):
    """Send every element as half precision."""

    def encode(self, vector, layout):
        return Encoded("PLACE", vector.size, (vector.astype(np.float16),))

    def decode(self, encoded, out=None):
        return encoded.arrays[0].astype(np.float32)
'''


@pytest.fixture(scope="module")
def fit(tmp_path_factory: pytest.TempPathFactory) -> Fit:
    folder = tmp_path_factory.mktemp("runs")

    def fit(name: str | None = None, **options: Any) -> chimera.Run:
        given: dict[str, Any] = {
            "model": {"name": "mlp", "hidden": [32]},
            "data": "digits",
            "engine": "simulated",
            "workers": 3,
            "batch_size": 32,
            "optimizer": {"name": "sgd", "lr": 0.2},
            "rounds": 120,
            "evaluate_every": 1000,
            "out": folder / (name or f"run-{len(list(folder.iterdir()))}"),
        }
        return chimera.train(**{**given, **options})

    return fit


@pytest.fixture(scope="module")
def identity(fit: Fit) -> chimera.Run:
    return fit()


FEEDBACK = {"error_feedback": True}
CODECS: dict[str, tuple[dict[str, Any], float]] = {  # and at most which part of identity's uplink they may send
    "fp16": ({"name": "cast"}, 0.51),
    "bf16": ({"name": "cast", "to": "bf16"}, 0.51),
    "int8": ({"name": "int8"}, 0.27),
    "qsgd": ({"name": "qsgd", "levels": 7, "block": 64}, 0.15),
    "terngrad": ({"name": "terngrad"}, 0.08),
    "sign": ({"name": "sign", **FEEDBACK}, 0.05),
    "onebit": ({"name": "onebit"}, 0.05),
    "binary": ({"name": "binary", **FEEDBACK}, 0.05),
    "natural": ({"name": "natural"}, 0.29),
    "nonuniform": ({"name": "nonuniform", **FEEDBACK}, 0.15),
    "top-k": ({"name": "top-k", "ratio": 0.05, **FEEDBACK}, 0.08),
    "top-k sampled": ({"name": "top-k", "ratio": 0.05, "sampled": True, **FEEDBACK}, 0.08),
    "random-k": ({"name": "random-k", "ratio": 0.2, **FEEDBACK}, 0.22),
    "threshold": ({"name": "threshold", "value": 0.02, **FEEDBACK}, 0.3),
    "powersgd": ({"name": "powersgd", "rank": 4}, 0.4),
    "dgc": ({"name": "dgc", "ratio": 0.05, "momentum": 0.5, "clip": 3.0, "warm_up": 20}, 0.16),
    "lossless": ({"name": "lossless", "codec": {"name": "int8"}}, 0.27),
    "layer-wise": (
        {"name": "layer-wise", "layers": {"*bias": "identity"}, "default": {"name": "sign", **FEEDBACK}},
        0.12,
    ),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CODECS)
def test_uplink_codecs_keep_accuracy_and_send_less(fit: Fit, identity: chimera.Run, name: str) -> None:
    table, part = CODECS[name]
    run = fit(codec=table)
    assert identity.metrics["accuracy"] > 0.93
    assert run.metrics["accuracy"] > identity.metrics["accuracy"] - 0.025
    assert uplink(run) < part * uplink(identity)


DOWN: dict[
    str, tuple[dict[str, Any], float]
] = {  # and at most how many bits an element may take, the beginning included
    "delta of top-k": ({"name": "delta", "codec": {"name": "top-k", "ratio": 0.05}}, 2.5),
    "delta of signs": ({"name": "delta", "codec": "sign"}, 1.8),
    "delta of ternary": ({"name": "delta", "codec": "terngrad", "rate": 0.2}, 2.9),
    "loss-aware": ({"name": "loss-aware", "bits": 4}, 4.5),
    "adaptive": ({"name": "delta", "codec": {"name": "adaptive", "codecs": ["sign", "int8"]}}, 4),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", DOWN)
def test_downlink_codecs_keep_accuracy_and_send_less(fit: Fit, identity: chimera.Run, name: str) -> None:
    table, bits = DOWN[name]
    run = fit(codec={"name": "identity", "downlink": table})
    assert run.metrics["accuracy"] > identity.metrics["accuracy"] - 0.025
    assert identity.cost.bits_per_element_down == 32
    assert run.cost.bits_per_element_down is not None
    assert run.cost.bits_per_element_down < bits
    assert run.cost.packed_down == run.cost.bytes_down  # what the engine counted for itself


def test_ternary_weights_learn_with_the_curvature_of_adam(fit: Fit) -> None:
    """What is measured is the server's own weights, which were trained for being ternary elsewhere."""
    run = fit(codec={"name": "identity", "downlink": "loss-aware"}, optimizer={"name": "adam", "lr": 0.01})
    assert run.metrics["accuracy"] > 0.88
    assert run.cost.bits_per_element_down is not None
    assert run.cost.bits_per_element_down < 2.5


def uplink(run: chimera.Run) -> int:
    rows = map(json.loads, (run.run_dir / "trace.jsonl").read_text().splitlines())
    return sum(row["bytes_out"] for row in rows if row["call"] == "gradient")


RESUMED = {
    "served": ({"name": "parameter-server", "shards": 2}, {"name": "top-k", "ratio": 0.05, **FEEDBACK}),
    "quorum": ({"name": "parameter-server", "quorum": 0.6}, {"name": "sign", **FEEDBACK}),
    "own pace": ({"name": "async-parameter-server", "shards": 2}, {"name": "qsgd", **FEEDBACK}),
    "deltas": ({"name": "fed-buff", "local_steps": 2}, {"name": "dgc", "ratio": 0.05}),
    "double": ({"name": "double-buffering"}, {"name": "random-k", "ratio": 0.2, **FEEDBACK}),
    "warm start": ({"name": "parameter-server"}, {"name": "powersgd", "lossless": True}),
    "changes": (
        {"name": "parameter-server", "shards": 2},
        {"name": "qsgd", "downlink": {"name": "delta", "codec": {"name": "terngrad"}, "rate": 0.2}},
    ),
    "changes and quorum": (
        {"name": "parameter-server", "quorum": 0.6},
        {"name": "sign", "downlink": {"name": "delta", "codec": {"name": "top-k", "ratio": 0.05}}},
    ),
    "changes at own pace": (
        {"name": "delay-compensated", "shards": 2},
        {"name": "identity", "downlink": {"name": "delta", "codec": "qsgd", "rate": 0.5}},
    ),
    "changes buffered": (
        {"name": "fed-buff", "local_steps": 2},
        {"name": "identity", "downlink": {"name": "delta", "codec": "sign"}},
    ),
    "changes ahead": (
        {"name": "double-buffering"},
        {"name": "adaptive", "downlink": {"name": "delta", "codec": "int8"}},
    ),
    "adaptive": (
        {"name": "parameter-server"},
        {"name": "adaptive", "every": 5, "error_feedback": True, "downlink": "loss-aware"},
    ),
    "layers": (
        {"name": "parameter-server"},
        {"name": "layer-wise", "layers": {"*bias": "onebit"}, "default": {"name": "terngrad", **FEEDBACK}},
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", RESUMED)
def test_a_resumed_run_equals_an_uninterrupted_run(fit: Fit, case: str) -> None:
    strategy, codec = RESUMED[case]
    engine = {"name": "simulated", "compute": {"straggler_spread": 0.9, "spread": 0.4}}
    options = {"strategy": strategy, "codec": codec, "engine": engine, "checkpoint_every": 7, "evaluate_every": 7}
    whole = fit(f"{case} whole", rounds=21, **options)
    fit(case, rounds=14, **options)
    resumed = fit(case, rounds=21, resume=True, **options)
    for file in ("weights.safetensors", "trace.jsonl"):
        assert (resumed.run_dir / file).read_bytes() == (whole.run_dir / file).read_bytes(), file


@pytest.mark.long
def test_a_resumed_run_on_processes_has_the_same_weights(fit: Fit) -> None:
    codec = {"name": "qsgd", "error_feedback": True, "lossless": True}
    runs = [fit(codec=codec, rounds=12, engine=engine) for engine in ("simulated", "local")]
    weights = [(run.run_dir / "weights.safetensors").read_bytes() for run in runs]
    assert weights[0] == weights[1]


def test_a_replaced_worker_has_an_empty_residual(fit: Fit) -> None:
    codec = {"name": "top-k", "ratio": 0.05, "error_feedback": True}
    run = fit(codec=codec, rounds=60, faults=["kill worker 1 at step 20"])
    assert [event.event for event in run.events if "worker" in event.event] == ["worker lost", "worker respawned"]
    assert run.metrics["accuracy"] > 0.8


FAULTS = ["kill worker 1 at step 20", "kill server 0 at step 35"]
STRAGGLERS = {"name": "simulated", "compute": {"straggler_spread": 0.9}}
SERVED: dict[str, tuple[dict[str, Any], float]] = {  # and the learning rate of the servers
    "synchronous": ({"name": "parameter-server", "shards": 2}, 0.2),
    "quorum": ({"name": "parameter-server", "quorum": 0.6}, 0.2),
    "own pace": ({"name": "async-parameter-server"}, 0.2),
    "ahead": ({"name": "double-buffering"}, 0.2),
    "bounded": ({"name": "stale-synchronous", "shards": 2}, 0.2),
    "compensated": ({"name": "delay-compensated"}, 0.2),
    "buffered": ({"name": "fed-buff"}, 1.0),
}


@pytest.mark.parametrize(
    ("case", "engine"),
    [
        *((case, STRAGGLERS) for case in SERVED),
        *(pytest.param(case, "local", marks=pytest.mark.long) for case in list(SERVED)[:3]),
    ],
    ids=lambda value: value if isinstance(value, str) else value["name"],
)
def test_delta_downlinks_tolerate_stragglers_losses_and_new_workers(fit: Fit, case: str, engine: Any) -> None:
    strategy, lr = SERVED[case]
    downlink = {"name": "delta", "codec": {"name": "top-k", "ratio": 0.1}}
    optimizer = {"name": "sgd", "lr": lr}
    options = {"strategy": strategy, "engine": engine, "faults": FAULTS, "snapshot_every": 10, "max_workers": 4}
    run = fit(optimizer=optimizer, codec={"name": "identity", "downlink": downlink}, rounds=60, **options)
    told = [event.event for event in run.events]
    assert {"worker lost", "worker respawned", "worker joined", "server respawned", "went back"} <= set(told)
    assert run.metrics["accuracy"] > 0.6
    assert run.cost.bits_per_element_down is not None
    assert run.cost.bits_per_element_down < 16


@pytest.mark.long
@pytest.mark.parametrize(("engine", "whole_path"), [("simulated", False), ("simulated", True), ("local", False)])
def test_a_codec_from_a_file_works_where_servers_are_processes(
    fit: Fit, tmp_path: Path, engine: str, whole_path: bool
) -> None:
    path = tmp_path / "my_codec.py"
    path.write_text(SCRIPT.replace("PLACE", f"{path if whole_path else path.name}:Halves"))
    run = fit(codec={"name": f"{path}:Halves"}, rounds=5, engine=engine)
    assert run.cost.rounds == 5
