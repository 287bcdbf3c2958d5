"""A run whose driver has no data: nodes train and evaluate on their own rows."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import chimera
from chimera.cli.main import app
from chimera.core.errors import ConfigurationError, DataError
from chimera.engines.http.engine import HttpEngine
from chimera.federation.data.disclosure import Disclosure
from chimera.federation.data.learner import OwnDataLearner
from chimera.training.nodes_data.declared import MAX_ROUNDS
from chimera.training.privacy.settings import Privacy
from federation.data_kit import MLP, fit, nodes, table, thirds, written

pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "strategy",
    [
        {"name": "fed-avg", "local_steps": 4},
        {"name": "fed-prox", "local_steps": 4},
        {"name": "scaffold", "local_steps": 4, "weighted": True},
        "parameter-server",
    ],
    ids=lambda strategy: strategy if isinstance(strategy, str) else strategy["name"],
)
def test_three_nodes_train_without_data_of_the_driver(tmp_path: Path, strategy: Any) -> None:
    with nodes(tmp_path, written(tmp_path, thirds(table()))) as urls:
        run = fit(urls, strategy=strategy, rounds=60)
    assert run.metrics["accuracy"] > 0.9
    assert run.events == []
    assert set(run.metrics) == {"loss", "accuracy"}


def test_one_hot_targets_of_nodes_need_a_named_loss(tmp_path: Path) -> None:
    frame = table()
    frame = frame.assign(yes=frame["diagnosis"] == "malignant", no=frame["diagnosis"] != "malignant")
    frame = frame.drop(columns="diagnosis").astype(float)
    with nodes(tmp_path, written(tmp_path, thirds(frame), target=["yes", "no"])) as urls:
        with pytest.raises(DataError, match="the targets are one-hot rows of 2 classes"):
            fit(urls, rounds=2)
        assert "r2" in fit(urls, {**MLP, "loss": "mse"}, rounds=2).metrics


def test_the_values_of_one_node_may_all_be_0_or_1(tmp_path: Path) -> None:
    frame = table()
    frame = frame.assign(lesions=np.arange(len(frame)) % 2 + 2.0 * (np.arange(len(frame)) > len(frame) // 2))
    with nodes(tmp_path, written(tmp_path, thirds(frame.drop(columns="diagnosis")), target="lesions")) as urls:
        assert "r2" in fit(urls, rounds=2).metrics


def test_nodes_train_an_estimator_of_two_classes(tmp_path: Path) -> None:
    with nodes(tmp_path, written(tmp_path, thirds(table()))) as urls:
        run = fit(urls, "sklearn-sgd-classifier", strategy={"name": "fed-avg", "local_steps": 4}, rounds=20)
    assert run.metrics["accuracy"] > 0.85
    assert len(run.model.classes_) == 2


@pytest.mark.long
@pytest.mark.parametrize(
    "strategy",
    [
        "async-parameter-server",
        "stale-synchronous",
        {"name": "parameter-server", "shards": 3, "quorum": 0.5},
        *({"name": name, "local_steps": 4} for name in ("fed-avg-m", "fed-buff", "fed-nova")),
        {"name": "fed-adam", "local_steps": 4, "server_optimizer": {"name": "adam", "lr": 0.05}},
        {"name": "fed-avg", "local_steps": 4, "aggregation": "median"},
        {"name": "streaming-diloco", "local_steps": 4, "fragments": 2},
        "choco-sgd",
    ],
    ids=lambda strategy: strategy if isinstance(strategy, str) else strategy["name"],
)
def test_further_strategies_train_without_data_of_the_driver(tmp_path: Path, strategy: Any) -> None:
    with nodes(tmp_path, written(tmp_path, thirds(table()))) as urls:
        run = fit(urls, strategy=strategy, epochs=200, target={"accuracy": 0.9})
    assert run.stopped_by == "target"
    assert run.events == []


def test_merged_metrics_equal_those_of_all_test_rows_at_one_place(tmp_path: Path) -> None:
    data = written(tmp_path, thirds(table()))
    with nodes(tmp_path, data, Disclosure(metrics="own")) as urls:
        run = fit(urls, {**MLP, "metrics": ["accuracy", "f1"]}, rounds=5, data={"name": "nodes", "standardize": False})
    whole = pd.concat([own.frame[own.test] for own in data])  # type: ignore[attr-defined]
    whole = whole[sorted(whole.columns)]
    labels = np.concatenate([own.targets[own.test] for own in data])
    central = run.trained.evaluate((whole.to_numpy(np.float32), labels))
    assert run.metrics == pytest.approx(central, rel=1e-6)
    assert {**run.metrics, "loss": 0} == {**central, "loss": 0}
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert summary["nodes"] == rows[-1]["clients"]
    assert set(summary["nodes"]) == {"north", "south", "west"}
    sizes = [int(own.test.sum()) for own in data]
    accuracies = [each["accuracy"] for each in summary["nodes"].values()]
    assert np.average(accuracies, weights=sizes) == pytest.approx(run.metrics["accuracy"])


def test_figures_of_a_node_are_shown_only_if_the_node_gives_them(tmp_path: Path) -> None:
    disclosure = [Disclosure(metrics="own"), Disclosure(metrics="merged"), Disclosure(metrics="none")]
    data = written(tmp_path, thirds(table()))
    with nodes(tmp_path, data, disclosure) as urls:
        run = fit(urls, rounds=3, evaluate_every=1)
    assert [set(row["clients"]) for row in run.rows if "loss" in row] == [{"north"}] * 3
    for file in ("metrics.jsonl", "summary.json"):
        assert "south" not in (tmp_path / "run" / file).read_text()
    report = (tmp_path / "run" / "report.html").read_text()
    assert '<td>south</td><td class="n">126</td><td class="n">not given</td><td class="n">not given</td>' in report
    held = json.loads((tmp_path / "run" / "data.json").read_text())
    assert [node["metrics"] for node in held["nodes"]] == ["own", "merged", "none"]


@pytest.mark.long
def test_metrics_that_a_node_does_not_name_are_not_in_a_run(tmp_path: Path) -> None:
    disclosure = [
        Disclosure("own"),
        Disclosure("own", named=("accuracy", "loss")),
        Disclosure("own", named=("accuracy",)),
    ]
    model = {**MLP, "metrics": ["accuracy", "f1"]}
    with nodes(tmp_path, written(tmp_path, thirds(table())), disclosure) as urls:
        run = fit(urls, model, rounds=3, target={"accuracy": 0.999}, evaluate_clients=True)
    fairness = {f"client_accuracy_{figure}" for figure in ("mean", "std", "worst_tenth")}
    assert set(run.metrics) == {"accuracy", *fairness}
    assert set(run.rows[-1]["clients"]["north"]) == {"loss", "accuracy", "f1"}


def test_nodes_that_give_no_metrics_are_not_asked_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node whose policy releases no metrics refuses the call, which would cost the run a worker."""
    asked: set[str] = set()
    measure = OwnDataLearner.measure
    monkeypatch.setattr(
        OwnDataLearner, "measure", lambda self, *given: (asked.add(self._node), measure(self, *given))[1]
    )
    data, disclosure = (
        written(tmp_path, thirds(table())),
        [Disclosure("none"), Disclosure(), Disclosure(min_rows=1000)],
    )
    with nodes(tmp_path, data, disclosure) as urls:
        run = fit(urls, rounds=2, data={"name": "nodes", "rows_per_node": 100})
    assert asked == {"south"}
    assert set(run.metrics) == {"loss", "accuracy"}


