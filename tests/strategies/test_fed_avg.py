"""Tests of FedAvg: its algebra, participation, and the state of local optimizers."""

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
from chimera.core.message import Encoded
from chimera.data.assignment import orders
from chimera.data.order import ShardOrder
from chimera.data.partition import PARTITIONERS
from chimera.data.provider import PartitionedData
from chimera.data.split import DATASETS, Split
from chimera.models.conversion import build_model
from chimera.models.torch_model import TorchModel
from chimera.strategies.participation import Participation, Work
from chimera.training.artifacts.checkpoint import Checkpoints
from chimera.training.cluster.sharding import Sharding
from chimera.training.optimizers.optimizer import OptimizerSettings
from chimera.training.worker.learner import Learner

Fit = Callable[..., chimera.Run]
ADAM = {"name": "adam", "lr": 0.01}
SGD = {"name": "sgd", "lr": 0.1}
BATCH, SEED = 16, 3


@pytest.fixture
def fit(tmp_path: Path) -> Fit:
    """Train a small network on digits, each time in a new folder."""
    folders = itertools.count()

    def fit(strategy: Any, **options: Any) -> chimera.Run:
        settings: dict[str, Any] = {
            "engine": "simulated",
            "workers": 3,
            "batch_size": BATCH,
            "rounds": 12,
            "evaluate_every": 5,
            "seed": SEED,
            "optimizer": SGD,
            "out": tmp_path / f"{next(folders)}",
        }
        named = {"name": "fed-avg", **strategy} if isinstance(strategy, dict) else strategy
        return chimera.train({"name": "mlp", "hidden": [16]}, "digits", strategy=named, **{**settings, **options})

    return fit


def parameters(run: chimera.Run) -> np.ndarray:
    return run.trained.parameters().copy()


def network(split: Split) -> Any:
    about = {"input_shape": split.train.input_shape, "outputs": split.train.outputs, "task": "classification"}
    return build_model("mlp", {"hidden": [16]}, seed=SEED, **about)


def plain_loop(steps: int) -> np.ndarray:
    """Return what one worker learns alone, in a loop without any of Chimera's actors."""
    split = DATASETS.create("digits")
    model = network(split)
    order = orders(PARTITIONERS.create("iid"), split.train, 1, BATCH, SEED)[0]
    flat = model.parameters()
    parameter = torch.nn.Parameter(torch.from_numpy(flat), requires_grad=False)
    optimizer = torch.optim.Adam([parameter], lr=ADAM["lr"], fused=True)
    for step in range(steps):
        gradient, _ = model.gradient(split.train.take(order.batch(step)))
        parameter.grad = torch.from_numpy(gradient)
        optimizer.step()
    return flat.copy()


@pytest.mark.parametrize("engine", ["simulated", "local"])
def test_one_worker_equals_a_plain_loop_to_the_bit(fit: Fit, engine: str) -> None:
    options = {"local_steps": 4, "shards": 2}
    run = fit({**options, "send": "weights"}, optimizer=ADAM, workers=1, engine=engine)
    assert np.array_equal(parameters(run), plain_loop(12 * 4))
    assert run.cost.samples == 12 * 4 * BATCH
    np.testing.assert_allclose(parameters(fit(options, optimizer=ADAM, workers=1)), plain_loop(12 * 4), atol=1e-6)


@pytest.mark.parametrize("servers", [None, {"name": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}])
def test_sending_weights_or_updates_gives_the_same_result(fit: Fit, servers: Any) -> None:
    options = {"local_steps": 3, "shards": 2, "server_optimizer": servers}
    changes, weights = (fit({**options, "send": send}) for send in ("change", "weights"))
    np.testing.assert_allclose(parameters(changes), parameters(weights), atol=1e-5)


def test_one_local_step_equals_a_parameter_server_step(fit: Fit) -> None:
    averaged, served = (
        fit(each, optimizer={"name": "sgd", "lr": 0.2}) for each in ({"local_steps": 1}, "parameter-server")
    )
    np.testing.assert_allclose(parameters(averaged), parameters(served), atol=2e-5)
    assert np.abs(parameters(served)).max() > 0.05


