"""Slices of a network equal the unsplit network with any number of workers, engine and faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

from chimera.data.dataset import Dataset
from model_parallel_kit import (
    Fit,
    assert_refused,
    assert_same,
    fit_in,
    parameters,
    plain,
    random_and_normalised,
    sentences,
    transformer,
)


@pytest.fixture
def fit(tmp_path: Path) -> Fit:
    train = fit_in(tmp_path, plain)
    return lambda workers, groups=1, **options: train(workers, {"name": "tensor-parallel", "groups": groups}, **options)


@pytest.fixture
def whole(tmp_path: Path) -> Fit:
    return fit_in(tmp_path / "whole", plain)


@pytest.mark.parametrize(
    ("workers", "engine"),
    [
        (1, "simulated"),
        (2, "simulated"),
        (3, "simulated"),
        pytest.param(2, "local", marks=pytest.mark.long),  # as with three, which the kit runs by default
        pytest.param(3, "ray", marks=pytest.mark.slow),
    ],
)
def test_after_fifty_steps_weights_equal_those_of_the_unsplit_network(
    fit: Fit, whole: Fit, workers: int, engine: str
) -> None:
    assert_same(fit(workers, engine=engine), whole(1, "single-worker"))


ONE_STAGE = {"name": "pipeline-parallel", "micro_batches": 1}
SGD = {"name": "sgd", "lr": 0.1}  # Adam would divide the rounding of gradients that are zero by itself


def test_dropout_and_batch_norm_do_not_depend_on_slices(fit: Fit, whole: Fit) -> None:
    options: dict[str, Any] = {"model": random_and_normalised, "optimizer": SGD}
    assert_same(fit(3, **options), whole(1, ONE_STAGE, **options))


@pytest.mark.parametrize("engine", ["simulated", pytest.param("local", marks=pytest.mark.long)])
def test_embeddings_and_attention_are_sliced(fit: Fit, whole: Fit, engine: str) -> None:
    options: dict[str, Any] = {"model": transformer, "data": sentences(), "optimizer": SGD}
    assert_same(fit(2, engine=engine, **options), whole(1, ONE_STAGE, **options))


class Branched(nn.Module):
    """No ``nn.Sequential``."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.out = nn.Linear(64, 16), nn.Linear(64, 16), nn.Linear(16, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.out(self.left(inputs).tanh() * self.right(inputs))


def test_a_custom_module_is_sliced_layer_by_layer(fit: Fit, whole: Fit) -> None:
    assert_same(fit(2, model=Branched, optimizer=SGD), whole(1, "single-worker", model=Branched, optimizer=SGD))


def test_parallel_groups_equal_all_reduce(fit: Fit, whole: Fit) -> None:
    run = fit(4, groups=2, batch_size=16)
    np.testing.assert_allclose(parameters(run), parameters(whole(2, "all-reduce", batch_size=16)), atol=2e-6)


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 12))


def test_peak_memory_decreases_with_workers(fit: Fit) -> None:
    peaks = [max(fit(n, model=wide, rounds=2).figures["peak_mb"].values()) for n in (1, 2, 4)]
    assert peaks[0] > 1.8 * peaks[1] > 3 * peaks[2]


def test_a_pair_of_layers_needs_one_forward_sum_and_no_backward_sum_at_the_input(fit: Fit) -> None:
    """The pair sums 32 rows of 24; the last layer alone 32 of 10, and 32 of 24 on the way back."""
    cost = fit(2, rounds=10).cost
    assert cost.elements_up == 2 * 10 * 32 * (24 + 10 + 24)
    assert cost.bytes_up == pytest.approx(4 * cost.elements_up, rel=0.01)  # two members send 2 (2 - 1) / 2 of it


@pytest.mark.parametrize(
    "engine", ["simulated", pytest.param("local", marks=pytest.mark.long), pytest.param("ray", marks=pytest.mark.slow)]
)
def test_a_killed_slice_restores_all_slices_and_changes_no_result(fit: Fit, engine: str) -> None:
    options: dict[str, Any] = {"model": random_and_normalised, "rounds": 20, "snapshot_every": 6, "engine": engine}
    run = fit(4, 2, **options, faults=["kill worker 1 at step 4", "kill worker 2 at step 15"])
    assert [event.event for event in run.events].count("went back") == 2
    np.testing.assert_array_equal(parameters(run), parameters(fit(4, 2, **options)))


def test_a_resumed_run_equals_an_uninterrupted_run(fit: Fit, tmp_path: Path) -> None:
    options: dict[str, Any] = {"model": random_and_normalised, "out": tmp_path / "again"}
    fit(2, **options, rounds=20)
    run = fit(2, **options, rounds=40, resume=True)
    np.testing.assert_array_equal(parameters(run), parameters(fit(2, model=random_and_normalised, rounds=40)))


@pytest.mark.parametrize(
    ("workers", "options", "why"),
    [
        (2, {"model": lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64))}, "no layer of the model can be cut into 2"),
        (65, {}, "no layer of the model can be cut into 65 slices"),
        (3, {"groups": 2}, "3 workers cannot be parted among 2 groups"),
        (2, {"groups": 0}, "groups must be at least 1"),
        (2, {"codec": "top-k"}, "sends no messages that codec 'top-k' could encode"),
        (2, {"on_worker_loss": "drop"}, "each worker holds a part of the model"),
        (2, {"evaluate_clients": True}, "each worker holds a part of the model, so none can evaluate all of it"),
        (2, {"faults": ["label flip worker 1 at step 0"]}, "attacks need workers that hold the whole model"),
        (2, {"model": "logistic-regression-of-sklearn"}, "logistic"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_invalid_options_raise_a_one_line_error(fit: Fit, workers: int, options: dict[str, Any], why: str) -> None:
    assert_refused(why, fit, workers, **options)


class Poisoned(nn.Linear):
    """Fails in one group only: that which reads the row with the largest number."""

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.max() > 99:
            raise ValueError("nothing but trouble")
        return super().forward(inputs)


def test_an_exception_in_one_group_does_not_block_the_other(fit: Fit) -> None:
    rows = np.zeros((64, 8), np.float32)
    rows[5] = 100.0
    options: dict[str, Any] = {"model": lambda: nn.Sequential(Poisoned(8, 4), nn.Linear(4, 2)), "batch_size": 4}
    with pytest.raises(ValueError, match="nothing but trouble"):
        fit(4, 2, data=Dataset(rows, np.arange(64) % 2), **options)