@pytest.mark.long
def test_a_run_without_metrics_of_any_node_trains(tmp_path: Path) -> None:
    with nodes(tmp_path, written(tmp_path, thirds(table())), Disclosure(metrics="none")) as urls:
        run = fit(urls, rounds=3)
        with pytest.raises(
            ConfigurationError, match="target needs metrics, but no node gives metrics of its test rows"
        ):
            fit(urls, rounds=3, target={"accuracy": 0.9}, out=tmp_path / "other")
    assert run.metrics == {}
    assert run.cost.rounds == 3


def test_a_metric_that_needs_all_outputs_is_refused_by_name(tmp_path: Path) -> None:
    with (
        nodes(tmp_path, written(tmp_path, thirds(table()))) as urls,
        pytest.raises(ConfigurationError, match="the metric 'auroc' needs the outputs of all rows at one place"),
    ):
        fit(urls, {**MLP, "metrics": ["accuracy", "auroc"]}, rounds=1)


@pytest.mark.long
def test_the_mean_over_nodes_of_such_a_metric_has_a_name_that_says_so(tmp_path: Path) -> None:
    data = written(tmp_path, thirds(table()))
    model = {**MLP, "metrics": ["accuracy", "auroc"]}
    with nodes(tmp_path, data, Disclosure(metrics="own")) as urls:
        run = fit(urls, model, rounds=20, data={"name": "nodes", "mean_of_nodes": ["auroc"]})
        with pytest.raises(ConfigurationError, match="'mean_of_nodes': 'accuracy' follows from sums"):
            fit(urls, model, rounds=1, data={"name": "nodes", "mean_of_nodes": ["accuracy"]}, out=tmp_path / "2")
        with pytest.raises(ConfigurationError, match="'mean_of_nodes': 'f1' is no metric of the model"):
            fit(urls, model, rounds=1, data={"name": "nodes", "mean_of_nodes": ["f1"]}, out=tmp_path / "3")
    own = [each["auroc"] for each in run.rows[-1]["clients"].values()]
    sizes = [int(each.test.sum()) for each in data]
    assert run.metrics["auroc_mean_of_nodes"] == pytest.approx(np.average(own, weights=sizes))
    assert run.metrics["auroc_mean_of_nodes"] > 0.9


