"""``chimera.train`` on the engine http: the driver runs the strategy, nodes use their own models and data."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import SGDClassifier
from torch import nn
from typer.testing import CliRunner

import chimera
from chimera.cli.main import app
from chimera.core.errors import ChimeraError, ConfigurationError, DataError
from chimera.data.dataset import Dataset
from chimera.data.split import DATASETS
from chimera.nodes.workers import SGDWorker, TorchWorker
from chimera.training.progress.callback import Callback
from nodes.served import free_port, serving, settings, worker_process, write_data

HALF = 200
COLUMNS = [f"x{i}" for i in range(30)]


def data() -> tuple[Any, Any]:
    inputs, targets = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(inputs))
    return ((inputs - inputs.mean(0)) / inputs.std(0))[order].astype(np.float32), targets[order]


X, Y = data()
TRAIN, TEST = (X[: 2 * HALF], Y[: 2 * HALF]), (X[2 * HALF :], Y[2 * HALF :])


def network(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(30, width), nn.Tanh(), nn.Linear(width, 2))


def write_halves(folder: Path) -> None:
    for i in range(2):
        rows = slice(i * HALF, (i + 1) * HALF)
        write_data(folder / f"tree{i + 1}", TRAIN[0][rows], TRAIN[1][rows])


@contextmanager
def two_nodes(folder: Path, make: Callable[..., Any] = TorchWorker, *args: Any, **given: Any) -> Iterator[list[str]]:
    """Serve two workers, each with one half of the data; yield their addresses."""
    write_halves(folder)
    with ExitStack() as stack:
        urls = []
        for name in ("tree1", "tree2"):
            own = settings(folder, name, **given)
            urls.append(stack.enter_context(serving(make(*(args or (network,)), settings=own).app(), own)))
        yield urls


def fit(urls: list[str], model: Any = network, data: Any = (TRAIN, TEST), **options: Any) -> Any:
    engine = {"name": "http", "nodes": urls}
    given = {"workers": len(urls), "optimizer": {"name": "sgd", "lr": 0.1}, "out": Path("run"), **options}
    return chimera.train(model, data, engine=engine, **given)


def flat(run: Any) -> Any:
    return run.trained.parameters()


def test_two_nodes_train_as_neighbours(tmp_path: Path) -> None:
    with two_nodes(tmp_path) as urls:
        run = fit(urls, strategy="choco-sgd", codec={"name": "top-k", "ratio": 0.1}, batch_size=20, epochs=3)
    assert run.metrics["accuracy"] > 0.9
    assert 0 < run.metrics["consensus_distance"] < 1


def test_edge_servers_of_nodes_are_in_the_driver(tmp_path: Path) -> None:
    options = {"batch_size": 20, "rounds": 3}
    with two_nodes(tmp_path) as urls:
        flat_run = fit(urls, strategy={"name": "fed-avg", "local_steps": 4}, **options)
        hierarchical = {"name": "fed-avg", "local_steps": 2, "hierarchical": {"edges": 2, "rounds": 2}}
        through = fit(urls, strategy=hierarchical, out=Path("through"), **options)
    np.testing.assert_allclose(flat(through), flat(flat_run), rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_rows_of_the_test_set_stay_raw_as_those_of_the_nodes(tmp_path: Path) -> None:
    large = tuple((100 * inputs, targets) for inputs, targets in (TRAIN, TEST))
    with two_nodes(tmp_path) as urls:
        assert fit(urls, data=large, batch_size=20, rounds=1).input_scaling is None
    assert chimera.Split.of(large).train.input_scaling is not None


def test_secure_aggregation_over_nodes_gives_the_same_model(tmp_path: Path) -> None:
    """Secure aggregation hides the updates of single nodes from the driver, and does not change the result."""
    options = {"strategy": {"name": "fed-avg", "local_steps": 2, "shards": 2}, "batch_size": 50, "rounds": 3}
    secure = {"clip": 10.0, "secure_aggregation": True}
    with two_nodes(tmp_path) as urls:
        plain = fit(urls, **options)
        masked = fit(urls, **options, privacy=secure, out=Path("masked"))
    assert 0 < np.abs(flat(plain) - flat(masked)).max() < 1e-5
    assert masked.events == []


@pytest.mark.parametrize("shards", [1, 3])
def test_two_nodes_with_full_batches_equal_one_worker_with_all_rows(tmp_path: Path, shards: int) -> None:
    strategy = {"name": "parameter-server", "shards": shards}
    with two_nodes(tmp_path) as urls:
        distributed = fit(urls, strategy=strategy, batch_size=HALF, rounds=8)
    single = chimera.train(
        network,
        (TRAIN, TEST),
        engine="simulated",
        workers=1,
        batch_size=2 * HALF,
        rounds=8,
        optimizer={"name": "sgd", "lr": 0.1},
        out=tmp_path / "single",
    )
    np.testing.assert_allclose(flat(distributed), flat(single), atol=1e-6)
    assert distributed.cost.epochs == single.cost.epochs == 8


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "strategy",
    [
        "async-parameter-server",
        "stale-synchronous",
        "delay-compensated",
        "double-buffering",
        {"name": "fed-avg", "local_steps": 2, "server_optimizer": "momentum"},
        {"name": "fed-buff", "local_steps": 2},
        {"name": "scaffold", "local_epochs": 0.5, "weighted": True},
        {"name": "parameter-server", "quorum": 0.5},
        "single-worker",
    ],
    ids=lambda strategy: strategy if isinstance(strategy, str) else strategy["name"],
)
def test_strategies_without_links_between_workers_reach_the_target(tmp_path: Path, strategy: Any) -> None:
    with two_nodes(tmp_path) as urls:
        run = fit(urls, strategy=strategy, batch_size=32, epochs=200, target={"accuracy": 0.92})
    assert run.stopped_by == "target"
    assert run.events == []


@pytest.mark.long
@pytest.mark.parametrize("privacy", [None, {"clip": 1e6, "secure_aggregation": True}], ids=["open", "private"])
def test_a_plateau_reduces_the_rate_of_nodes(tmp_path: Path, privacy: Any) -> None:
    falls = {"name": "sgd", "lr": 30.0, "schedule": {"decay": "plateau", "factor": 1e-30, "patience": 1}}
    strategy = {"name": "fed-avg", "local_steps": 2}
    with two_nodes(tmp_path) as urls:
        run = fit(
            urls, strategy=strategy, optimizer=falls, batch_size=20, rounds=20, evaluate_every=1, monitor="loss",
            privacy=privacy,
        )  # fmt: skip
    reduced = min(event.round for event in run.events if event.event == "learning rate reduced")
    losses = [row["loss"] for row in run.rows]
    assert reduced < 15
    assert len(set(losses[:reduced])) > 1
    assert losses[reduced:] == pytest.approx([losses[reduced]] * len(losses[reduced:]), rel=1e-4)


@pytest.mark.parametrize("strategy", ["parameter-server", "async-parameter-server"])
def test_a_delta_downlink_reaches_the_target(tmp_path: Path, strategy: str) -> None:
    codec = {"name": "identity", "downlink": {"name": "delta", "codec": "int8"}}
    with two_nodes(tmp_path) as urls:
        run = fit(urls, strategy=strategy, codec=codec, batch_size=32, epochs=200, target={"accuracy": 0.92})
    assert run.stopped_by == "target"
    assert run.events == []


def test_each_node_evaluates_the_model_on_its_own_rows(tmp_path: Path) -> None:
    strategy = {"name": "fed-bn", "keep": ["0.bias"], "local_steps": 2}
    with two_nodes(tmp_path) as urls:
        run = fit(
            urls,
            strategy=strategy,
            optimizer={"name": "adamw", "lr": 0.01},
            batch_size=32,
            rounds=40,
            evaluate_clients=True,
        )
    assert run.events == []
    own = [each["accuracy"] for each in run.rows[-1]["clients"].values()]
    assert len(own) == 2
    assert run.metrics["client_accuracy_mean"] == pytest.approx(np.mean(own))
    assert min(own) > 0.5


@pytest.mark.long
def test_each_node_keeps_rows_for_its_evaluation(tmp_path: Path) -> None:
    options: dict[str, Any] = {"strategy": {"name": "fed-avg", "local_steps": 2}, "batch_size": 32, "rounds": 4}
    with two_nodes(tmp_path) as urls:
        all_rows = fit(urls, evaluate_clients=True, out=tmp_path / "all", **options)
        run = fit(urls, evaluate_clients=True, test_per_client=0.25, out=tmp_path / "kept", **options)
    assert run.cost.epochs == pytest.approx(all_rows.cost.epochs / 0.75, rel=0.02)
    kept = round(HALF / 4)
    for each in run.rows[-1]["clients"].values():
        assert each["accuracy"] * kept == pytest.approx(round(each["accuracy"] * kept), abs=1e-6)


def test_strategies_with_links_between_workers_are_refused(tmp_path: Path) -> None:
    with two_nodes(tmp_path) as urls, pytest.raises(ConfigurationError, match="has no groups") as caught:
        fit(urls, strategy="all-reduce", rounds=2)
    assert "\n" not in str(caught.value)


def test_linear_workers_can_be_trained(tmp_path: Path) -> None:
    with two_nodes(tmp_path, SGDWorker, "classifier") as urls:
        run = fit(urls, model=SGDClassifier(), batch_size=32, epochs=5)
    assert run.metrics["accuracy"] > 0.93


def test_a_given_module_is_trained_in_place(tmp_path: Path) -> None:
    module = network()
    before = module[0].weight.detach().clone()
    with two_nodes(tmp_path) as urls:
        first = fit(urls, model=module, batch_size=32, rounds=4)
        trained = module[0].weight.detach().clone()
        second = fit(urls, model=module, batch_size=32, rounds=4, out=Path("second"))
    assert first.model is second.model is module
    assert not torch.equal(before, trained)
    assert second.metrics["loss"] < first.metrics["loss"]


def test_columns_are_matched_by_name(tmp_path: Path) -> None:
    frames = [
        Dataset.of(pd.DataFrame(inputs, columns=COLUMNS).assign(y=targets), target="y")
        for inputs, targets in (TRAIN, TEST)
    ]
    with two_nodes(tmp_path) as urls:
        straight = fit(urls, data=tuple(frames), rounds=4, batch_size=HALF, out=tmp_path / "straight")
    order = np.random.default_rng(1).permutation(30)
    shuffled = tmp_path / "shuffled"
    for i in range(2):
        rows = slice(i * HALF, (i + 1) * HALF)
        names = [f" {COLUMNS[column].upper()}" for column in order]
        write_data(shuffled / f"tree{i + 1}", TRAIN[0][rows][:, order], TRAIN[1][rows], names)
    with ExitStack() as stack:
        owns = [settings(shuffled, f"tree{i + 1}") for i in range(2)]
        urls = [stack.enter_context(serving(TorchWorker(network, settings=own).app(), own)) for own in owns]
        mixed = fit(urls, data=tuple(frames), rounds=4, batch_size=HALF, out=tmp_path / "mixed")
    np.testing.assert_array_equal(flat(straight), flat(mixed))


def other_columns() -> tuple[Dataset, Dataset]:
    names = ["other", *COLUMNS[1:]]
    train, test = (
        Dataset.of(pd.DataFrame(inputs, columns=names).assign(y=targets), target="y")
        for inputs, targets in (TRAIN, TEST)
    )
    return train, test


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"model": lambda: network(9)},
            r"the model of tree[12] differs from the driver's: its tensors are 8x30 \+ 8 .*, the driver's are 9x30",
        ),
        ({"data": ((X, np.zeros(len(X), int)), (X, np.zeros(len(X), int)))}, "tree[12] has rows of class '1'"),
        ({"data": other_columns()}, "tree[12]: the columns do not match: missing: 'other'; unknown: 'x0'"),
        ({"on_worker_loss": "redistribute"}, "each node keeps its own"),
    ],
    ids=["model", "classes", "columns", "redistribute"],
)
def test_mismatches_are_errors_of_one_line(tmp_path: Path, options: Any, message: str) -> None:
    with two_nodes(tmp_path) as urls, pytest.raises((DataError, ConfigurationError), match=message) as caught:
        fit(urls, rounds=2, **options)
    assert "\n" not in str(caught.value)


def test_the_token_in_the_environment_is_sent_to_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with two_nodes(tmp_path, token="opensesame") as urls:
        with pytest.raises(ChimeraError, match=r"401|token") as caught:
            fit(urls, rounds=2, out=tmp_path / "refused")
        assert "\n" not in str(caught.value)
        monkeypatch.setenv("CHIMERA_TOKEN", "opensesame")
        assert fit(urls, rounds=2).cost.rounds == 2
    assert "opensesame" not in "".join(
        file.read_text() for file in Path("run").glob("*.*") if file.suffix != ".safetensors"
    )


WORKER = """
from chimera.nodes.workers import TorchWorker
from torch import nn