def test_the_number_of_shards_does_not_change_results(fit: Fit) -> None:
    # Not fused on servers: those kernels round the last few elements of a vector differently from the others.
    outer = {"name": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True, "fused": False}
    options = {"local_steps": 3, "server_optimizer": outer}
    whole, cut = (fit({**options, "shards": shards}, optimizer=ADAM) for shards in (1, 4))
    assert np.array_equal(parameters(whole), parameters(cut))


def test_servers_average_by_default(fit: Fit) -> None:
    one, other, doubled = (
        fit({"local_steps": 2, "server_optimizer": servers}) for servers in (None, "sgd", {"lr": 2.0})
    )
    assert np.array_equal(parameters(one), parameters(other))
    assert not np.array_equal(parameters(one), parameters(doubled))


def test_the_seed_selects_the_fraction_of_workers(fit: Fit) -> None:
    options = {"local_steps": 2, "fraction": 0.5}
    once, again, other = (
        fit({**options, "seed": seed}, workers=5, evaluate_every=every) for seed, every in ((0, 5), (0, 3), (1, 5))
    )
    assert once.cost.samples == 12 * 2 * 2 * BATCH
    assert np.array_equal(parameters(once), parameters(again))  # who was chosen does not depend on when a look is taken
    assert not np.array_equal(parameters(once), parameters(other))
    assert all(0 < row["train_loss"] < 3 for row in once.rows if "train_loss" in row)


def test_an_epoch_reads_each_sample_once(fit: Fit) -> None:
    run = fit({"local_steps": 5, "fraction": 0.5}, workers=4, rounds=None, epochs=2)
    per_round = 2 * 5 * BATCH
    assert 2 <= run.cost.epochs < 2 + per_round / 1000
    assert run.cost.samples == run.cost.rounds * per_round


def uneven(targets: Any, world_size: int, rng: Any) -> list[np.ndarray]:
    return [np.arange(300), np.arange(300, 400)]


def uneven_three(targets: Any, world_size: int, rng: Any) -> list[np.ndarray]:
    return [np.arange(200), np.arange(200, 300), np.arange(300, 400)]


@pytest.mark.parametrize("weighted", [True, False])
def test_workers_are_weighted_by_samples_if_wanted(fit: Fit, weighted: bool) -> None:
    run = fit({"local_steps": 3, "weighted": weighted}, workers=2, rounds=1, partition=uneven)
    split = DATASETS.create("digits")
    begin, changes = network(split).parameters().copy(), []
    for rank, rows in enumerate((np.arange(300), np.arange(300, 400))):
        model = network(split)
        order = ShardOrder(rows, batch_size=BATCH, seed=SEED, rank=rank)
        for step in range(3):
            gradient, _ = model.gradient(split.train.take(order.batch(step)))
            model.parameters()[:] -= np.float32(0.1) * gradient
        changes.append(model.parameters() - begin)
    share = 0.75 if weighted else 0.5
    np.testing.assert_allclose(parameters(run), begin + share * changes[0] + (1 - share) * changes[1], atol=1e-6)
    assert np.abs(changes[0] - changes[1]).max() > 1e-3


def test_kept_local_state_is_in_the_checkpoint(fit: Fit) -> None:
    runs = {keep: fit({"local_steps": 3, "keep_state": keep}, optimizer=ADAM) for keep in (True, False)}
    assert not np.array_equal(*(parameters(run) for run in runs.values()))
    states = {keep: Checkpoints(str(run.run_dir / "checkpoints")).read_last() for keep, run in runs.items()}
    kept, forgotten = (states[keep]["cluster"]["local"] for keep in (True, False))  # type: ignore[index]
    names = ("worker 0", "worker 1", "worker 2")
    assert {name: held["tensor.step"].item() for name, held in kept.items()} == dict.fromkeys(names, 36)
    assert forgotten == {name: {} for name in names}


