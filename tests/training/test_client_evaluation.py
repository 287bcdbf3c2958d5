"""Tests of evaluation on each worker's own data: it changes nothing, and reports each worker's own metrics."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.core.errors import ConfigurationError
from chimera.data.order import orders
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