worker = TorchWorker(lambda: nn.Sequential(nn.Linear(30, 8), nn.Tanh(), nn.Linear(8, 2)))
if __name__ == "__main__":
    worker.serve()
"""


class Killer(Callback):
    """Kills a node during the run, and then calls ``then``."""

    def __init__(self, pid: int, then: Callable[[], Any] = lambda: None) -> None:
        self._pid, self._then, self._done = pid, then, False

    def on_progress(self, progress: Any) -> None:
        if progress.rounds >= 5 and not self._done:
            self._done = True
            os.kill(self._pid, signal.SIGKILL)
            self._then()


@contextmanager
def two_processes(folder: Path) -> Iterator[list[Any]]:
    write_halves(folder / "chimera_train_data")
    with ExitStack() as stack:
        nodes = []
        for name in ("tree1", "tree2"):
            (folder / f"{name}.py").write_text(WORKER)
            nodes.append(stack.enter_context(worker_process(folder / f"{name}.py", folder)))
        for node in nodes:
            node.wait_healthy()
        yield nodes


@pytest.mark.long
@pytest.mark.parametrize("policy", ["drop", "respawn"])
def test_a_run_continues_without_a_dead_node(tmp_path: Path, policy: Any) -> None:
    with two_processes(tmp_path) as nodes:
        killer = Killer(nodes[1].process.pid)
        options = {"log_every": 1, "rounds": 60, "batch_size": 32, "on_worker_loss": policy}
        run = fit([node.url for node in nodes], callbacks=[killer], **options)
    assert run.cost.rounds == 60
    assert {event.actor for event in run.events if event.event == "worker lost"} == {"worker 1"}
    assert run.metrics["accuracy"] > 0.9


@pytest.mark.long
def test_a_restarted_node_participates_again(tmp_path: Path) -> None:
    with two_processes(tmp_path) as nodes, ExitStack() as stack:

        def start_again() -> None:
            nodes[1].process.wait()
            environment = {"CHIMERA_WORKERS_PORT": str(nodes[1].port)}
            again = stack.enter_context(worker_process(tmp_path / "tree2.py", tmp_path, **environment))
            again.url = nodes[1].url
            again.wait_healthy()

        killer = Killer(nodes[1].process.pid, start_again)
        run = fit([node.url for node in nodes], callbacks=[killer], log_every=1, rounds=80, batch_size=32)
    assert [event.event for event in run.events if event.actor == "worker 1"] == ["worker lost", "worker respawned"]
    assert run.cost.rounds == 80


EXPERIMENT = """
[data]
name = "breast-cancer"

