"""Tests of asynchronous strategies: their algebra, their staleness, and tolerance of losses."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import chimera
from chimera.core.errors import ConfigurationError, RunError
from chimera.core.message import Encoded
from chimera.core.parameters import Layout
from chimera.strategies.stale_synchronous import StaleSynchronous
from chimera.training.optimizers.optimizer import OptimizerSettings
from chimera.training.server.parameter_shard import ParameterShard

Fit = Callable[..., chimera.Run]
LONG_TAIL = {"name": "simulated", "compute": {"straggler_spread": 1.0}}
LEARNERS = {
    "async-parameter-server": {"name": "async-parameter-server", "shards": 2},
    "stale-synchronous": {"name": "stale-synchronous", "max_staleness": 1},
    "delay-compensated": {"name": "delay-compensated", "lambda_": 0.5},
    "delay-compensated, adaptive": {"name": "delay-compensated", "lambda_": 0.5, "decay": 0.95, "shards": 2},
    "double-buffering": {"name": "double-buffering", "shards": 2},
    "fed-buff": {"name": "fed-buff", "local_steps": 2},
}


@pytest.fixture
def fit(tmp_path: Path) -> Fit:
    """Train a small network on digits, each time in a new folder."""
    folders = itertools.count()

    def fit(strategy: Any, **options: Any) -> chimera.Run:
        settings: dict[str, Any] = {
            "engine": LONG_TAIL,
            "workers": 3,
            "batch_size": 16,
            "optimizer": {"name": "sgd", "lr": 0.2},
            "rounds": 40,
            "evaluate_every": 40,
            "log_every": 40,
            "out": tmp_path / f"{next(folders)}",
        }
        return chimera.train({"name": "mlp", "hidden": [16]}, "digits", strategy=strategy, **{**settings, **options})

    return fit


def parameters(run: chimera.Run) -> np.ndarray:
    return run.trained.parameters().copy()


def distance(one: chimera.Run, other: chimera.Run) -> float:
    return float(np.abs(parameters(one) - parameters(other)).max())


@pytest.mark.parametrize("name", LEARNERS)
def test_the_number_of_shards_does_not_change_results(fit: Fit, name: str) -> None:
    # Not fused: those kernels round the last few elements of a vector differently from the others.
    options = {"optimizer": {"name": "adam", "lr": 0.01, "fused": False}, "engine": "simulated"}
    whole, cut = (fit({**LEARNERS[name], "shards": shards}, **options) for shards in (1, 5))
    assert np.array_equal(parameters(whole), parameters(cut))
    assert whole.staleness == cut.staleness


@pytest.mark.parametrize("name", ["async-parameter-server", "stale-synchronous", "delay-compensated"])
def test_one_worker_equals_plain_gradient_descent(fit: Fit, name: str) -> None:
    options = {"workers": 1, "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9}}
    one, alone = fit(LEARNERS[name], **options), fit("single-worker", **options)
    assert distance(one, alone) < 2e-5
    assert one.cost.rounds == alone.cost.rounds == 40
    assert one.cost.samples == alone.cost.samples
    assert one.staleness == {0: 40}


def test_a_buffer_of_one_local_step_equals_gradient_descent(fit: Fit) -> None:
    buffered = fit(
        {"name": "fed-buff", "buffer": 1, "local_steps": 1, "shards": 2},
        workers=1,
    )
    assert distance(buffered, fit("single-worker", workers=1)) < 2e-5


def test_a_buffer_counts_all_local_batches(fit: Fit) -> None:
    run = fit({"name": "fed-buff", "buffer": 3, "local_steps": 4}, workers=1, rounds=5)
    assert run.cost.samples == 5 * 3 * 4 * 16
    assert run.staleness == {0: 15}


def test_zero_compensation_equals_the_asynchronous_strategy_to_the_bit(fit: Fit) -> None:
    plain = fit("async-parameter-server")
    for decay in (None, 0.95):
        compensated = fit({"name": "delay-compensated", "lambda_": 0.0, "decay": decay})
        assert np.array_equal(parameters(plain), parameters(compensated))
    assert distance(plain, fit({"name": "delay-compensated", "lambda_": 0.5})) > 0


@pytest.mark.parametrize("decay", [None, 0.9])
def test_compensation_matches_the_paper(decay: float | None) -> None:
    """Zheng et al. 2017: g + lambda_t g^2 (w - w_then), lambda_t = lambda, or lambda over the root of the mean square of g."""
    rng, layout, rate, lambda_ = np.random.default_rng(4), Layout(("w",), ((50,),)), 0.5, 2.0
    then, *gradients = (rng.normal(size=50).astype(np.float32) for _ in range(4))
    made = lambda: ParameterShard(then.copy(), layout, optimizer=OptimizerSettings("sgd", {"lr": rate}))  # noqa: E731
    server = made()
    read, mean_square = server.weights(), np.zeros(50)
    read = Encoded(read.codec, read.size, tuple(array.copy() for array in read.arrays), read.meta)
    weights = then.astype(np.float64)
    for gradient in gradients:  # each computed at the first weights; the first of them is not late
        server.compensate(Encoded("identity", 50, (gradient.copy(),)), read, lambda_, decay)
        mean_square = mean_square * (decay or 0) + gradient.astype(np.float64) ** 2 * (1 - (decay or 0))
        strength = lambda_ if decay is None else lambda_ / np.sqrt(mean_square + 1e-7)
        weights -= rate * (gradient + strength * gradient.astype(np.float64) ** 2 * (weights - then))
        np.testing.assert_allclose(server.model().arrays[0], weights, rtol=2e-4, atol=2e-5)
        state, server = server.state(), made()
        server.restore(state)  # what is kept of squares is part of checkpoints


@pytest.mark.parametrize("workers", [2, 5])
def test_staleness_of_equal_workers_is_the_number_of_others(fit: Fit, workers: int) -> None:
    run = fit("async-parameter-server", engine="simulated", workers=workers)
    beginning = dict.fromkeys(range(workers - 1), 1)
    assert run.staleness == {**beginning, workers - 1: 40 - (workers - 1)}
    assert run.summary()["staleness"] == {str(late): count for late, count in run.staleness.items()}


def test_double_buffering_has_staleness_one_after_the_first_step(fit: Fit) -> None:
    assert fit("double-buffering").staleness == {0: 3, 1: 39 * 3}
    assert fit("double-buffering", evaluate_every=10).staleness == {
        0: 4 * 3,
        1: 36 * 3,
    }  # it restarts after a checkpoint


def test_synchronous_strategies_report_no_staleness(fit: Fit) -> None:
    assert "staleness" not in fit("parameter-server", rounds=3).summary()


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    slow=st.lists(st.floats(0.01, 100), min_size=2, max_size=5),
    spread=st.floats(0, 3),
    bound=st.integers(0, 4),
    looks=st.sampled_from([7, 100]),
)
def test_no_worker_leads_by_more_than_the_bound(
    fit: Fit, tmp_path_factory: pytest.TempPathFactory, slow: list[float], spread: float, bound: int, looks: int
) -> None:
    factors = {f"worker {rank}": factor for rank, factor in enumerate(slow)}
    compute = {"slow": factors, "straggler_spread": spread, "seconds_per_sample": 1e-3}
    run = fit(
        {"name": "stale-synchronous", "max_staleness": bound},
        engine={"name": "simulated", "compute": compute},
        workers=len(slow),
        batch_size=1,
        rounds=24,
        checkpoint_every=looks,
        out=tmp_path_factory.mktemp("bound"),
    )
    summary = run.summary()
    assert summary["largest_lead"] <= summary["max_staleness"] == bound
    assert max(run.staleness) <= (2 * bound + 1) * (len(slow) - 1)  # Ho et al. 2013, theorem 1: who may come between
    assert sum(run.staleness.values()) == 24


def test_a_violated_staleness_bound_is_an_error(fit: Fit) -> None:
    class Careless(StaleSynchronous):
        def may_begin(self, worker: str, cluster: Any) -> bool:
            return True

    with pytest.raises(RunError, match=r"worker \d was 2 clocks ahead of the slowest; the bound is 1"):
        fit(Careless(max_staleness=1), engine={"name": "simulated", "compute": {"slow": {"worker 1": 50.0}}})


def test_a_worker_that_joins_starts_at_the_slowest_clock(tmp_path: Path) -> None:
    """Otherwise the workers that were there before wait until the new one has computed as many gradients as they have."""

    class Joining(chimera.Callback):
        def on_progress(self, progress: chimera.Progress) -> None:
            if progress.rounds == 30:
                trainer.add_worker()

    strategy = StaleSynchronous(max_staleness=1)
    trainer = chimera.Trainer(
        "logistic-regression", "digits", strategy=strategy, engine="simulated", workers=3, batch_size=16,
        rounds=60, log_every=10, callbacks=[Joining()], out=tmp_path,
    )  # fmt: skip
    trainer.fit()
    clocks = strategy.state()["clocks"]
    assert set(clocks) == {f"worker {rank}" for rank in range(4)}
    # The three workers had 30 clocks together, each at most 1 + 1 ahead of the slowest, which therefore had 9 or more.
    assert sum(clocks.values()) >= 60 + 9
    assert max(clocks.values()) - min(clocks.values()) <= 1 + 1


def test_a_worker_that_was_away_starts_again_at_the_slowest_clock() -> None:
    """Otherwise the others stop until it has caught up with all that they did meanwhile."""
    strategy = StaleSynchronous(max_staleness=1)
    strategy.restore({"clocks": {"worker 0": 50, "worker 1": 51, "worker 2": 3}, "largest_lead": 1})

    def clocks(*names: str) -> dict[str, int]:
        strategy.rounds(SimpleNamespace(round=60, workers=[SimpleNamespace(name=name) for name in names]))  # type: ignore[arg-type]
        return dict(strategy.state()["clocks"])

    assert clocks("worker 0", "worker 1") == {"worker 0": 50, "worker 1": 51}
    assert clocks("worker 0", "worker 1", "worker 2") == {"worker 0": 50, "worker 1": 51, "worker 2": 50}


def test_without_slack_workers_alternate(fit: Fit) -> None:
    run = fit({"name": "stale-synchronous", "max_staleness": 0}, rounds=39)
    assert max(run.staleness) <= 2
    assert run.summary()["largest_lead"] == 0
    assert run.cost.samples <= (39 + 2) * 16


@pytest.mark.sampled(4)
@pytest.mark.parametrize("engine", ["simulated", "local"])
@pytest.mark.parametrize("name", LEARNERS)
def test_strategies_learn(fit: Fit, name: str, engine: str) -> None:
    lr = 1.0 if name == "fed-buff" else 0.2
    run = fit(
        LEARNERS[name],
        engine=LONG_TAIL if engine == "simulated" else engine,
        optimizer={"name": "sgd", "lr": lr},
        rounds=None,
        epochs=8,
        evaluate_every=None,
        log_every=None,
        target={"accuracy": 0.92},
    )
    assert run.metrics["accuracy"] > 0.9


def test_an_epoch_of_rounds_is_an_epoch_of_samples(fit: Fit) -> None:
    run = fit("async-parameter-server", rounds=None, epochs=3, evaluate_every=None, log_every=None)
    evaluated = [row["epoch"] for row in run.rows if "accuracy" in row]
    assert np.allclose(evaluated, [1, 2, 3], atol=0.1)
    assert 80 <= len(run.rows) <= 140
    assert run.cost.epochs < 3.1


@pytest.mark.parametrize("name", LEARNERS)
def test_a_loss_does_not_stop_the_other_workers(fit: Fit, name: str) -> None:
    engine = {
        "name": "simulated",
        "compute": {"straggler_spread": 0.5, "seconds_per_sample": 1e-3},
        "availability": {"crash": {"worker 1": 0.3}},
    }
    optimizer = {"name": "sgd", "lr": 1.0 if name == "fed-buff" else 0.2}
    settings = {"engine": engine, "optimizer": optimizer, "rounds": 120, "evaluate_every": 60, "on_worker_loss": "drop"}
    run = fit(LEARNERS[name], **settings)
    assert [(event.event, event.actor) for event in run.events] == [("worker lost", "worker 1")]
    assert run.cost.rounds == 120
    assert run.metrics["accuracy"] > 0.7
    again = fit(LEARNERS[name], **settings)
    assert np.array_equal(parameters(run), parameters(again))


def test_the_loss_of_all_workers_is_an_error(fit: Fit) -> None:
    crash = {f"worker {rank}": 0.01 for rank in range(3)}
    engine = {"name": "simulated", "availability": {"crash": crash}}
    with pytest.raises(RunError, match="fewer than min_workers"):
        fit("async-parameter-server", engine=engine, rounds=10_000, on_worker_loss="drop")


def test_with_stragglers_asynchronous_training_reaches_the_accuracy_sooner(fit: Fit) -> None:
    compute = {"straggler_spread": 1.0, "seconds_per_sample": 1e-3}
    goal = {
        "engine": {"name": "simulated", "compute": compute},
        "workers": 8,
        "batch_size": 8,
        "rounds": None,
        "epochs": 20,
        "target": {"accuracy": 0.93},
        "log_every": 10_000,
        "seed": 1,
    }
    waits = fit("parameter-server", **goal, evaluate_every=10)
    does_not = fit("async-parameter-server", **{**goal, "optimizer": {"name": "sgd", "lr": 0.05}}, evaluate_every=80)
    assert waits.stopped_by == does_not.stopped_by == "target"
    assert does_not.cost.seconds < 0.8 * waits.cost.seconds


@pytest.mark.parametrize(
    "strategy",
    [
        {"name": "async-parameter-server", "shards": 0},
        {"name": "stale-synchronous", "max_staleness": -1},
        {"name": "delay-compensated", "lambda_": -0.1},
        {"name": "delay-compensated", "decay": 1.0},
        {"name": "double-buffering", "shards": 0},
        {"name": "fed-buff", "buffer": 0},
        {"name": "fed-buff", "local_steps": 0},
    ],
)
def test_invalid_values_are_rejected(fit: Fit, strategy: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="must be"):
        fit(strategy)
