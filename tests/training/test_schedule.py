"""Tests of learning-rate schedules: functions of the step's number, the same for all strategies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chimera.core.errors import ConfigurationError
from chimera.data.dataset import DATASETS
from chimera.data.order import orders
from chimera.data.partition import PARTITIONERS
from chimera.models.conversion import build_model
from chimera.training.optimizers.optimizer import OptimizerSettings
from chimera.training.optimizers.schedule import Schedule
from training.conftest import Fit

shares = st.floats(0, 1)


@given(warm_up=shares, final=shares, steps=st.integers(1, 60), decay=st.sampled_from(["constant", "linear", "cosine"]))
def test_the_factor_rises_falls_and_ends_at_its_final_value(
    warm_up: float, final: float, steps: int, decay: Any
) -> None:
    schedule = Schedule(decay, warm_up, final, steps)
    factors = np.array([schedule.factor(step) for step in range(steps + 3)])
    assert (factors[:steps] > 0).all()
    assert (factors <= 1).all()
    rising = int(np.argmax(factors))
    assert (np.diff(factors[: rising + 1]) >= 0).all()
    assert (np.diff(factors[rising:]) <= 1e-12).all()
    assert rising <= warm_up * steps
    assert factors[-1] == pytest.approx(1.0 if decay == "constant" else final)


@given(warm_up=shares, final=shares, steps=st.integers(1, 60))
def test_the_inverse_root_continues_at_the_end_of_the_warm_up(warm_up: float, final: float, steps: int) -> None:
    schedule = Schedule("inverse-sqrt", warm_up, final, steps)
    top = max(warm_up * steps, 1.0)
    for step in range(2 * steps):
        expected = (step + 1) / top if step + 1 < top else max((top / (step + 1)) ** 0.5, final)
        assert schedule.factor(step) == pytest.approx(expected)


def test_the_inverse_root_needs_no_number_of_steps(fit: Fit) -> None:
    assert Schedule("inverse-sqrt").factor(99) == pytest.approx(0.1)
    run = fit(optimizer={"name": "sgd", "lr": 0.5, "schedule": "inverse-sqrt"}, rounds=None, max_seconds=0.05)
    assert run.stopped_by == "max_seconds"


def test_a_cosine_is_at_half_in_the_middle() -> None:
    assert Schedule("cosine", 0.0, 0.2, 100).factor(50) == pytest.approx(0.6)


def test_without_a_schedule_the_rate_is_constant() -> None:
    assert {Schedule(steps=10).factor(step) for step in range(20)} == {1.0}
    assert not Schedule(steps=10).changes


@pytest.mark.parametrize(
    "strategy", ["single-worker", "all-reduce", "parameter-server", "async-parameter-server", "fed-avg", "fed-buff"]
)
def test_schedules_match_torch_for_every_strategy(fit: Fit, strategy: str) -> None:
    rounds, rate = 25, 0.3
    table = {"name": "sgd", "lr": rate, "momentum": 0.9, "schedule": {"decay": "linear", "warm_up": 0.2, "final": 0.1}}
    given: dict[str, Any] = {"strategy": strategy, "optimizer": table}
    if strategy in ("fed-avg", "fed-buff"):  # here workers step, five times a round
        given = {
            "strategy": {"name": strategy, "local_steps": 5, **({"buffer": 1} if strategy == "fed-buff" else {})},
            "rounds": 5,
            "optimizer": table,
        }
    run = fit(workers=1, **{"rounds": rounds, **given}, checkpoint_every=2, seed=1)
    split = DATASETS.create("digits")
    about = {"input_shape": split.train.input_shape, "outputs": split.train.outputs, "task": "classification"}
    model = build_model("mlp", {"hidden": [16]}, seed=1, **about)
    order = orders(PARTITIONERS.create("iid"), split.train, 1, 16, 1)[0]
    parameter = torch.nn.Parameter(torch.from_numpy(model.parameters()), requires_grad=False)
    optimizer = torch.optim.SGD([parameter], lr=rate, momentum=0.9)
    factor = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: (step + 1) / 5 if step < 5 else 1 - 0.9 * (step - 5) / 20
    )
    for step in range(rounds):
        parameter.grad = torch.from_numpy(model.gradient(split.train.take(order.batch(step)))[0])
        optimizer.step()
        factor.step()
    np.testing.assert_allclose(run.trained.parameters(), model.parameters(), atol=2e-6)


def test_epochs_determine_the_length_of_a_schedule(fit: Fit) -> None:
    table = {"name": "sgd", "lr": 0.1, "schedule": "linear"}
    by_rounds, by_epochs = (
        fit(name, optimizer=table, **{"rounds": None, **budget})
        for name, budget in (("rounds", {"rounds": 30}), ("epochs", {"epochs": 30 * 48 / 1438}))
    )
    assert by_epochs.cost.rounds == 30
    assert np.array_equal(by_rounds.trained.parameters(), by_epochs.trained.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule": "lineal"}, "it may be .constant., .linear., .cosine., .inverse-sqrt."),
        ({"schedule": {"warmup": 0.1}}, "warm_up"),
        ({"schedule": {"warm_up": 1.5}}, "warm_up must be a fraction"),
        ({"schedule": {"final": -1.0}}, "final must be a fraction"),
        ({"schedule": 3}, "neither a decay nor a table"),
    ],
)
def test_invalid_options_raise_a_one_line_error(fit: Fit, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        fit(optimizer={"name": "sgd", "lr": 0.1, **options})
    assert "\n" not in str(caught.value)


def test_a_schedule_needs_a_known_number_of_steps(fit: Fit) -> None:
    with pytest.raises(ConfigurationError, match="needs the length of the run in steps"):
        fit(optimizer={"name": "sgd", "lr": 0.1, "schedule": "linear"}, rounds=None, max_seconds=1.0)


@given(rate=st.floats(1e-4, 1), decay=st.sampled_from(["constant", "linear"]), size=st.integers(1, 100))
def test_plain_sgd_matches_torch_to_the_bit(rate: float, decay: Any, size: int) -> None:
    weights = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    parameter = torch.nn.Parameter(torch.from_numpy(weights.copy()))
    schedule = Schedule(decay, 0, 0.5, 5)
    ours = OptimizerSettings("sgd", {"lr": rate}, schedule).stepper(weights)
    for step in range(5):
        gradient = np.random.default_rng([size, step]).standard_normal(size).astype(np.float32)
        parameter.grad = torch.from_numpy(gradient.copy())
        torch.optim.SGD([parameter], lr=rate * schedule.factor(step)).step()
        ours.step(gradient, step)
    assert (weights == parameter.detach().numpy()).all()
