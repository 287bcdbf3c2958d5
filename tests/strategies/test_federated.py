"""Tests of the variants of FedAvg: their algebra, their traffic, and resuming."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import chimera
from chimera.core.errors import ConfigurationError
from chimera.data.order import ShardOrder
from chimera.data.split import DATASETS
from chimera.models.conversion import build_model
from chimera.strategies.participation import Participation
from chimera.training.artifacts.checkpoint import Checkpoints

Fit = Callable[..., chimera.Run]
BATCH, SEED, RATE = 16, 3, 0.1
DIRICHLET = {"name": "dirichlet", "alpha": 0.3}


@pytest.fixture
def fit(tmp_path: Path) -> Fit:
    """Train a small network on the digits by workers with different data, each time in a new folder."""
    folders = itertools.count()

    def fit(strategy: str, options: dict[str, Any] | None = None, **settings: Any) -> chimera.Run:
        given: dict[str, Any] = {
            "model": {"name": "mlp", "hidden": [16]},
            "engine": "simulated",
            "workers": 4,
            "batch_size": BATCH,
            "partition": DIRICHLET,
            "rounds": 8,
            "seed": SEED,
            "optimizer": {"name": "sgd", "lr": RATE},
            "out": tmp_path / f"{next(folders)}",
        }
        own = {"name": strategy, "local_steps": 5, **(options or {})}
        return chimera.train(data="digits", strategy=own, **{**given, **settings})

    return fit


def parameters(run: chimera.Run) -> np.ndarray:
    return run.trained.parameters().copy()


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("fed-prox", {"mu": 0.0}),
        ("fed-avg-m", {"server_optimizer": {"momentum": 0.0}}),
        ("fed-nova", {}),
        ("fed-nova", {"weighted": True}),
    ],
    ids=str,
)
def test_with_neutral_options_each_strategy_equals_fed_avg_to_the_bit(
    fit: Fit, strategy: str, options: dict[str, Any]
) -> None:
    common = {"fraction": 0.5, "weighted": options.get("weighted", False)}
    plain, special = fit("fed-avg", common), fit(strategy, {**common, **options})
    assert np.array_equal(parameters(plain), parameters(special))


@pytest.mark.long
@pytest.mark.parametrize("engine", ["simulated", "local"])
def test_local_sgd_equals_fed_avg_of_all_workers(fit: Fit, engine: str) -> None:
    averaged, local = fit("fed-avg", {"send": "weights"}), fit("local-sgd", engine=engine)
    assert np.array_equal(parameters(averaged), parameters(local))


def test_one_local_step_equals_sgd_on_the_whole_batch(fit: Fit) -> None:
    for strategy, options in (
        ("local-sgd", {}),
        ("fed-nova", {}),
        ("fed-avg-m", {"server_optimizer": {"momentum": 0.0}}),
    ):
        steps = {"name": "sgd", "lr": 0.2}
        averaged = fit(strategy, {"local_steps": 1, **options}, optimizer=steps, partition="iid")
        whole = chimera.train(
            {"name": "mlp", "hidden": [16]},
            "digits",
            engine="simulated",
            strategy="single-worker",
            workers=1,
            batch_size=4 * BATCH,
            optimizer=steps,
            rounds=8,
            seed=SEED,
            out=averaged.run_dir.with_name(f"whole-{strategy}"),
        )
        np.testing.assert_allclose(parameters(averaged), parameters(whole), atol=2e-5)


def by_hand(
    rows: np.ndarray,
    steps: int,
    *,
    rank: int = 0,
    first: int = 0,
    begin: np.ndarray | None = None,
    correct: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda gradient, now: gradient,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights before and after steps of a worker with these rows, in a loop without any of Chimera's actors."""
    split = DATASETS.create("digits")
    about = {"input_shape": split.train.input_shape, "outputs": split.train.outputs, "task": "classification"}
    model = build_model("mlp", {"hidden": [16]}, seed=SEED, **about)
    order, flat = ShardOrder(rows, batch_size=BATCH, seed=SEED, rank=rank), model.parameters()
    if begin is not None:
        flat[:] = begin
    before = flat.copy()
    for step in range(first, first + steps):
        gradient, _ = model.gradient(split.train.take(order.batch(step)))
        flat -= np.float32(RATE) * correct(gradient, flat)
    return before, flat.copy()