[model]
name = "mlp"
hidden = [8]

[train]
epochs = 20
optimizer = { name = "sgd", lr = 0.1 }
"""


@pytest.mark.long
def test_the_command_trains_on_workers_at_urls(tmp_path: Path) -> None:
    train = DATASETS.create("breast-cancer").train
    labels = np.array(train.classes)[train.targets]
    for i in range(2):
        rows = slice(i * HALF, (i + 1) * HALF)
        write_data(tmp_path / f"tree{i + 1}", train.inputs[rows], labels[rows], list(train.features))
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    with ExitStack() as stack:
        owns = [settings(tmp_path, f"tree{i + 1}") for i in range(2)]
        workers = [TorchWorker("mlp", options={"hidden": [8]}, settings=own) for own in owns]
        urls = [stack.enter_context(serving(worker.app(), own)) for worker, own in zip(workers, owns, strict=True)]
        command = [
            "train",
            "experiment.toml",
            "--engine",
            "http",
            "--workers",
            ",".join(urls),
            "--json",
            "--out",
            "run",
        ]
        result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert summary["metrics"]["accuracy"] > 0.93
    assert summary["workers"] == 2
    assert [node in Path("run/experiment.toml").read_text() for node in urls] == [True, True]


def test_unreachable_nodes_are_named_in_one_line(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ChimeraError, match=f"{url}.*refused") as caught:
        fit([url], rounds=1)
    assert "\n" not in str(caught.value)


def test_scripted_attacks_apply_to_nodes(tmp_path: Path) -> None:
    """With flipped labels on all nodes, the model learns the wrong classes."""
    with two_nodes(tmp_path) as urls:
        run = fit(urls, batch_size=20, epochs=3, faults=[f"label flip worker {rank} at step 0" for rank in range(2)])
    assert run.metrics["accuracy"] < 0.1
    assert [event.event for event in run.events] == ["attack", "attack"]


def test_two_nodes_exchange_fragments(tmp_path: Path) -> None:
    strategy = {"name": "streaming-diloco", "local_steps": 4, "fragments": 2}
    with two_nodes(tmp_path) as urls:
        run = fit(
            urls,
            strategy=strategy,
            optimizer={"name": "adamw", "lr": 0.01},
            batch_size=32,
            epochs=200,
            target={"accuracy": 0.92},
        )
    assert run.stopped_by == "target"
    assert run.events == []
