"""Pipelines of slices and their replicas equal the unsplit network with larger batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_parallel_kit import Fit, assert_refused, assert_same, fit_in, parameters, plain, random_and_normalised


@pytest.fixture
def fit(tmp_path: Path) -> Fit:
    train = fit_in(tmp_path, plain)
    return lambda workers, stages, slices, **options: train(
        workers, {"name": "hybrid", "stages": stages, "slices": slices}, **options
    )


@pytest.fixture
def whole(tmp_path: Path) -> Fit:
    return fit_in(tmp_path / "whole", plain)


@pytest.mark.parametrize(
    ("stages", "slices", "engine"),
    [
        (2, 2, "simulated"),
        (3, 2, "simulated"),
        pytest.param(2, 2, "local", marks=pytest.mark.long),
        pytest.param(2, 2, "ray", marks=pytest.mark.slow),  # the kit runs it there in CI
    ],
)
def test_after_fifty_steps_weights_equal_those_of_the_unsplit_network(
    fit: Fit, whole: Fit, stages: int, slices: int, engine: str
) -> None:
    assert_same(fit(stages * slices, stages, slices, engine=engine), whole(1, "single-worker"))


@pytest.mark.long
def test_replicas_equal_all_reduce(fit: Fit, whole: Fit) -> None:
    run = fit(8, 2, 2, batch_size=16)
    np.testing.assert_allclose(parameters(run), parameters(whole(2, "all-reduce", batch_size=16)), atol=2e-6)


@pytest.mark.parametrize("engine", ["simulated", pytest.param("local", marks=pytest.mark.long)])
def test_a_killed_part_restores_all_parts_and_changes_no_result(fit: Fit, engine: str) -> None:
    options: dict[str, Any] = {"model": random_and_normalised, "rounds": 20, "snapshot_every": 6, "engine": engine}
    workers = 8 if engine == "simulated" else 4
    run = fit(workers, 2, 2, **options, faults=["kill worker 1 at step 4", "kill worker 2 at step 15"])
    assert [event.event for event in run.events].count("went back") == 2
    np.testing.assert_array_equal(parameters(run), parameters(fit(workers, 2, 2, **options)))


@pytest.mark.long
def test_a_resumed_run_equals_an_uninterrupted_run(fit: Fit, tmp_path: Path) -> None:
    options: dict[str, Any] = {"model": random_and_normalised, "out": tmp_path / "again"}
    fit(4, 2, 2, **options, rounds=20)
    run = fit(4, 2, 2, **options, rounds=40, resume=True)
    np.testing.assert_array_equal(parameters(run), parameters(fit(4, 2, 2, model=random_and_normalised, rounds=40)))


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ((6, 2, 2), r"6 workers cannot be parted among 4 parts \(2 stages of 2 slices\) evenly"),
        ((2, 0, 2), "stages must be at least 1"),
        ((4, 4, 1), "4 stages need 4 layers with parameters to train"),
    ],
    ids=str,
)
def test_invalid_options_raise_a_one_line_error(fit: Fit, shape: tuple[int, int, int], why: str) -> None:
    assert_refused(why, fit, *shape)