def parted(*parts: np.ndarray) -> Callable[..., list[np.ndarray]]:
    """Return a partition."""
    return lambda targets, world_size, rng: list(parts)


def test_fed_prox_adds_the_proximal_term(fit: Fit) -> None:
    rows = np.arange(200)
    run = fit("fed-prox", {"mu": 0.5}, workers=1, partition=parted(rows), rounds=1)
    begin, plain = by_hand(rows, 5)
    _, held = by_hand(rows, 5, correct=lambda gradient, now: gradient + np.float32(0.5) * (now - begin))
    np.testing.assert_allclose(parameters(run), held, atol=1e-6)
    assert np.abs(held - plain).max() > 1e-3


@pytest.mark.parametrize("optimizer", ["sgd", {"name": "adam", "lr": 0.01}], ids=str)
def test_scaffold_with_one_worker_equals_plain_local_training(fit: Fit, optimizer: Any) -> None:
    options = {"optimizer": optimizer, "workers": 1, "partition": parted(np.arange(200))}
    plain, special = (fit(name, **options) for name in ("fed-avg", "scaffold"))
    np.testing.assert_allclose(parameters(special), parameters(plain), atol=2e-5)
    assert np.abs(parameters(plain)).max() > 0.05


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_scaffold_corrects_gradients_by_the_control_variates(fit: Fit, fraction: float) -> None:
    """Some rounds of two workers, by hand: option II as the paper has it; c moves by |S| / N times the mean change in S."""
    parts = np.arange(200), np.arange(200, 300)
    run = fit("scaffold", {"shards": 2, "fraction": fraction}, workers=2, partition=parted(*parts), rounds=4)
    weights, _ = by_hand(parts[0], 0)
    c = np.zeros_like(weights)
    own = [c, c]
    for round_ in range(4):
        chosen = sorted(Participation(fraction).chosen(range(2), round_))
        reached, before = [], list(own)
        for rank in chosen:
            shift = c - before[rank]
            _, there = by_hand(
                parts[rank],
                5,
                rank=rank,
                first=5 * round_,
                begin=weights,
                correct=lambda gradient, _, shift=shift: gradient + shift,
            )
            reached.append(there)
            own[rank] = before[rank] - c + (weights - there) / np.float32(5 * RATE)
        c = c + sum(own[rank] - before[rank] for rank in chosen) / 2
        weights = sum(reached) / len(reached)
    np.testing.assert_allclose(parameters(run), weights, atol=5e-5)


def test_scaffold_control_variates_are_counted_as_traffic(fit: Fit) -> None:
    plain, special = fit("fed-avg"), fit("scaffold", {"shards": 2})
    assert 1.95 < special.cost.bytes_up / plain.cost.bytes_up < 2.05
    assert 1.95 < special.cost.bytes_down / plain.cost.bytes_down < 2.05
    assert special.cost.packed_up == 2 * plain.cost.packed_up


@pytest.mark.parametrize("rule", ["mean", "median"])
def test_fed_nova_weights_each_step_equally(fit: Fit, rule: str) -> None:
    """Wang et al. 2020, equation 10: the mean reach times the mean, or the median, of each one's mean gradient."""
    parts, steps = (np.arange(160), np.arange(160, 192), np.arange(192, 256)), (10, 2, 4)
    options = {"local_epochs": 1, "aggregation": rule}
    run = fit("fed-nova", options, workers=3, partition=parted(*parts), rounds=1)
    ways = [by_hand(rows, count, rank=rank) for rank, (rows, count) in enumerate(zip(parts, steps, strict=True))]
    slopes = [(there - begin) / count for (begin, there), count in zip(ways, steps, strict=True)]
    expected = ways[0][0] + sum(steps) / 3 * getattr(np, rule)(slopes, axis=0)
    np.testing.assert_allclose(parameters(run), expected, atol=1e-6)


