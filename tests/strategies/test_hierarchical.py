"""Edge servers between clients and the cloud: algebra, faults, resumption, engines and refusals."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chimera
from chimera.core.errors import ConfigurationError, RunError
from chimera.strategies.hierarchy import Hierarchy
from chimera.strategies.strategy import STRATEGIES

Fit = Callable[..., chimera.Run]
SGD = {"name": "sgd", "lr": 0.1}
MOMENTUM = {**SGD, "momentum": 0.9}
DIRICHLET = {"name": "dirichlet", "alpha": 0.5}
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture
def fit(tmp_path: Path) -> Fit:
    """Train a small network on digits, each time in a new folder."""
    folders = itertools.count()

    def fit(strategy: str = "fed-avg", *, edges: int = 0, edge_rounds: int = 1, **options: Any) -> chimera.Run:
        own = options.pop("options", {})
        table = {"name": strategy, "local_steps": 2, **own}
        if edges:
            table["hierarchical"] = {"edges": edges, "rounds": edge_rounds}
        settings: dict[str, Any] = {
            "engine": "simulated", "workers": 5, "batch_size": 8, "rounds": 4, "evaluate_every": 4, "seed": 3,
            "optimizer": MOMENTUM, "out": tmp_path / f"{next(folders)}",
        }  # fmt: skip
        return chimera.train({"name": "mlp", "hidden": [16]}, "digits", strategy=table, **{**settings, **options})

    return fit


def updates(run: chimera.Run) -> dict[str, list[int]]:
    """Return the bytes that each update of each server received, by name."""
    found: dict[str, list[int]] = {}
    for row in map(json.loads, (run.run_dir / "trace.jsonl").read_text(encoding="utf-8").splitlines()):
        if row["call"] == "update":
            found.setdefault(row["actor"], []).append(row["bytes_in"])
    return found


def parameters(run: chimera.Run) -> np.ndarray:
    return run.trained.parameters().copy()


# --- algebra


@pytest.mark.sampled(4)
@pytest.mark.parametrize("edges", [1, 2, 5])
@pytest.mark.parametrize("own", [{}, {"weighted": True}, {"send": "weights"}, {"shards": 3}], ids=str)
def test_one_round_of_edges_is_one_round_of_fed_avg(fit, edges, own):
    flat = fit(options=own, partition=DIRICHLET)
    through = fit(options=own, partition=DIRICHLET, edges=edges)
    np.testing.assert_allclose(parameters(through), parameters(flat), **CLOSE)


@pytest.mark.parametrize("shards", [1, 3])
def test_messages_between_edges_and_the_cloud_are_counted(fit, shards):
    flat, through = fit(options={"shards": shards}), fit(edges=2, options={"shards": shards})
    vector = 4 * parameters(flat).size
    rounds, edges = 4, 2
    for direction in ("bytes_up", "bytes_down"):
        assert through.summary()[direction] - flat.summary()[direction] == pytest.approx(
            rounds * edges * vector, rel=0.01
        )


def test_with_one_edge_its_rounds_are_rounds_of_fed_avg(fit):
    flat, through = fit(rounds=12), fit(edges=1, edge_rounds=3, rounds=4)
    np.testing.assert_allclose(parameters(through), parameters(flat), **CLOSE)
    assert through.summary()["samples"] == flat.summary()["samples"]


def test_with_an_edge_for_each_client_rounds_of_edges_are_more_local_steps(fit):
    flat = fit(rounds=4, options={"local_steps": 6})
    through = fit(edges=5, edge_rounds=3, rounds=4)
    np.testing.assert_allclose(parameters(through), parameters(flat), **CLOSE)


def test_rounds_of_edges_lie_between_fed_avg_with_few_and_with_many_steps(fit):
    assert not np.allclose(parameters(fit(edges=2, edge_rounds=3)), parameters(fit(edges=1, edge_rounds=3)), **CLOSE)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "strategy", ["fed-prox", "fed-nova", "fed-adam", "fed-yogi", "fed-adagrad", "fed-avg-m", "diloco"]
)
def test_the_whole_family_takes_edges(fit, strategy):
    flat, through = fit(strategy, optimizer=SGD), fit(strategy, optimizer=SGD, edges=2)
    np.testing.assert_allclose(parameters(through), parameters(flat), rtol=1e-3, atol=1e-4)


def test_personal_parameters_stay_with_clients(fit):
    own = {"keep": ["2.*"]}
    flat, through = fit("fed-bn", options=own), fit("fed-bn", options=own, edges=2)
    np.testing.assert_allclose(parameters(through), parameters(flat), **CLOSE)


def test_the_participants_of_edges_of_equal_size_differ(fit):
    cluster = type("Cluster", (), {})()
    cluster.workers, cluster.ranks = [type("Worker", (), {"name": f"worker {i}"})() for i in range(40)], range(40)
    clients = Hierarchy(2).clients(cluster)
    assert [worker.name for worker in clients[1][:2]] == ["worker 1", "worker 3"]
    subject = STRATEGIES.create("fed-avg", {"fraction": 0.25, "hierarchical": {"edges": 2}})
    chosen = [[own.index(work.worker) for work in subject._plan(own, 0, site)] for site, own in enumerate(clients)]
    assert [len(each) for each in chosen] == [5, 5]
    assert chosen[0] != chosen[1]


# --- cost


def test_only_one_message_of_each_edge_reaches_the_cloud(fit):
    run = fit(edges=2, edge_rounds=3, rounds=4)
    size = 4 * len(parameters(run))
    received = updates(run)
    assert {name: len(each) for name, each in received.items()} == {"server 0": 4, "edge 0": 12, "edge 1": 12}
    assert np.mean(received["server 0"]) == pytest.approx(2 * size, rel=0.05)
    assert np.mean(received["edge 0"]) == pytest.approx(3 * size, rel=0.05)
    assert np.mean(received["edge 1"]) == pytest.approx(2 * size, rel=0.05)


def test_messages_of_clients_are_encoded(fit):
    run = fit(edges=2, codec={"name": "cast", "to": "bf16", "downlink": {"name": "cast", "to": "bf16"}})
    size = 4 * len(parameters(run))
    assert np.mean(updates(run)["edge 0"]) == pytest.approx(3 * size / 2, rel=0.05)


# --- faults


def test_a_lost_edge_server_costs_its_round_only(fit):
    calm = fit(edges=2, edge_rounds=3, optimizer=SGD)
    run = fit(edges=2, edge_rounds=3, optimizer=SGD, faults=["kill edge 1 at step 2"])
    assert [event.event for event in run.events] == ["fault", "edge lost", "edge respawned"]
    np.testing.assert_array_equal(parameters(run), parameters(calm))


@pytest.mark.long
def test_lost_clients_and_edge_servers_are_replaced_on_processes(fit):
    run = fit(
        edges=2, edge_rounds=2, engine="local", rounds=6,
        faults=["kill edge 0 at step 2", "kill worker 3 at step 3", "kill server 0 at step 4"],
    )  # fmt: skip
    found = {event.event for event in run.events}
    assert {"edge respawned", "worker respawned", "server respawned"} <= found
    assert run.summary()["rounds"] == 6


def test_a_run_without_restarts_ends_with_a_lost_edge_server(fit):
    with pytest.raises(RunError, match="edge 1 died, and no restarts are left"):
        fit(edges=2, faults=["kill edge 1 at step 2"], max_restarts=0)


def test_an_edge_without_clients_changes_nothing(fit):
    lost = [f"kill worker {rank} at step 1" for rank in (1, 3)]
    run = fit(edges=2, workers=4, on_worker_loss="drop", faults=lost, options={"stragglers": 0.5})
    assert run.summary()["lost_workers"] == 2
    assert set(updates(run)) == {"server 0", "edge 0", "edge 1"}
    assert len(updates(run)["edge 1"]) < len(updates(run)["edge 0"])


def test_an_edge_without_answers_keeps_its_weights(fit):
    slow = {"name": "simulated", "compute": {"slow": {f"worker {rank}": 1000.0 for rank in (1, 3)}}}
    options = {"deadline_s": 0.05}
    run = fit(edges=2, edge_rounds=2, engine=slow, options=options)
    found = updates(run)
    assert len(found["edge 0"]) == 8
    assert len(found.get("edge 1", [])) < 8
    assert run.summary()["rounds"] == 4


def test_a_resumed_run_equals_one_that_was_never_stopped(fit, tmp_path):
    whole = fit(edges=2, edge_rounds=2, rounds=6)
    fit(edges=2, edge_rounds=2, rounds=3, out=tmp_path / "again")
    resumed = fit(edges=2, edge_rounds=2, rounds=6, out=tmp_path / "again", resume=True)
    np.testing.assert_array_equal(parameters(resumed), parameters(whole))


# --- engines


@pytest.mark.long
@pytest.mark.parametrize("engine", ["local", "ray"])
def test_engines_compute_the_same(fit, engine):
    np.testing.assert_array_equal(
        parameters(fit(edges=2, edge_rounds=2, engine=engine)), parameters(fit(edges=2, edge_rounds=2))
    )


# --- refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"edges": 6}, "hierarchical has 6 edges for 5 workers, but each edge needs one: reduce edges"),
        ({"options": {"hierarchical": {"edges": 0}}}, "hierarchical: edges must be at least 1, not 0"),
        ({"options": {"hierarchical": {"edges": 2, "every": 3}}}, "hierarchical has no option 'every'"),
        ({"options": {"hierarchical": {"rounds": 2}}}, "hierarchical"),
        ({"options": {"hierarchical": {"edges": "two"}}}, "hierarchical: .*edges"),
        ({"strategy": "scaffold", "edges": 2}, "scaffold needs the controls of all clients"),
        ({"edges": 2, "privacy": {"noise": 1.0, "clip": 1.0}}, "edge servers would read the sums of few clients"),
        ({"edges": 2, "codec": {"name": "int8", "downlink": "delta"}}, "forward one message to all"),
        ({"edges": 2, "options": {"ranks": [2]}}, "ranks need the changes of all clients"),
    ],
)  # fmt: skip
def test_what_cannot_be_hierarchical_is_refused_in_one_line(fit, options, message):
    with pytest.raises(ConfigurationError, match=message) as caught:
        fit(**options)
    assert "\n" not in str(caught.value)
