"""Tests of DiLoCo and streaming DiLoCo: their algebra, their traffic, and that no change is lost between rounds."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import chimera
from chimera.core.errors import ConfigurationError
from chimera.data.assignment import orders
from chimera.data.partition import PARTITIONERS
from chimera.data.split import DATASETS
from chimera.models.conversion import build_model

Fit = Callable[..., chimera.Run]
DILOCO = {"name": "diloco", "local_steps": 4}
STREAMING = {"name": "streaming-diloco", "local_steps": 4, "fragments": 2, "overlap": 1}
FEW_BITS = {
    "name": "qsgd",
    "levels": 3,
    "error_feedback": True,
    "downlink": {"name": "delta", "codec": {"name": "qsgd", "levels": 3}},
}
ADAMW = {"name": "adamw", "lr": 0.01}
HIDDEN, BATCH, SEED = 8, 16, 3


@pytest.fixture
def fit(tmp_path: Path) -> Fit:
    """Train a small network on digits, each time in a new folder."""
    folders = itertools.count()

    def fit(strategy: Any, **options: Any) -> chimera.Run:
        settings: dict[str, Any] = {
            "engine": "simulated",
            "workers": 3,
            "batch_size": BATCH,
            "rounds": 8,
            "evaluate_every": 3,
            "seed": SEED,
            "optimizer": ADAMW,
            "out": tmp_path / f"{next(folders)}",
        }
        return chimera.train(
            {"name": "mlp", "hidden": [HIDDEN]}, "digits", strategy=strategy, **{**settings, **options}
        )

    return fit


def parameters(run: chimera.Run) -> np.ndarray:
    return run.trained.parameters().copy()


def network() -> Any:
    about = {"input_shape": (64,), "outputs": 10, "task": "classification"}
    return build_model("mlp", {"hidden": [HIDDEN]}, seed=SEED, **about)


def test_one_sgd_step_with_plain_servers_equals_synchronous_sgd(fit: Fit) -> None:
    common = {"optimizer": {"name": "sgd", "lr": 0.2}, "rounds": 20}
    run = fit({"name": "diloco", "local_steps": 1, "server_optimizer": "sgd"}, **common)
    served = fit("parameter-server", **common)
    np.testing.assert_allclose(parameters(run), parameters(served), atol=2e-5)


def test_diloco_equals_fed_avg_with_adamw_and_nesterov(fit: Fit) -> None:
    outer = {"name": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}
    expected = parameters(fit({"name": "fed-avg", "local_steps": 4, "server_optimizer": outer}))
    assert np.array_equal(parameters(fit(DILOCO)), expected)
    assert np.array_equal(parameters(fit(DILOCO, optimizer=partial(torch.optim.AdamW, lr=0.01))), expected)


def test_without_an_optimizer_workers_use_adamw(fit: Fit) -> None:
    default = fit(DILOCO, optimizer=None)
    assert np.array_equal(parameters(default), parameters(fit(DILOCO, optimizer={"name": "adamw", "lr": 1e-3})))
    again = chimera.Experiment.load(default.run_dir / "experiment.toml")
    assert again.tables["train"]["optimizer"] == {"name": "adamw", "lr": 1e-3}


@pytest.mark.long
@pytest.mark.parametrize("codec", ["identity", FEW_BITS], ids=["plain", "few bits"])
@pytest.mark.parametrize("engine", ["simulated", "local"])
def test_one_fragment_without_overlap_equals_diloco_to_the_bit(fit: Fit, codec: Any, engine: str) -> None:
    one = {**STREAMING, "fragments": 1, "overlap": 0, "alpha": 0.0}
    whole, streamed = fit(DILOCO, codec=codec), fit(one, codec=codec, engine=engine)
    assert np.array_equal(parameters(whole), parameters(streamed))
    assert whole.cost.packed_up == streamed.cost.packed_up


@pytest.mark.parametrize("fragments", [1, 2])
def test_streaming_diloco_matches_the_paper(fit: Fit, fragments: int) -> None:
    """Against algorithm 2 as a plain loop, with SGD inside, for two workers."""
    rate, outer_rate, momentum, alpha, overlap, steps, rounds = 0.1, 0.7, 0.9, 0.25, 1, 4 // fragments, 7
    run = fit(
        {
            **STREAMING,
            "fragments": fragments,
            "overlap": overlap,
            "alpha": alpha,
        },
        workers=2,
        rounds=rounds,
        optimizer={"name": "sgd", "lr": rate},
    )
    split = DATASETS.create("digits")
    models = [network() for _ in range(2)]
    order = orders(PARTITIONERS.create("iid"), split.train, 2, BATCH, SEED)
    shared, bounds = models[0].parameters().copy(), models[0].layout.bounds(fragments)
    known, velocity = shared.copy(), np.zeros_like(shared)
    for round_ in range(rounds):
        for step in range(round_ * steps, (round_ + 1) * steps):
            if round_ and step == round_ * steps + overlap:
                at = slice(*bounds[(round_ - 1) % fragments :][:2])
                known[at] = shared[at]
                for model in models:
                    model.parameters()[at] = alpha * model.parameters()[at] + (1 - alpha) * shared[at]
            for model, own in zip(models, order, strict=True):
                gradient, _ = model.gradient(split.train.take(own.batch(step)))
                model.parameters()[:] -= rate * gradient
        at = slice(*bounds[round_ % fragments :][:2])
        change = np.mean([known[at] - model.parameters()[at] for model in models], axis=0)
        velocity[at] = momentum * velocity[at] + change
        shared[at] -= outer_rate * (change + momentum * velocity[at])
    np.testing.assert_allclose(parameters(run), shared, atol=1e-5)


def test_a_round_sends_one_fragment(fit: Fit) -> None:
    whole, parts = fit(DILOCO, rounds=2), fit({**STREAMING, "fragments": 4}, rounds=8)
    assert whole.cost.samples == parts.cost.samples
    assert whole.cost.elements_up == parts.cost.elements_up
    up = np.diff([0, *(row["bytes_up"] for row in fit({**STREAMING, "fragments": 4}, rounds=8, log_every=1).rows)])
    sizes = np.diff(network().layout.bounds(4))
    assert up.tolist() == [4 * 3 * size for size in (*sizes, *sizes)]


def test_overlap_hides_communication_time(fit: Fit) -> None:
    """If the transfer of a fragment takes as long as a step, no worker waits for it."""
    engine = {"name": "simulated", "network": {"latency_s": 0.05}, "compute": {"seconds_per_sample": 0.1 / BATCH}}
    options = {"engine": engine, "rounds": 12, "evaluate_every": 12, "log_every": 12}
    waits, goes_on = (fit({**STREAMING, "overlap": overlap}, **options) for overlap in (0, 1))
    assert goes_on.cost.seconds < waits.cost.seconds - 11 * 0.099


@pytest.mark.parametrize("engine", ["simulated", pytest.param("local", marks=pytest.mark.long)])
@pytest.mark.parametrize("codec", ["identity", FEW_BITS], ids=["plain", "few bits"])
def test_a_resumed_run_ends_with_the_same_bits(fit: Fit, tmp_path: Path, codec: Any, engine: str) -> None:
    options = {"codec": codec, "engine": engine, "evaluate_every": 3}
    whole = fit(STREAMING, rounds=9, **options)
    fit(STREAMING, rounds=3, out=tmp_path / "parts", **options)
    parts = fit(STREAMING, rounds=9, out=tmp_path / "parts", resume=True, **options)
    assert np.array_equal(parameters(whole), parameters(parts))


@pytest.mark.parametrize("lost", ["worker 1", "server 1"])
def test_training_continues_after_any_loss(fit: Fit, lost: str) -> None:
    run = fit(STREAMING, rounds=40, faults=[f"kill {lost} at step 7"], snapshot_every=3, evaluate_every=40)
    assert [event.event for event in run.events][:2] == ["fault", f"{lost.split()[0]} lost"]
    assert run.cost.rounds == 40
    assert run.metrics["accuracy"] > 0.8


def test_a_non_finite_replica_is_replaced_by_the_reference(fit: Fit) -> None:
    run = fit(
        {**STREAMING, "aggregation": "median"},
        workers=4,
        rounds=40,
        faults=[f"noise worker 1 by 3{38 * '0'} at step 4"],
    )
    assert {event.event for event in run.events} == {"attack", "gradient rejected"}
    assert run.metrics["accuracy"] > 0.8


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"fragments": 3}, "a multiple of fragments"),
        ({"fragments": 0}, "a multiple of fragments"),
        ({"overlap": 3}, "overlap is from 0 to the local_steps / fragments = 2"),
        ({"overlap": -1}, "overlap is from 0"),
        ({"alpha": 1.0}, "alpha is a share"),
        ({"aggregation": "krum"}, "needs at least 5 vectors"),
        ({"fraction": 0.5}, "no option 'fraction'"),
        ({"fragments": 1000, "local_steps": 1000}, "cannot be spread over 1,000 shards"),
    ],
)
def test_invalid_options_raise_a_one_line_error(fit: Fit, options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as caught:
        fit({**STREAMING, **options})
    assert "\n" not in str(caught.value)