def test_fed_nova_weights_by_samples_too(fit: Fit) -> None:
    """Wang et al. 2020, equation 10, with p_i = n_i / n: sum(p_i tau_i) times the mean of the slopes, weighted by p_i."""
    parts, steps = (np.arange(160), np.arange(160, 192), np.arange(192, 256)), (10, 2, 4)
    run = fit("fed-nova", {"local_epochs": 1, "weighted": True}, workers=3, partition=parted(*parts), rounds=1)
    ways = [by_hand(rows, count, rank=rank) for rank, (rows, count) in enumerate(zip(parts, steps, strict=True))]
    shares = np.array([len(rows) for rows in parts]) / 256
    slopes = [(there - begin) / count for (begin, there), count in zip(ways, steps, strict=True)]
    expected = ways[0][0] + shares @ steps * np.average(slopes, axis=0, weights=shares)
    np.testing.assert_allclose(parameters(run), expected, atol=1e-6)


def test_the_normalisation_of_momentum_matches_torch(fit: Fit) -> None:
    from chimera.strategies.fed_nova import FedNova

    nova = FedNova()
    nova.optimizer_of({"name": "sgd", "lr": 1.0, "momentum": 0.7}, 1)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0, momentum=0.7)
    for steps in range(1, 9):
        parameter.grad = torch.ones(1)
        optimizer.step()
        assert nova._gradient_weight(steps) == pytest.approx(-parameter.item(), rel=1e-5)


def expected_steps(name: str, gradients: np.ndarray) -> np.ndarray:
    """Return the result of algorithm 2 of Reddi et al. 2021 from 0."""
    x, m, v = 0.0, 0.0, 0.01**2
    for g in gradients:
        m = 0.9 * m + 0.1 * g
        square = g * g
        if name == "fed-adagrad":
            v = v + square
        elif name == "fed-adam":
            v = 0.99 * v + 0.01 * square
        else:
            v = v - 0.01 * square * np.sign(v - square)
        x -= 0.3 * m / (np.sqrt(v) + 0.01)
    return np.array(x)


@pytest.mark.parametrize("name", ["fed-adam", "fed-yogi", "fed-adagrad"])
def test_adaptive_server_steps_match_the_paper(name: str) -> None:
    from chimera.strategies.strategy import STRATEGIES
    from chimera.training.optimizers.flat_optimizer import FlatOptimizer
    from chimera.training.optimizers.optimizer import OptimizerSettings
    from chimera.training.plugin import named

    decays = {"beta1": 0.9} if name == "fed-adagrad" else {"betas": [0.9, 0.99]}
    strategy = STRATEGIES.create(name, {"server_optimizer": {"lr": 0.3, "tau": 0.01, **decays}})
    flat = np.zeros(1, np.float32)
    optimizer = FlatOptimizer(OptimizerSettings.of(*named(strategy.server_optimizer)), flat)
    gradients = np.random.default_rng(0).normal(size=30) * np.geomspace(1, 1e-3, 30)
    for step, gradient in enumerate(gradients):
        optimizer.step(np.array([gradient], np.float32), step)
    np.testing.assert_allclose(flat[0], expected_steps(name, gradients), rtol=1e-4)