class Declaring(HttpEngine):
    """An engine that keeps what the driver declares to nodes."""

    told: Any = None

    def declare(self, settings: Any, on_wait: Any) -> None:
        self.told = settings


def test_the_driver_declares_the_settings_that_nodes_decide_by(tmp_path: Path) -> None:
    strategy = {"name": "fed-avg", "local_steps": 2}
    with nodes(tmp_path, written(tmp_path, thirds(table()))) as urls, Declaring(nodes=urls) as engine:
        options = {"engine": engine, "workers": 3, "strategy": strategy, "max_restarts": 2, "out": tmp_path / "run"}
        privacy = {"clip": 1.0, "secure_aggregation": True}
        model = {**MLP, "hidden": (8,), "metrics": "f1"}
        chimera.train(model, rounds=2, monitor="loss", target={"f1": 1.1}, privacy=privacy, **options)
        told = engine.told
        chimera.train("mlp", **{**options, "out": tmp_path / "2"})
        assert engine.told["rounds"] == MAX_ROUNDS
        assert engine.told["privacy"] is None
    assert told.pop("privacy") == asdict(Privacy(**privacy))
    assert told == {
        "strategy": strategy, "model": {**MLP, "metrics": "f1"}, "rounds": 4, "nodes": 3, "metrics": ["f1", "loss"],
    }  # fmt: skip


@pytest.mark.long
def test_personal_parameters_are_evaluated_at_their_node(tmp_path: Path) -> None:
    strategy = {"name": "fed-bn", "keep": ["0.bias"], "local_steps": 2}
    with nodes(tmp_path, written(tmp_path, thirds(table())), Disclosure(metrics="own")) as urls:
        run = fit(urls, strategy=strategy, rounds=10, evaluate_clients=True)
    own = [each["accuracy"] for each in run.rows[-1]["clients"].values()]
    assert run.metrics["client_accuracy_mean"] == pytest.approx(np.mean(own))
    assert min(own) > 0.5


