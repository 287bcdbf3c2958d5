"""Split learning equals the unsplit network with any split point and holder of the labels; no data leave their client."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import chimera
from chimera.core.errors import RunError
from chimera.data.partition import PARTITIONERS
from chimera.data.provider import PartitionedData
from chimera.training.experiment.resolve import split_of
from chimera.training.plugin import instantiate
from model_parallel_kit import Fit, assert_refused, assert_same, fit_in, parameters, plain, random_and_normalised


@pytest.fixture
def fit(tmp_path: Path) -> Fit:
    train = fit_in(tmp_path, plain)
    return lambda workers, strategy=None, **options: train(
        workers, {"name": "split-learning", **(strategy or {})}, **options
    )


@pytest.fixture
def whole(tmp_path: Path) -> Fit:
    return fit_in(tmp_path / "whole", plain)


@pytest.mark.parametrize(
    ("workers", "strategy", "engine"),
    [
        (1, {}, "simulated"),
        (3, {"cut": 1}, "simulated"),
        (3, {"cut": 2, "head": 4}, "simulated"),
        pytest.param(2, {"head": 4}, "local", marks=pytest.mark.long),  # without a head the kit runs it by default
        pytest.param(3, {"head": 4}, "ray", marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_after_fifty_steps_weights_equal_those_of_the_unsplit_network(
    fit: Fit, whole: Fit, workers: int, strategy: dict[str, Any], engine: str
) -> None:
    assert_same(fit(workers, strategy, engine=engine), whole(1, "single-worker"))


@pytest.mark.parametrize("strategy", [{"cut": 4}, {"cut": 2, "head": 5}], ids=str)
def test_dropout_and_batch_norm_do_not_depend_on_the_partition(fit: Fit, whole: Fit, strategy: dict[str, Any]) -> None:
    one_stage = whole(1, {"name": "pipeline-parallel", "micro_batches": 1}, model=random_and_normalised)
    assert_same(fit(3, strategy, model=random_and_normalised), one_stage)


def test_clients_read_their_own_data_in_turn(fit: Fit) -> None:
    """Two batches a turn, of clients with unlike data: the same by hand, with one network."""
    clients, local_steps, partition = 3, 2, {"name": "dirichlet", "alpha": 0.5}
    data, seed = split_of("digits", 1).train, 1
    orders = PartitionedData(data, instantiate(PARTITIONERS, partition, Callable), 32, seed).orders(clients)
    run = fit(
        clients, {"local_steps": local_steps}, partition=partition, optimizer={"name": "sgd", "lr": 0.1}, rounds=15
    )
    model = chimera.models.torch_model.TorchModel(plain, seed=seed)
    read = [0] * clients
    for round_ in range(15):
        client = round_ // local_steps % clients
        gradient, _ = model.gradient(data.take(orders[client].batch(read[client])))
        model.load(model.parameters() - 0.1 * gradient)
        read[client] += 1
    np.testing.assert_allclose(parameters(run), model.parameters(), atol=2e-6)


@pytest.mark.parametrize(
    ("strategy", "up", "down"),
    [({"cut": 2}, 32 * 4 + 8, 32 * 4), ({"cut": 2, "head": 4}, 32 * 4 + 24 * 4, 24 * 4 + 32 * 4)],
    ids=str,
)
def test_only_activations_gradients_and_labels_are_sent(fit: Fit, strategy: dict[str, Any], up: int, down: int) -> None:
    """Bytes a row: 32 float32 activations and an int64 label; if labels stay, the gradient of 24 activations."""
    cost = fit(1, strategy).cost
    assert (cost.packed_up, cost.packed_down) == (up * cost.samples, down * cost.samples)
    assert cost.bytes_up == pytest.approx(cost.packed_up, rel=0.01)
    assert cost.bytes_down == pytest.approx(cost.packed_down, rel=0.01)


@pytest.mark.parametrize("engine", ["simulated", pytest.param("local", marks=pytest.mark.long)])
@pytest.mark.parametrize("victim", ["worker 1", "server 0"])
def test_a_killed_half_restores_both_and_changes_no_result(fit: Fit, victim: str, engine: str) -> None:
    options: dict[str, Any] = {"model": random_and_normalised, "rounds": 20, "snapshot_every": 6, "engine": engine}
    run = fit(3, {"local_steps": 2}, **options, faults=[f"kill {victim} at step 3", f"kill {victim} at step 15"])
    assert [event.event for event in run.events].count("went back") == 2
    np.testing.assert_array_equal(parameters(run), parameters(fit(3, {"local_steps": 2}, **options)))


class Tied(nn.Module):
    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs @ self.weight.T


def tied() -> nn.Module:
    first = nn.Linear(64, 64)
    return nn.Sequential(first, nn.ReLU(), Tied(first.weight), nn.Linear(64, 10))


@pytest.mark.parametrize(
    ("strategy", "options", "why"),
    [
        ({"cut": 5}, {}, "the model has 5 layers: cut must be from 1 to 4, and head above it; not 5 and None"),
        ({"cut": 2, "head": 5}, {}, "head above it; not 2 and 5"),
        ({"cut": 3, "head": 4}, {}, "the server's part has no parameters to train"),
        ({"cut": 0}, {}, "cut is at least 1, and head comes after it; not 0 and None"),
        ({"cut": 2, "head": 2}, {}, "not 2 and 2"),
        ({"local_steps": 0}, {}, "local_steps must be at least 1"),
        ({}, {"model": lambda: nn.Sequential(nn.Flatten(), nn.Flatten(), nn.Linear(64, 10))}, "the clients' part has"),
        ({}, {"model": tied}, "stages 0 and 1 share a parameter"),
        ({}, {"model": lambda: nn.Bilinear(64, 64, 10)}, "splits an nn.Sequential, but the module is a Bilinear"),
        ({}, {"codec": "top-k"}, "sends no messages that codec 'top-k' could encode"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_invalid_options_raise_a_one_line_error(
    fit: Fit, strategy: dict[str, Any], options: dict[str, Any], why: str
) -> None:
    assert_refused(why, fit, 2, strategy, **options)


@pytest.mark.parametrize("strategy", [{}, {"head": 4}], ids=str)
def test_a_diverged_network_raises_an_error(fit: Fit, strategy: dict[str, Any]) -> None:
    with pytest.raises(RunError, match=r"diverged"):
        fit(2, strategy, optimizer={"name": "sgd", "lr": 1e38})
