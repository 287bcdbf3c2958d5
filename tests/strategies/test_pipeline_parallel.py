"""A pipeline equals the unsplit network with any partition, schedule, engine and faults."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import chimera
from chimera.core.errors import RunError
from chimera.training.model_parallel.partitioning import balanced
from model_parallel_kit import Fit, assert_refused, parameters, plain, random_and_normalised

ADAM = {"name": "adam", "lr": 0.01}


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def fit(tmp_path: Path) -> Fit:
    folders = itertools.count()

    def fit(workers: int, strategy: str = "pipeline-parallel", model: Any = plain, **options: Any) -> chimera.Run:
        more = {
            key: options.pop(key)
            for key in list(options)
            if key in ("cuts", "schedule", "recompute", "balance", "pipelines")
        }
        if strategy == "pipeline-parallel":
            more.setdefault("micro_batches", options.pop("micro_batches", 4))
        settings: dict[str, Any] = {
            "engine": "simulated", "batch_size": 32, "optimizer": ADAM, "rounds": 50, "seed": 1, "evaluate_every": 25,
            "out": tmp_path / f"{next(folders)}",
        }  # fmt: skip
        return chimera.train(
            model, "digits", strategy={"name": strategy, **more}, workers=workers, **{**settings, **options}
        )

    return fit


@pytest.mark.parametrize(
    ("workers", "options"),
    [
        (1, {}),
        (2, {}),
        (3, {"schedule": "gpipe"}),
        (3, {"micro_batches": 7}),
        (2, {"recompute": True}),
        (2, {"cuts": [1]}),
        (2, {"balance": "time"}),
        pytest.param(2, {"engine": "local"}, marks=pytest.mark.long),
        pytest.param(3, {"engine": "ray"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_after_fifty_steps_weights_equal_those_of_the_unsplit_network(
    fit: Fit, workers: int, options: dict[str, Any]
) -> None:
    whole = fit(1, "single-worker")
    run = fit(workers, **options)
    np.testing.assert_allclose(parameters(run), parameters(whole), atol=2e-6)
    assert run.cost.samples == whole.cost.samples
    assert run.metrics["loss"] == pytest.approx(whole.metrics["loss"], abs=1e-5)
    losses = [[row["train_loss"] for row in each.rows if "train_loss" in row] for each in (run, whole)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


@pytest.mark.parametrize("options", [{"cuts": [4]}, {"cuts": [2]}, {"schedule": "gpipe"}, {"recompute": True}], ids=str)
def test_dropout_and_batch_norm_do_not_depend_on_the_partition(fit: Fit, options: dict[str, Any]) -> None:
    whole = fit(1, model=random_and_normalised)
    run = fit(2, model=random_and_normalised, **options)
    np.testing.assert_allclose(parameters(run), parameters(whole), atol=2e-6)
    np.testing.assert_allclose(run.trained.buffers(), whole.trained.buffers(), atol=2e-6)
    assert run.metrics["loss"] == pytest.approx(whole.metrics["loss"], abs=1e-5)


@pytest.mark.long
def test_parallel_pipelines_equal_all_reduce(fit: Fit) -> None:
    run = fit(4, pipelines=2, batch_size=16)
    np.testing.assert_allclose(parameters(run), parameters(fit(2, "all-reduce", batch_size=16)), atol=2e-6)
    np.testing.assert_allclose(
        parameters(run), parameters(fit(4, pipelines=2, batch_size=16, engine="local")), atol=2e-6
    )


def equal_layers() -> nn.Module:
    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (3, 4), (6, 8), (3, 16)])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_the_measured_bubble_is_within_a_tenth_of_theory(
    fit: Fit, tmp_path: Path, stages: int, micro_batches: int, schedule: str
) -> None:
    rng = np.random.default_rng(0)
    data = rng.normal(size=(640, 64)).astype(np.float32), rng.integers(0, 64, 640)
    run = chimera.train(
        equal_layers, data, strategy={"name": "pipeline-parallel", "micro_batches": micro_batches, "schedule": schedule},
        engine={"name": "simulated", "compute": {"seconds_per_sample": 0.1}}, workers=stages, batch_size=64, rounds=5,
        out=tmp_path / "bubble", evaluate_every=5,
    )  # fmt: skip
    theory = (stages - 1) / (micro_batches + stages - 1)
    assert run.figures["bubble"] == pytest.approx(theory, rel=0.1)


@pytest.mark.parametrize("engine", ["simulated", "local", pytest.param("ray", marks=pytest.mark.slow)])
def test_a_killed_stage_restores_all_stages_and_changes_no_result(fit: Fit, engine: str) -> None:
    options: dict[str, Any] = {"model": random_and_normalised, "rounds": 20, "snapshot_every": 6, "engine": engine}
    run = fit(3, **options, faults=["kill worker 1 at step 4", "kill worker 2 at step 15"])
    assert [event.event for event in run.events].count("went back") == 2
    np.testing.assert_array_equal(parameters(run), parameters(fit(3, **options)))


def test_a_resumed_run_equals_an_uninterrupted_run(fit: Fit, tmp_path: Path) -> None:
    options: dict[str, Any] = {"model": random_and_normalised, "balance": "time", "out": tmp_path / "again"}
    fit(3, **options, rounds=20)
    run = fit(3, **options, rounds=40, resume=True)
    np.testing.assert_array_equal(
        parameters(run), parameters(fit(3, model=random_and_normalised, cuts=None, rounds=40))
    )


def test_peak_memory_decreases_with_stages_and_schedule(fit: Fit) -> None:
    def peaks(workers: int, **options: Any) -> list[float]:
        run = fit(workers, model=equal_sizes, rounds=3, batch_size=64, micro_batches=8, **options)
        return [run.figures["peak_mb"][f"worker {stage}"] for stage in range(workers)]

    alone, (first, *_), four = peaks(1), peaks(2), peaks(4)
    assert alone[0] > 1.5 * first > 2 * max(four)
    assert sum(peaks(4, schedule="gpipe")) > sum(four) > sum(peaks(4, recompute=True))


def equal_sizes() -> nn.Module:
    layers = [layer for _ in range(7) for layer in (nn.Linear(64, 64), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(64, 10))


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
    ("workers", "options", "why"),
    [
        (2, {"model": lambda: nn.Bilinear(64, 64, 10)}, "splits an nn.Sequential, but the module is a Bilinear"),
        (4, {}, "4 stages need 4 layers with parameters to train, but the model has 3"),
        (2, {"cuts": [9]}, "ascending numbers from 1 to 4"),
        (3, {"cuts": [1, 2]}, "stage 1 has no parameters to train"),
        (3, {"model": tied, "cuts": [1, 3]}, "stages 0 and 1 share a parameter"),
        (2, {"batch_size": 3}, "a batch of 3 cannot be cut into 4 micro-batches"),
        (2, {"codec": "top-k"}, "sends no messages that codec 'top-k' could encode"),
        (2, {"on_worker_loss": "drop"}, "each worker holds a part of the model"),
        (2, {"max_workers": 3}, "max_workers has no effect"),
        (3, {"pipelines": 2}, "3 workers cannot be parted among 2 pipelines"),
        (2, {"micro_batches": 0}, "micro_batches must be at least 1"),
        (2, {"schedule": "zigzag"}, "Invalid enum value"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_invalid_options_raise_a_one_line_error(fit: Fit, workers: int, options: dict[str, Any], why: str) -> None:
    assert_refused(why, fit, workers, **options)


class Faulty(nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            raise ValueError("nothing but trouble")
        return inputs


@pytest.mark.parametrize("stage", [0, 1])
def test_an_exception_of_a_layer_is_raised_unchanged(fit: Fit, stage: int) -> None:
    def faulty() -> nn.Module:
        layers: list[nn.Module] = [nn.Linear(64, 32), nn.Linear(32, 10)]
        return nn.Sequential(*layers[: stage + 1], Faulty(), *layers[stage + 1 :])

    with pytest.raises(ValueError, match="nothing but trouble"):
        fit(2, model=faulty, cuts=[2 - stage])


def test_a_diverged_network_raises_an_error(fit: Fit) -> None:
    with pytest.raises(RunError, match=r"diverged"):
        fit(2, optimizer={"name": "sgd", "lr": 1e38})


@given(st.lists(st.integers(0, 9), min_size=1, max_size=7).filter(any), st.data())
def test_balanced_partitions_minimize_the_largest_cost(costs: list[int], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, sum(cost > 0 for cost in costs)))

    def worst(bounds: Any) -> int:
        return max(sum(costs[begin:end]) for begin, end in itertools.pairwise(bounds))

    def trains(bounds: Any) -> bool:
        return all(sum(costs[begin:end]) for begin, end in itertools.pairwise(bounds))

    inner = itertools.combinations(range(1, len(costs)), stages - 1)
    others = [(0, *cuts, len(costs)) for cuts in inner]
    found = balanced(costs, stages, costs)
    assert trains(found)
    assert worst(found) == min(map(worst, filter(trains, others)))