@pytest.mark.parametrize("is_in_it", [False, True])
@pytest.mark.parametrize("strategy", ["scaffold", "fed-bn"])
def test_a_replaced_worker_gets_the_state_of_the_lost_one(fit: Fit, strategy: str, is_in_it: bool) -> None:
    """A loss between a checkpoint and the end of the worker's next round changes no bit.

    Where that round is cut short by it, the others have moved what they alone know, and say again what they said.
    """
    options, died = {"fraction": 0.5}, 4
    taking_part = Participation(0.5)
    victim = next(rank for rank in range(4) if (rank in taking_part.chosen(range(4), died)) == is_in_it)
    assert {victim in taking_part.chosen(range(4), round_) for round_ in (*range(died), *range(5, 10))} == {True, False}
    settings = {"rounds": 10, "evaluate_every": 1, "model": NORMALISED, "evaluate_clients": True}
    whole = fit(strategy, options, **settings)
    run = fit(strategy, options, faults=[f"kill worker {victim} at step {died}"], **settings)
    assert np.array_equal(parameters(run), parameters(whole))
    told = [(event.event, event.actor) for event in run.events][1:]
    events = ["worker lost", "worker respawned", "state restored"]
    assert told == [(event, f"worker {victim}") for event in events]


def test_the_history_reports_state_lost_without_a_checkpoint(fit: Fit) -> None:
    run = fit("scaffold", faults=["kill worker 1 at step 4"], evaluate_every=8)
    assert [event.actor for event in run.events if event.event == "state gone"] == ["worker 1"]
    plain = fit("fed-avg", faults=["kill worker 1 at step 4"], evaluate_every=8)
    assert [event.event for event in plain.events] == ["fault", "worker lost", "worker respawned"]


def test_after_the_loss_of_a_server_the_control_variates_of_servers_and_workers_agree(fit: Fit) -> None:
    """c is the mean of all c_i. Otherwise the run would converge to another point."""
    run = fit(
        "scaffold", faults=["kill server 0 at step 6"], snapshot_every=4, rounds=10, evaluate_every=1000, workers=4
    )
    state = Checkpoints(str(run.run_dir / "checkpoints")).read_last()["cluster"]
    own = [held["rule.control"] for held in state["local"].values()]
    np.testing.assert_allclose(state["servers"][0]["beside"], np.mean(own, axis=0), atol=1e-5)
    assert np.abs(own[0]).max() > 1e-3


FAMILY = ["local-sgd", "fed-prox", "fed-avg-m", "fed-adam", "fed-yogi", "fed-adagrad", "scaffold", "fed-nova"]


@pytest.mark.parametrize("strategy", FAMILY)
def test_each_strategy_learns(fit: Fit, strategy: str) -> None:
    run = fit(strategy, rounds=30)
    assert run.metrics["accuracy"] > 0.75


@pytest.mark.parametrize("strategy", ["scaffold", "fed-adam", "fed-bn"])
def test_a_resumed_run_ends_with_the_same_bits(fit: Fit, tmp_path: Path, strategy: str) -> None:
    options = {"fraction": 0.5, "shards": 2}
    settings = {"evaluate_every": 4, "model": NORMALISED, "evaluate_clients": True}
    whole = fit(strategy, options, rounds=12, **settings)
    fit(strategy, options, rounds=8, out=tmp_path / "cut", **settings)
    resumed = fit(strategy, options, rounds=12, out=tmp_path / "cut", resume=True, **settings)
    assert np.array_equal(parameters(whole), parameters(resumed))
    told = ("loss", "client_loss_std", "bytes_up", "clients")
    looks = [[[row[key] for key in told] for row in run.rows if "loss" in row] for run in (whole, resumed)]
    assert looks[0] == looks[1]


NORMALISED = {"name": "mlp", "hidden": [16], "batch_norm": True}
NORMS, ALL = 2 * 16, 64 * 16 + 16 + 2 * 16 + 16 * 10 + 10