def test_secure_aggregation_and_merged_metrics(tmp_path: Path) -> None:
    options = {"strategy": {"name": "fed-avg", "local_steps": 2}, "rounds": 3}
    with nodes(tmp_path, written(tmp_path, thirds(table())), Disclosure(metrics="own")) as urls:
        plain = fit(urls, **options)
        secure = fit(urls, privacy={"clip": 10.0, "secure_aggregation": True}, out=tmp_path / "secure", **options)
    assert secure.metrics["accuracy"] == pytest.approx(plain.metrics["accuracy"], abs=0.02)
    assert all("clients" not in row for row in secure.rows)
    held = json.loads((tmp_path / "secure" / "data.json").read_text())
    assert [node["rows"] for node in held["nodes"]] == [None] * 3


@pytest.mark.long
def test_a_regression_merges_errors(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(300, 3)), columns=["a", "b", "c"])
    frame["y"] = frame["a"] - 2 * frame["b"] + 0.5
    data = written(tmp_path, [frame[:120], frame[120:]])
    with nodes(tmp_path, data, Disclosure(statistics=True)) as urls:
        run = fit(urls, "linear-regression", rounds=80)
    assert run.metrics["mse"] < 0.05
    whole = pd.concat([own.frame[own.test] for own in data])  # type: ignore[attr-defined]
    whole = whole[sorted(whole.columns)]
    central = run.trained.evaluate(
        (run.input_scaling.apply(whole.to_numpy()), np.concatenate([own.targets[own.test] for own in data]))
    )
    assert run.metrics == pytest.approx(central, rel=1e-5)


def test_strategies_that_need_links_between_workers_are_refused(tmp_path: Path) -> None:
    with (
        nodes(tmp_path, written(tmp_path, thirds(table()))) as urls,
        pytest.raises(ConfigurationError, match="the http engine has no groups"),
    ):
        fit(urls, strategy="all-reduce", rounds=1)


EXPERIMENT = """
[model]
name = "mlp"
hidden = [8]

[data]
rows_per_node = 100

[train]
rounds = 2
workers = 2

[engine]
name = "http"
nodes = [{nodes}]
"""


def test_the_command_trains_without_central_data(tmp_path: Path) -> None:
    frames = thirds(table())[:2]
    for changed, code in ((frames[1], 0), (frames[1].drop(columns="mean radius"), 2)):
        with nodes(tmp_path, written(tmp_path, [frames[0], changed])) as urls:
            (tmp_path / "experiment.toml").write_text(EXPERIMENT.format(nodes=", ".join(f'"{url}"' for url in urls)))
            result = CliRunner().invoke(app, ["train", "experiment.toml", "--json", "--out", f"run {code}"])
        assert result.exit_code == code, result.output
        if code:
            assert "node 'south' lacks the column 'mean radius'" in result.stderr
            assert len(result.stderr.strip().splitlines()) == 1
        else:
            assert json.loads(result.stdout)["metrics"]["loss"] > 0
            assert (
                "data: 2 nodes · 203 training rows · 30 columns · 2 classes: benign, malignant · scaled by"
                in result.stderr
            )
            assert 'name = "nodes"' in (tmp_path / "run 0" / "experiment.toml").read_text()


def test_an_engine_without_rows_needs_data(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="data 'nodes' needs an engine whose nodes have rows"):
        chimera.train("mlp", engine="simulated", rounds=1)
    with pytest.raises(ConfigurationError, match=r"the table \[data\] is missing"):
        chimera.Experiment({"model": "mlp"})
    by_path = chimera.Experiment({"model": "mlp", "engine": "no_such_module_of_chimera:Engine"})  # is not imported
    assert "data" not in by_path.tables
    experiment = chimera.Experiment(
        {"model": "mlp", "data": {"classes": ["a", "b"]}, "engine": {"name": "http", "nodes": []}}
    )
    assert experiment.tables["data"] == {"name": "nodes", "classes": ["a", "b"]}
