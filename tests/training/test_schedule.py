"""Tests of learning-rate schedules: functions of the step's number, the same for all strategies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import chimera
from chimera.core.errors import ConfigurationError
from chimera.data.assignment import orders
from chimera.data.partition import PARTITIONERS
from chimera.data.split import DATASETS
from chimera.models.conversion import build_model
from chimera.training.optimizers.optimizer import OptimizerSettings
from chimera.training.optimizers.schedule import Schedule
from chimera.training.progress.metric_monitor import MetricMonitor, Stopping
from training.conftest import Fit

shares = st.floats(0, 1)


@given(warm_up=shares, final=shares, steps=st.integers(1, 60), decay=st.sampled_from(["constant", "linear", "cosine"]))
def test_the_factor_rises_falls_and_ends_at_its_final_value(
    warm_up: float, final: float, steps: int, decay: Any
) -> None:
    schedule = Schedule(decay, warm_up, final, steps)
    factors = np.array([schedule.at(step) for step in range(steps + 3)])
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
        assert schedule.at(step) == pytest.approx(expected)


def test_the_inverse_root_needs_no_number_of_steps(fit: Fit) -> None:
    assert Schedule("inverse-sqrt").at(99) == pytest.approx(0.1)
    run = fit(optimizer={"name": "sgd", "lr": 0.5, "schedule": "inverse-sqrt"}, rounds=None, max_seconds=0.05)
    assert run.stopped_by == "max_seconds"


def test_a_cosine_is_at_half_in_the_middle() -> None:
    assert Schedule("cosine", 0.0, 0.2, 100).at(50) == pytest.approx(0.6)


def test_without_a_schedule_the_rate_is_constant() -> None:
    assert {Schedule(steps=10).at(step) for step in range(20)} == {1.0}
    assert not Schedule(steps=10).changes


def test_a_table_holds_each_factor_for_the_same_steps_and_the_last_one_to_the_end() -> None:
    factors = {"decay": "table", "factors": [1.0, 2.0, 0.5]}
    for every, steps in ((2, None), (0.2, 10)):
        schedule = OptimizerSettings.of("sgd", {"schedule": {**factors, "every": every}}).over(steps).schedule
        assert [schedule.at(step) for step in range(8)] == [1.0, 1.0, 2.0, 2.0, 0.5, 0.5, 0.5, 0.5]


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
        ({"schedule": "table"}, "factors must be numbers of at least 0, at least one"),
        ({"schedule": {"decay": "table", "factors": [1.0, -1.0]}}, "factors must be numbers of at least 0"),
        ({"schedule": {"decay": "cosine", "factors": [1.0]}}, "neither a decay nor a table of decay, final, warm_up"),
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
        torch.optim.SGD([parameter], lr=rate * schedule.at(step)).step()
        ours.step(gradient, step)
    assert (weights == parameter.detach().numpy()).all()


@given(
    gamma=st.floats(0.05, 0.95), every=st.integers(1, 9), warm_up=st.integers(0, 20), final=st.sampled_from([0.0, 0.2])
)
def test_a_step_schedule_matches_torch_after_the_warm_up(gamma: float, every: int, warm_up: int, final: float) -> None:
    steps = 40
    ours = Schedule("step", warm_up / steps, final, steps, gamma=gamma, every=every)
    fraction = Schedule("step", warm_up / steps, final, steps, gamma=gamma, every=every / steps)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = torch.optim.lr_scheduler.StepLR(optimizer, every, gamma)
    for step in range(warm_up, steps):
        expected = max(theirs.get_last_lr()[0], final)
        assert ours.at(step) == fraction.at(step) == pytest.approx(expected)
        optimizer.step()
        theirs.step()


def test_a_step_schedule_in_steps_needs_no_length_of_the_run(fit: Fit) -> None:
    table = {"name": "sgd", "lr": 0.1, "schedule": {"decay": "step", "every": 5, "gamma": 0.5}}
    assert fit(optimizer=table, rounds=None, max_seconds=0.02).stopped_by == "max_seconds"
    with pytest.raises(ConfigurationError, match="needs the length of the run in steps"):
        fit("b", optimizer={**table, "schedule": "step"}, rounds=None, max_seconds=0.02)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ({"decay": "step", "gamma": 1.5}, "gamma must be above 0 and below 1"),
        ({"decay": "step", "every": 2.5}, "every must be a number of steps"),
        ({"decay": "plateau", "factor": 0.0}, "factor must be above 0 and below 1"),
        ({"decay": "plateau", "patience": 0}, "patience must be at least 1"),
        (
            {"decay": "plateau", "every": 3},
            "neither a decay nor a table of decay, factor, final, patience, threshold, threshold_mode, warm_up",
        ),
        ({"decay": "linear", "patience": 3}, "neither a decay nor a table of decay, final, warm_up"),
    ],
)
def test_each_option_belongs_to_its_decay(schedule: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Schedule.of(schedule)


@given(
    values=st.lists(st.integers(0, 3), min_size=1, max_size=25),
    patience=st.integers(1, 4),
    factor=st.sampled_from([0.1, 0.5]),
    final=st.sampled_from([0.0, 0.2]),
    cut=st.integers(0, 24),
)
def test_a_plateau_matches_torch(values: list[int], patience: int, factor: float, final: float, cut: int) -> None:
    schedule = Schedule("plateau", final=final, factor=factor, patience=patience)
    monitor = MetricMonitor(Stopping(monitor="loss"), [schedule])
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(  # which waits for one evaluation more
        optimizer, factor=factor, patience=patience - 1, threshold=0.0, min_lr=final, eps=0.0
    )
    for i, value in enumerate(values):
        if i == cut:  # a resumed run has another monitor
            state, schedule = monitor.state(), Schedule("plateau", final=final, factor=factor, patience=patience)
            monitor = MetricMonitor(Stopping(monitor="loss"), [schedule])
            monitor.restore(state)
        before = schedule.at(i)
        reduced = monitor.evaluated({"loss": float(value)}, i, Flatless())  # type: ignore[arg-type]
        theirs.step(value)
        assert schedule.at(i) == pytest.approx(optimizer.param_groups[0]["lr"])
        assert reduced == (schedule.at(i) != before)


@pytest.mark.parametrize("metric", ["loss", "accuracy"])
@pytest.mark.parametrize("mode", ["rel", "abs"])
@pytest.mark.parametrize("threshold", [0.0, 0.05, 0.3])
def test_the_threshold_of_a_plateau_is_that_of_torch(metric: str, mode: Any, threshold: float) -> None:
    options: dict[str, Any] = {"factor": 0.5, "patience": 2, "threshold": threshold, "threshold_mode": mode}
    schedule, resumed = (Schedule("plateau", final=0.01, **options) for _ in range(2))
    monitor = MetricMonitor(Stopping(monitor=metric), [schedule])
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    kind = "min" if metric == "loss" else "max"
    options |= {"patience": 1, "mode": kind, "min_lr": 0.01, "eps": 0.0}
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **options)
    rng, value = np.random.default_rng(4), 2.0
    for i in range(40):
        value += (-1 if kind == "min" else 1) * float(rng.normal(0.02, 0.1))
        if i == 20:
            state, schedule = monitor.state(), resumed
            monitor = MetricMonitor(Stopping(monitor=metric), [schedule])
            monitor.restore(state)
        monitor.evaluated({metric: value}, i, Flatless())  # type: ignore[arg-type]
        theirs.step(value)
        assert schedule.at(i) == pytest.approx(optimizer.param_groups[0]["lr"])


def test_a_run_that_resumes_with_another_kept_model_has_the_reduced_rate() -> None:
    schedule, resumed = (Schedule("plateau", factor=0.1, patience=1) for _ in range(2))
    monitor = MetricMonitor(Stopping(), [schedule])
    for i in range(3):
        monitor.evaluated({"loss": 1.0}, i, Flatless())  # type: ignore[arg-type]
    assert schedule.at(3) == pytest.approx(0.01)
    MetricMonitor(Stopping(keep="best"), [resumed]).restore(monitor.state())
    assert resumed.at(3) == pytest.approx(0.01)


class Flatless:
    """A model whose weights are not needed."""


FREEZES = {"name": "sgd", "lr": 3.0, "schedule": {"decay": "plateau", "factor": 1e-30, "patience": 1}}
FREEZING: dict[str, dict[str, Any]] = {
    "parameter-server": {"strategy": {"name": "parameter-server", "shards": 2}},
    "all-reduce": {"strategy": "all-reduce"},
    "async-parameter-server": {"strategy": "async-parameter-server"},
    "d-psgd": {"strategy": "d-psgd", "workers": 1},
    "pipeline-parallel": {"strategy": "pipeline-parallel", "workers": 2},
    "split-learning": {"strategy": "split-learning", "workers": 2},
    "local steps": {"strategy": {"name": "fed-avg", "local_steps": 2}},
    "server steps": {
        "strategy": {"name": "fed-avg", "local_steps": 2, "server_optimizer": {**FREEZES, "lr": 1.0}},
        "optimizer": {"name": "sgd", "lr": 3.0},
    },
}


def check_frozen(run: Any) -> None:
    """Check that the model changed until the first evaluation without improvement, and not much after it."""
    losses = [row["loss"] for row in run.rows if "loss" in row]
    at = next(i for i in range(1, len(losses)) if not losses[i] < min(losses[:i]))
    assert at < len(losses) - 2
    assert any(event.event == "learning rate reduced" for event in run.events)
    assert losses[at + 2 :] == [losses[at + 1]] * len(losses[at + 2 :])


@pytest.mark.parametrize("case", FREEZING)
def test_a_plateau_reduces_the_rate_of_all_actors(fit: Fit, case: str) -> None:
    check_frozen(fit(**{"optimizer": FREEZES, **FREEZING[case]}, evaluate_every=2, monitor="loss"))


@pytest.mark.long
@pytest.mark.parametrize("engine", ["local", "ray"])
def test_a_plateau_reduces_the_rate_on_processes(fit: Fit, engine: str) -> None:
    check_frozen(fit(engine=engine, optimizer=FREEZES, evaluate_every=2, monitor="loss"))


@pytest.mark.parametrize("fault", ["kill worker 1 at step 25", "kill server 0 at step 25"])
def test_replaced_actors_have_the_reduced_rate(fit: Fit, fault: str) -> None:
    run = fit(optimizer=FREEZES, evaluate_every=2, monitor="loss", snapshot_every=1, faults=[fault])
    assert any(event.event.endswith("respawned") for event in run.events)
    check_frozen(run)


class DieAt(chimera.Callback):
    def __init__(self, round_: int) -> None:
        self.round = round_

    def on_progress(self, progress: chimera.Progress) -> None:
        if progress.rounds == self.round:
            raise ZeroDivisionError


@pytest.mark.parametrize("case", ["parameter-server", "all-reduce", "async-parameter-server", "local steps"])
def test_a_resumed_run_reduces_rates_like_one_that_never_stopped(fit: Fit, case: str) -> None:
    table = {"name": "sgd", "lr": 3.0, "schedule": {"decay": "plateau", "factor": 0.5, "patience": 1, "final": 0.01}}
    given = {k: v for k, v in FREEZING[case].items() if k != "optimizer"} | {"optimizer": table}
    given |= {"evaluate_every": 3, "checkpoint_every": 4, "monitor": "loss"}
    whole = fit("whole", **given)
    assert sum(event.event == "learning rate reduced" for event in whole.events) > 1
    with pytest.raises(ZeroDivisionError):
        fit(**given, callbacks=[DieAt(18)])
    again = fit(**given, resume=True)
    for file in ("weights.safetensors", "events.jsonl"):
        assert (again.run_dir / file).read_bytes() == (whole.run_dir / file).read_bytes(), file