@pytest.mark.long
@pytest.mark.parametrize("engine", ["simulated", "local"])
@pytest.mark.parametrize("privacy", [None, {"clip": 1.0}])
def test_a_replaced_worker_takes_momenta_of_another_worker(
    fit: Fit, engine: str, privacy: dict[str, float] | None
) -> None:
    faults = ["kill worker 1 at step 4"]
    run = fit({"local_steps": 3}, optimizer=ADAM, engine=engine, faults=faults, privacy=privacy)
    events = [event.event for event in run.events]
    state = Checkpoints(str(run.run_dir / "checkpoints")).read_last()
    assert state is not None
    if privacy is None:
        assert events == ["fault", "worker lost", "worker respawned"]
        taken = {name: held["tensor.step"].item() for name, held in state["cluster"]["local"].items()}
        assert min(taken.values()) >= 12 * 3
    else:  # the state of an optimizer reveals data
        assert sorted(events) == ["fault", "state gone", "worker lost", "worker respawned"]
        assert "local" not in state["cluster"]


@pytest.mark.long
@pytest.mark.parametrize("engine", ["simulated", "local"])
def test_a_loss_does_not_repeat_the_local_steps_of_other_workers(fit: Fit, engine: str) -> None:
    run = fit({"local_steps": 3}, optimizer=ADAM, engine=engine, faults=["kill worker 1 at step 4"])
    assert run.cost.samples == 12 * 3 * 3 * BATCH
    state = Checkpoints(str(run.run_dir / "checkpoints")).read_last()
    assert state is not None
    taken = {name: held["tensor.step"].item() for name, held in state["cluster"]["local"].items()}
    assert (taken["worker 0"], taken["worker 2"]) == (12 * 3, 12 * 3)


def test_a_loss_does_not_repeat_local_steps_whose_weight_changes(fit: Fit) -> None:
    strategy = {"local_steps": 3, "weighted": True}
    faults = ["kill worker 1 at step 4"]
    run = fit(strategy, optimizer=ADAM, partition=uneven_three, on_worker_loss="drop", faults=faults)
    assert run.cost.lost_rounds == 1
    state = Checkpoints(str(run.run_dir / "checkpoints")).read_last()
    assert state is not None
    taken = {name: held["tensor.step"].item() for name, held in state["cluster"]["local"].items()}
    assert taken == {"worker 0": 12 * 3, "worker 2": 12 * 3}


def test_a_return_to_a_checkpoint_restores_the_optimizers_of_workers(fit: Fit) -> None:
    strategy, faults = {"local_steps": 3}, ["kill server 0 at step 7"]
    options: dict[str, Any] = {"optimizer": ADAM, "checkpoint_every": 4, "evaluate_every": 100}
    whole, run = fit(strategy, **options), fit(strategy, faults=faults, **options)
    assert [event.detail for event in run.events if event.event == "went back"] == [
        "the snapshot of round 4; 3 rounds lost"
    ]
    assert np.array_equal(parameters(run), parameters(whole))


def plain_learner(optimizer: dict[str, Any] = SGD, codec: dict[str, Any] | None = None) -> Learner:
    split = DATASETS.create("digits")
    order = orders(PARTITIONERS.create("iid"), split.train, 1, BATCH, SEED)[0]
    own, table = dict(optimizer), dict(codec or {"name": "identity"})
    settings = OptimizerSettings(own.pop("name"), own)
    return Learner(0, network(split), split.train, order, optimizer=settings, codec=(table.pop("name"), table))


def test_a_retried_call_returns_the_stored_result() -> None:
    begin = network(DATASETS.create("digits")).parameters().copy()
    weights = Encoded("identity", begin.size, (begin,))
    worker, other = plain_learner(), plain_learner()
    first = worker.delta(weights, steps=2, first=4, round_=2)
    losses = worker.tally().losses
    again = worker.delta(weights, steps=2, first=4, round_=2)
    assert np.array_equal(first[0].arrays[0], again[0].arrays[0])
    assert (losses, worker.tally().losses, worker.step()) == (2, 0, 6)
    worker.forget_answer()
    elsewhere = Encoded("identity", begin.size, (begin + np.float32(0.1),))
    sent = [one.delta(elsewhere, steps=2, first=4, round_=2)[0].arrays[0] for one in (worker, other)]
    assert np.array_equal(*sent)


def states_of(worker: Learner) -> list[dict[str, np.ndarray]]:
    """Return copies of the states of the local optimizer and of the codecs."""
    states = [worker.local_state(), *worker.codec_states()]
    return [{name: np.array(value) for name, value in state.items()} for state in states]


