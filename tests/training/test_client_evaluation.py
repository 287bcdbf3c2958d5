"""Tests of evaluation on each worker's own data: it changes nothing, and reports each worker's own metrics."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer

import chimera
from chimera.core.errors import ConfigurationError
from chimera.data.assignment import orders
from chimera.data.order import ShardOrder
from chimera.data.partition import PARTITIONERS
from chimera.data.split import DATASETS
from chimera.models.conversion import build_model
from chimera.training.optimizers.optimizer import OptimizerSettings
from chimera.training.run.client_fairness import client_fairness
from chimera.training.worker.learner import Learner
from training.conftest import Fit

SKEWED = {"name": "dirichlet", "alpha": 0.3}


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60))
def test_fairness_statistics_match_the_clients_metrics(values: list[float]) -> None:
    found = client_fairness([{"accuracy": value, "loss": -value} for value in values])
    tenth = -(-len(values) // 10)
    assert found["client_accuracy_mean"] == pytest.approx(np.mean(values))
    assert found["client_accuracy_std"] == pytest.approx(np.std(values))
    assert found["client_accuracy_worst_tenth"] == pytest.approx(np.mean(sorted(values)[:tenth]))
    assert found["client_loss_worst_tenth"] == pytest.approx(-np.mean(sorted(values)[:tenth]))  # the largest losses


@pytest.mark.sampled(2)
@pytest.mark.parametrize("engine", ["simulated", "local"])
@pytest.mark.parametrize(
    "options",
    [
        {"strategy": {"name": "fed-avg", "local_steps": 3}, "optimizer": "sgd"},
        {"codec": {"name": "identity", "downlink": {"name": "delta", "codec": {"name": "top-k", "ratio": 0.2}}}},
        {"strategy": "all-reduce"},
        {"strategy": "d-psgd", "workers": 4},
    ],
    ids=["fed-avg", "delta", "all-reduce", "d-psgd"],
)
def test_client_evaluation_does_not_change_the_run(fit: Fit, engine: str, options: dict[str, Any]) -> None:
    settings = {"rounds": 12, "evaluate_every": 5, "partition": SKEWED, "engine": engine, **options}
    blind, seeing = (fit(f"{look}", evaluate_clients=look, **settings) for look in (False, True))
    assert np.array_equal(blind.trained.parameters(), seeing.trained.parameters())
    for cost in ("bytes_up", "bytes_down", "samples", "packed_down"):
        assert getattr(blind.cost, cost) == getattr(seeing.cost, cost)
    assert not [key for row in blind.rows for key in row if "client" in key]
    assert [row["round"] for row in seeing.rows if "clients" in row] == [5, 10, 12]


def test_each_worker_evaluates_the_model_on_its_own_rows(fit: Fit) -> None:
    run = fit(rounds=20, evaluate_clients=True, partition=SKEWED)
    train = DATASETS.create("digits").train
    parts = orders(PARTITIONERS.create("dirichlet", {"alpha": 0.3}), train, 3, 16, 0)
    expected = {f"worker {i}": run.trained.evaluate(train.take(part.own())) for i, part in enumerate(parts)}
    told = run.rows[-1]["clients"]
    assert told.keys() == expected.keys()
    for name, metrics in expected.items():
        assert told[name] == pytest.approx(metrics, abs=1e-5)
    summary = json.loads((run.run_dir / "summary.json").read_text())
    assert summary["metrics"]["client_accuracy_mean"] == pytest.approx(
        np.mean([each["accuracy"] for each in expected.values()])
    )


def test_partitioned_data_give_each_client_a_share(fit: Fit) -> None:
    train = DATASETS.create("digits").train
    parts = orders(PARTITIONERS.create("iid"), train, 3, 16, 0)
    assert sorted(np.concatenate([part.own() for part in parts])) == list(range(len(train)))
    assert len(fit(rounds=5, evaluate_clients=True).rows[-1]["clients"]) == 3


def test_a_run_can_stop_at_a_target_of_the_worst_decile(fit: Fit) -> None:
    wanted = {"client_accuracy_worst_tenth": 0.6, "client_loss_worst_tenth": 2.0}
    run = fit(rounds=400, evaluate_every=5, evaluate_clients=True, target=wanted, partition=SKEWED)
    assert run.stopped_by == "target"
    assert run.metrics["client_accuracy_worst_tenth"] >= 0.6
    assert run.metrics["client_loss_worst_tenth"] <= 2.0


def test_the_report_shows_the_clients(fit: Fit) -> None:
    run = fit(rounds=10, evaluate_every=5, evaluate_clients=True, partition=SKEWED)
    page = (run.run_dir / "report.html").read_text()
    assert "<h2>Each worker on its own data</h2>" in page
    assert "worst tenth" in page
    assert "<h2>Each worker on its own data</h2>" not in (fit("other", rounds=5).run_dir / "report.html").read_text()


class Stream:
    """A stream of samples without fixed rows for each worker."""

    batch_size, steps_per_epoch, share = 4, 1.0, 4.0

    def batch(self, step: int) -> np.ndarray:
        return np.arange(4) + step


def test_streams_cannot_be_evaluated_by_client() -> None:
    train = DATASETS.create("digits").train
    about = {"input_shape": train.input_shape, "outputs": train.outputs, "task": "classification"}
    learner = Learner(
        0, build_model("mlp", {}, seed=0, **about), train, Stream(), optimizer=OptimizerSettings("sgd", {"lr": 0.1})
    )
    with pytest.raises(ConfigurationError, match="evaluate_clients needs a data set in rows"):
        learner.evaluate()


def test_private_runs_do_not_report_client_metrics(fit: Fit) -> None:
    with pytest.raises(
        ConfigurationError, match="evaluate_clients reports metrics of each client's data, which privacy protects"
    ):
        fit(strategy="fed-avg", optimizer="sgd", privacy={"clip": 1.0}, evaluate_clients=True)


HELD_OUT = {"evaluate_clients": True, "test_per_client": 0.25, "partition": SKEWED}


def held_out(workers: int, seed: int = 0, share: float = 0.25) -> list[Any]:
    """Return the orders of the workers of a run on digits with `HELD_OUT`."""
    train = DATASETS.create("digits").train
    return orders(PARTITIONERS.create("dirichlet", {"alpha": 0.3}), train, workers, 16, seed, test_share=share)


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[int, tuple[int, ...]], set[int]]:
    """The rows that workers have read, by rank and the rows that they kept."""
    read: dict[tuple[int, tuple[int, ...]], set[int]] = {}
    batch = ShardOrder.batch

    def recorded(order: ShardOrder, step: int) -> np.ndarray:
        rows = batch(order, step)
        assert order.kept is not None
        read.setdefault((order.rank, tuple(order.kept.tolist())), set()).update(rows.tolist())
        return rows

    monkeypatch.setattr(ShardOrder, "batch", recorded)
    return read


def test_clients_are_evaluated_on_rows_on_which_they_never_train(fit: Fit, reading: Any) -> None:
    run = fit(epochs=3, rounds=None, **HELD_OUT)
    train = DATASETS.create("digits").train
    for rank, order in enumerate(held_out(3)):
        assert reading[rank, tuple(order.kept.tolist())] == set(
            order.own().tolist()
        )  # three epochs read all other rows
        expected = run.trained.evaluate(train.take(order.kept))
        assert run.rows[-1]["clients"][f"worker {rank}"] == pytest.approx(expected, abs=1e-5)
    rows = sum(len(order.own()) for order in held_out(3))
    assert run.cost.epochs == pytest.approx(run.cost.samples / rows)
    assert run.summary()["clients_evaluated_on"] == "their own test rows, 25% of their rows"
    page = (run.run_dir / "report.html").read_text()
    assert "evaluated on 25% of its own rows, on which it does not train" in page


def test_the_weight_of_a_client_is_its_number_of_training_rows(fit: Fit) -> None:
    sizes = {"name": "quantity", "exponent": 1.5}
    strategy = {"name": "fed-avg", "local_steps": 1, "weighted": True}
    options: dict[str, Any] = {"strategy": strategy, "optimizer": "sgd", "rounds": 1, "partition": sizes}
    run = fit(evaluate_clients=True, test_per_client=0.25, **options)
    train = DATASETS.create("digits").train
    parts = orders(PARTITIONERS.create("quantity", {"exponent": 1.5}), train, 3, 16, 0, test_share=0.25)
    about = {"input_shape": train.input_shape, "outputs": train.outputs, "task": "classification"}
    model = build_model("mlp", {"hidden": [16]}, seed=0, **about)
    start = model.parameters().copy()
    changes = [-0.1 * model.gradient(train.take(part.batch(0)))[0] for part in parts]
    weights = np.array([part.share for part in parts])
    expected = start + np.average(changes, axis=0, weights=weights)
    assert run.trained.parameters() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("partition", [SKEWED, pytest.param("iid", marks=pytest.mark.long)], ids=["dirichlet", "iid"])
def test_a_resumed_run_keeps_the_same_rows(fit: Fit, partition: Any) -> None:
    options: dict[str, Any] = {"checkpoint_every": 4, "evaluate_every": 4, **HELD_OUT, "partition": partition}
    whole = fit("whole", rounds=12, **options)
    fit("parts", rounds=4, **options)
    resumed = fit("parts", rounds=12, resume=True, **options)
    assert np.array_equal(whole.trained.parameters(), resumed.trained.parameters())
    assert [row.get("clients") for row in whole.rows] == [row.get("clients") for row in resumed.rows]


def test_each_client_keeps_its_rows_when_another_one_joins(fit: Fit, reading: Any) -> None:
    run = fit(workers=2, max_workers=3, rounds=80, evaluate_every=40, **HELD_OUT)
    assert [event.event for event in run.events] == ["worker joined"]
    assert all(not rows & set(kept) for (_, kept), rows in reading.items())
    after = [tuple(order.kept.tolist()) for order in held_out(3)]
    assert set(reading) >= {(rank, kept) for rank, kept in enumerate(after)}
    train = DATASETS.create("digits").train
    for rank, kept in enumerate(after):
        expected = run.trained.evaluate(train.take(np.array(kept)))
        assert run.rows[-1]["clients"][f"worker {rank}"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test_per_client": 0.2}, "test_per_client is for the evaluation of clients: set evaluate_clients too"),
        ({"test_per_client": 1.0, "evaluate_clients": True}, "test_per_client is 1.0: it must be between 0 and 1"),
        (
            {"test_per_client": 0.2, "evaluate_clients": True, "workers": 1438},
            "each worker has a single sample, so none can keep one",
        ),
    ],
)
def test_a_share_that_cannot_be_kept_is_an_error(fit: Fit, options: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        fit(rounds=1, **options)


def test_a_client_with_a_single_row_is_not_evaluated(fit: Fit) -> None:
    def uneven(labels: Any, world_size: int, rng: Any) -> list[np.ndarray]:
        return [np.arange(1), np.arange(1, 500), np.arange(500, len(labels))]

    run = fit(rounds=3, evaluate_clients=True, test_per_client=0.2, partition=uneven)
    assert run.rows[-1]["clients"].keys() == {"worker 1", "worker 2"}


@pytest.mark.long
def test_groups_labels_and_test_rows_are_the_same_on_processes(fit: Fit) -> None:
    inputs, targets = load_breast_cancer(return_X_y=True)
    frame = pd.DataFrame(inputs / inputs.std(0)).add_prefix("x").assign(size=targets, site=np.arange(len(inputs)) % 7)
    data = chimera.Split.of(frame, target="x0", labels="size", groups="site")
    options = {"partition": "by-group", "evaluate_clients": True, "test_per_client": 0.2, "strategy": "fed-avg"}
    runs = [fit(engine, data=data, engine=engine, **options) for engine in ("simulated", "local")]
    assert np.array_equal(*[run.trained.parameters() for run in runs])
    clients, others = [run.rows[-1]["clients"] for run in runs]
    assert clients == others
    written = [(run.run_dir / "data.json").read_text() for run in runs]
    assert written[0] == written[1]