@pytest.mark.long
@pytest.mark.parametrize("engine", ["simulated", "local"])
def test_fed_bn_keeps_batch_norm_parameters_on_each_worker(fit: Fit, engine: str) -> None:
    averaged, kept = (fit(name, {"shards": 2}, model=NORMALISED, engine=engine) for name in ("fed-avg", "fed-bn"))
    for direction in ("elements_up", "elements_down"):
        assert getattr(averaged.cost, direction) == 8 * 4 * ALL
        assert getattr(kept.cost, direction) == 8 * 4 * (ALL - NORMS)
    saved = Checkpoints(str(kept.run_dir / "checkpoints")).read_last()
    assert saved is not None
    own = [held["personal"] for held in saved["cluster"]["local"].values()]
    assert all(each.shape == (NORMS,) for each in own)
    assert len({each.tobytes() for each in own}) == 4
    assert len({each.tobytes() for each in saved["cluster"]["buffers"]}) == 4
    # The state of no single worker: the mean of all.
    norm = kept.model[1]
    np.testing.assert_allclose(norm.weight.detach().numpy(), np.mean([each[:16] for each in own], axis=0), atol=1e-6)
    means = np.mean([each[:16] for each in saved["cluster"]["buffers"]], axis=0)
    np.testing.assert_allclose(norm.running_mean.numpy(), means, atol=1e-6)


def test_fed_bn_with_one_worker_equals_plain_local_training(fit: Fit) -> None:
    plain, kept = (fit(name, model=NORMALISED, workers=1) for name in ("fed-avg", "fed-bn"))
    np.testing.assert_allclose(parameters(kept), parameters(plain), atol=1e-6)


def test_personal_heads_improve_client_accuracy(fit: Fit) -> None:
    """Arivazhagan et al. 2019, figure 3: with skewed labels, personal heads are more accurate on each client's data."""
    shared, own = (
        fit(name, {"local_steps": 10, **options}, rounds=20, evaluate_clients=True, partition={"name": "by-label"})
        for name, options in (("fed-avg", {}), ("fed-bn", {"keep": ["2.*"]}))
    )
    assert own.metrics["client_accuracy_worst_tenth"] > shared.metrics["client_accuracy_worst_tenth"] + 0.02
    assert own.metrics["accuracy"] < own.metrics["client_accuracy_mean"]


@pytest.mark.parametrize(
    ("strategy", "options", "message"),
    [
        ("fed-prox", {"mu": -1.0}, "mu must be at least 0"),
        ("fed-nova", {"send": "weights"}, "send = 'weights'"),
        ("fed-adam", {"server_optimizer": {"tau": 0.0}}, "tau above 0"),
        ("fed-adam", {"tau": 0.01}, "no longer has the option 'tau'.*set server_optimizer.tau"),
        ("fed-bn", {}, "the model has none"),
        ("fed-bn", {"keep": ["norm*"]}, r"no parameter is called like norm\*; there are 0.weight"),
        ("fed-bn", {"keep": ["*"]}, "there is nothing to train together"),
        ("fed-adam", {"beta3": 0.0}, "no option 'beta3'.*fraction"),
    ],
)
def test_invalid_options_raise_a_one_line_error(fit: Fit, strategy: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        fit(strategy, options)
    assert "\n" not in str(caught.value)


def test_a_server_optimizer_with_a_name_replaces_the_default() -> None:
    from chimera.strategies.strategy import STRATEGIES

    made = {
        str(given): STRATEGIES.create("fed-avg-m", {"server_optimizer": given}).server_optimizer
        for given in (None, {"lr": 0.5}, "sgd", {"name": "adam", "lr": 0.01})
    }
    assert list(made.values()) == [
        {"name": "sgd", "lr": 1.0, "momentum": 0.9},
        {"name": "sgd", "lr": 0.5, "momentum": 0.9},
        {"name": "sgd", "lr": 1.0},
        {"name": "adam", "lr": 0.01},
    ]


@pytest.mark.parametrize("optimizer", ["adam", {"name": "sgd", "lr": 0.1, "weight_decay": 0.1}], ids=str)
def test_fed_nova_refuses_an_optimizer_whose_gradient_weight_it_does_not_know(fit: Fit, optimizer: Any) -> None:
    with pytest.raises(ConfigurationError, match="fed-nova knows the gradient weight of sgd only: set train") as caught:
        fit("fed-nova", optimizer=optimizer)
    assert "\n" not in str(caught.value)