LAYER_WISE = {"name": "layer-wise", "layers": {"*bias": "identity"}, "default": {"name": "top-k", "ratio": 0.1}}


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("reached", [False, True])
@pytest.mark.parametrize(
    "codec",
    [
        {"name": "identity"},
        {"name": "top-k", "ratio": 0.1},
        {"name": "qsgd", "error_feedback": True},
        LAYER_WISE,
        {**LAYER_WISE, "error_feedback": True},
    ],
    ids=str,
)
def test_a_call_retried_with_another_weight_equals_a_single_call(
    codec: dict[str, Any], reached: bool, before: int
) -> None:
    begin = network(DATASETS.create("digits")).parameters().copy()
    weights = Encoded("identity", begin.size, (begin,))
    retried, single = plain_learner(ADAM, codec), plain_learner(ADAM, codec)
    answers = {}
    for worker, tries in ((retried, (1.0, 0.75, 1.5)), (single, (1.5,))):
        for round_ in range(before):  # so that codecs have a state
            worker.delta(weights, steps=2, first=2 * round_, weight=0.5, reached=reached, round_=round_)
        for weight in tries:
            answers[worker] = worker.delta(
                weights, steps=2, first=2 * before, weight=weight, reached=reached, round_=before
            )
    for found, expected in zip(answers[retried][0].arrays, answers[single][0].arrays, strict=True):
        np.testing.assert_array_equal(found, expected)
    for state, other in zip(states_of(retried), states_of(single), strict=True):
        assert state.keys() == other.keys()
        for name, value in state.items():
            np.testing.assert_array_equal(value, other[name], err_msg=name)
    assert retried.tally().losses == single.tally().losses == 2 * (before + 1)
    assert retried.step() == single.step() == 2 * (before + 1)


class Adapted(torch.nn.Module):
    """A network of one low-rank adapter, of rank 4."""

    def __init__(self) -> None:
        super().__init__()
        parts = {
            "lora_A": torch.nn.Linear(64, 4, bias=False),
            "lora_B": torch.nn.Linear(4, 10, bias=False),
        }
        self.q = torch.nn.ModuleDict({name: torch.nn.ModuleDict({"default": part}) for name, part in parts.items()})

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        for part in self.q.values():
            images = part["default"](images.flatten(1))  # type: ignore[index]
        return images


def test_a_call_retried_with_other_shares_of_ranks_equals_a_single_call() -> None:
    split = DATASETS.create("digits")
    order = orders(PARTITIONERS.create("iid"), split.train, 1, BATCH, SEED)[0]
    settings, codec = OptimizerSettings("adam", {"lr": 0.01}), ("top-k", {"ratio": 0.1})
    retried, single = (
        Learner(0, TorchModel(Adapted, seed=0), split.train, order, optimizer=settings, codec=codec) for _ in range(2)
    )
    begin = TorchModel(Adapted, seed=0).parameters().copy()
    weights, answers = Encoded("identity", begin.size, (begin,)), {}
    for worker, tries in ((retried, ([1.0, 1.5], [2.0, 1.0])), (single, ([2.0, 1.0],))):
        for shares in tries:
            answers[worker] = worker.delta(weights, steps=2, first=0, weight=0.5, shares=shares, round_=0)
    for found, expected in zip(answers[retried][0].arrays, answers[single][0].arrays, strict=True):
        np.testing.assert_array_equal(found, expected)
    for state, other in zip(states_of(retried), states_of(single), strict=True):
        for name, value in state.items():
            np.testing.assert_array_equal(value, other[name], err_msg=name)
    assert retried.tally().losses == single.tally().losses == 2


def test_resharded_data_continue_at_the_same_position(fit: Fit) -> None:
    supply = PartitionedData(DATASETS.create("digits").train, PARTITIONERS.create("iid"), BATCH, SEED)
    dealing = Sharding(supply, 3, lambda workers: workers * 4 * BATCH, steps_per_round=4)
    before = [order.batch(step) for order in dealing.orders for step in range(dealing.step_of(2))]
    dealing.reshard(2, 2)
    after = [order.batch(dealing.step_of(2) + step) for order in dealing.orders for step in range(4)]
    read = np.concatenate([*before, *after])
    assert len(np.unique(read)) == len(read) == (3 * 8 + 2 * 4) * BATCH


def test_models_with_their_own_descent_use_it(fit: Fit) -> None:
    split = DATASETS.create("digits")
    numbers: list[float] = []

    def learner(model: Any, name: str = "sgd") -> Learner:
        order = orders(PARTITIONERS.create("iid"), split.train, 1, BATCH, SEED)[0]
        local = OptimizerSettings(name, {"lr": 0.3})
        return Learner(0, model, split.train, order, optimizer=local)

    def descend(batch: Any, learning_rate: float) -> float:
        numbers.append(learning_rate)
        gradient, loss = type(able).gradient(able, batch)
        able.parameters()[:] -= np.float32(learning_rate) * gradient
        return float(loss)

    able = network(split)
    able.descend = descend
    plain, own = learner(network(split)), learner(able)
    results = [one.delta(one.weights(), steps=5)[0].arrays[0] for one in (plain, own)]
    np.testing.assert_allclose(*results, atol=1e-7)
    assert numbers == [0.3] * 5
    assert plain.tally().loss == pytest.approx(own.tally().loss)
    learner(able, "adam").delta(plain.weights(), steps=2)
    assert len(numbers) == 5  # Adam needs gradients


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"local_steps": 0}, "local_steps must be at least 1"),
        ({"fraction": 0.0}, "fraction is a share"),
        ({"server_optimizer": "adamm"}, "adamm"),
        ({"server_optimizer": {"name": "adam", "momentum": 0.9}}, "momentum"),
        ({"server_optimizer": 3}, "3 is no optimizer"),
        ({"local_optimizer": ADAM}, "no longer has the option 'local_optimizer'.*set train.optimizer"),
        ({"local_learning_rate": 0.1}, "set train.optimizer.lr"),
        ({"server_learning_rate": 0.1}, "set server_optimizer.lr"),
        ({"seed": -1}, "seed"),
        ({"local_epochs": 0.0}, "local_epochs must be above 0"),
        ({"over_selection": 0.5}, "over_selection must be at least 1"),
        ({"deadline_s": 0.0}, "deadline_s must be above 0"),
        ({"stragglers": 2.0}, "stragglers is a share"),
        ({"name": "scaffold", "over_selection": 1.5}, "remove over_selection and deadline_s"),
        ({"name": "scaffold", "deadline_s": 1.0}, "remove over_selection and deadline_s"),
    ],
)
def test_invalid_options_raise_a_one_line_error(fit: Fit, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        fit(options)
    assert "\n" not in str(caught.value)


def two_parts(fit: Fit, **strategy: Any) -> chimera.Run:
    return fit({"local_epochs": 2, **strategy}, workers=2, rounds=3, partition=uneven)


def test_local_epochs_are_passes_over_the_workers_share(fit: Fit) -> None:
    run = two_parts(fit)
    steps = 2 * 300 / BATCH, 2 * 100 / BATCH  # 37.5 and 12.5, rounded up
    assert run.cost.samples == 3 * BATCH * sum(map(np.ceil, steps))


def test_local_epochs_equal_local_steps_for_equal_shares(fit: Fit) -> None:
    def halves(targets: Any, world_size: int, rng: Any) -> list[np.ndarray]:
        return [np.arange(160), np.arange(160, 320)]

    epochs, steps = (fit(each, workers=2, partition=halves) for each in ({"local_epochs": 0.5}, {"local_steps": 5}))
    assert np.array_equal(parameters(epochs), parameters(steps))
    assert epochs.cost.samples == steps.cost.samples


def test_with_local_epochs_a_local_schedule_counts_rounds(fit: Fit) -> None:
    def halves(targets: Any, world_size: int, rng: Any) -> list[np.ndarray]:
        return [np.arange(160), np.arange(160, 320)]

    falling = {"name": "sgd", "lr": 0.3, "schedule": {"decay": "linear", "final": 0.1}}
    once = fit({"local_epochs": 0.5}, optimizer=falling, workers=2, partition=halves, rounds=1)
    plain = fit({"local_steps": 5}, optimizer={"name": "sgd", "lr": 0.3}, workers=2, partition=halves, rounds=1)
    assert np.array_equal(parameters(once), parameters(plain))  # in the first round the rate has not fallen yet


SLOW = {"name": "simulated", "compute": {"seconds_per_sample": 1e-3, "slow": {"worker 1": 50.0}}}
"""A batch takes 16 ms, and 0.8 s on worker 1."""


def test_over_selected_rounds_use_the_first_to_answer(fit: Fit) -> None:
    options = {"local_steps": 1, "fraction": 0.5}
    patient = fit(options, workers=4, engine=SLOW, rounds=8)
    hasty = fit({**options, "over_selection": 1.5}, workers=4, engine=SLOW, rounds=8)
    assert hasty.cost.seconds < 0.5 * patient.cost.seconds
    assert hasty.cost.rounds == 8
    assert hasty.cost.lost_rounds == 0
    assert np.isfinite(hasty.metrics["loss"])


@pytest.mark.parametrize("patience", [{"fraction": 0.5, "over_selection": 1.5}, {"deadline_s": 1.0}], ids=str)
def test_a_tolerated_loss_repeats_no_round(fit: Fit, patience: dict[str, float]) -> None:
    run = fit({"local_steps": 1, **patience}, workers=4, rounds=8, faults=["kill worker 2 at step 4"])
    assert [event.actor for event in run.events if event.event == "worker lost"] == ["worker 2"]
    assert run.cost.lost_rounds == 0


def test_a_loss_that_ends_the_round_is_counted_as_a_lost_round(fit: Fit) -> None:
    run = fit({"local_steps": 1}, workers=4, rounds=8, faults=["kill worker 2 at step 4"])
    assert run.cost.lost_rounds == 1


def test_clients_after_the_deadline_are_dropped(fit: Fit) -> None:
    """The other workers get the same result as without the lost one."""

    def parts(targets: Any, world_size: int, rng: Any) -> list[np.ndarray]:
        return [np.arange(200), np.arange(200, 400), np.arange(400, 500)]

    options = {"local_steps": 2, "weighted": True}
    late = fit({**options, "deadline_s": 0.5}, engine=SLOW, partition=parts, rounds=1)
    split = DATASETS.create("digits")
    begin, change = network(split).parameters().copy(), np.float32(0)
    for rank, rows, share in ((0, np.arange(200), 2 / 3), (2, np.arange(400, 500), 1 / 3)):
        model, order = network(split), ShardOrder(rows, batch_size=BATCH, seed=SEED, rank=rank)
        for step in range(2):
            gradient, _ = model.gradient(split.train.take(order.batch(step)))
            model.parameters()[:] -= np.float32(0.1) * gradient
        change = change + np.float32(share) * (model.parameters() - begin)
    np.testing.assert_allclose(parameters(late), begin + change, atol=1e-6)


@pytest.mark.parametrize("engine", ["simulated", "local"])
def test_with_a_deadline_a_loss_does_not_repeat_the_round(fit: Fit, engine: str) -> None:
    options = {"local_steps": 2, "deadline_s": 60.0}
    settings = {"faults": ["kill worker 1 at step 3"], "on_worker_loss": "drop", "engine": engine, "evaluate_every": 6}
    run = fit(options, workers=3, rounds=12, **settings)
    assert run.cost.rounds == 12
    assert run.lost_workers == 1
    assert run.metrics["accuracy"] > 0.4


def test_stragglers_do_partial_work_and_fed_avg_drops_them(fit: Fit) -> None:
    run = fit({"local_steps": 4, "stragglers": 0.5}, workers=4)
    assert run.cost.samples == 12 * 2 * 4 * BATCH
    plan = Participation(stragglers=0.9, seed=2)
    drawn = [plan.cut_short([Work(None, 5, 0)] * 10, round_) for round_ in range(200)]
    assert all(sum(work.partial for work in works) == 9 for works in drawn)
    counts = np.bincount([work.steps for works in drawn for work in works if work.partial])
    assert counts[1:].min() > 0.15 * 1800  # each of 1 to 5 as often, about
    assert len(counts) == 6
