"""What a strategy computes depends on no engine, and N workers on small batches are one worker on the whole batch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

import chimera
from chimera.core.engine import ENGINES, Engine
from chimera.core.parameters import Flat
from chimera.strategies.strategy import STRATEGIES as REGISTERED

ROUNDS, TOTAL = 12, 24
OPTIMIZERS = {
    "sgd": {"name": "sgd", "lr": 0.3},
    "momentum": {"name": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True},
    "adam": {"name": "adam", "lr": 0.01},
}
STRATEGIES = {
    "parameter-server": {"name": "parameter-server"},
    "parameter-server, 3 shards": {"name": "parameter-server", "shards": 3},
    "all-reduce": {"name": "all-reduce"},
    "ring-all-reduce": {"name": "ring-all-reduce"},
    "tree-all-reduce": {"name": "tree-all-reduce"},
}


REAL = ["local", *([pytest.param("ray", marks=pytest.mark.long)] if ENGINES.find("ray").available else [])]
SYNCHRONOUS = {
    "all-reduce",
    "choco-sgd",
    "d-psgd",
    "double-buffering",
    "fed-adagrad",
    "fed-adam",
    "fed-avg",
    "fed-avg-m",
    "fed-bn",
    "fed-nova",
    "fed-prox",
    "fed-yogi",
    "gossip-sgd",
    "gradient-tracking",
    "local-sgd",
    "parameter-server",
    "ring-all-reduce",
    "scaffold",
    "single-worker",
    "tree-all-reduce",
}
BY_NAME = [entry.name for entry in REGISTERED.entries()]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Compute with one thread, as the processes of the other engines do."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Give one engine to all tests of its name; the next one begins when it is closed."""
    with ENGINES.create(request.param) as engine:
        yield engine


in_any_process = pytest.mark.parametrize("engine", ["simulated", "local"], indirect=True, scope="module")
on_every_other_engine = pytest.mark.parametrize("engine", REAL, indirect=True, scope="module")


def weights(tmp_path: Path, engine: Engine | str, workers: int, **options: object) -> Flat:
    run = chimera.train(
        "mlp",
        "digits",
        engine=engine,
        workers=workers,
        batch_size=TOTAL // workers,
        rounds=ROUNDS,
        evaluate_every=5,
        out=tmp_path / f"{workers}",
        **options,
    )
    assert run.cost.rounds == ROUNDS
    assert run.cost.samples == ROUNDS * TOTAL
    return run.trained.parameters().copy()


@in_any_process
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_n_workers_are_one_on_the_whole_batch(tmp_path: Path, engine: Engine, strategy: str, optimizer: str) -> None:
    settings = {"optimizer": OPTIMIZERS[optimizer], "seed": 3}
    one = weights(tmp_path, "simulated", 1, strategy="single-worker", **settings)
    many = weights(tmp_path, engine, 4, strategy=STRATEGIES[strategy], **settings)
    assert np.abs(many - one).max() < 2e-5 * max(1, np.abs(one).max())
    assert np.abs(one).max() > 0.05  # and they have moved


@in_any_process
def test_n_workers_are_one_where_they_reduce_thin_matrices(tmp_path: Path, engine: Engine) -> None:
    settings: dict[str, Any] = {"optimizer": OPTIMIZERS["momentum"], "seed": 3, "strategy": "all-reduce"}
    thin = {"name": "powersgd", "rank": 2}
    one, whole = (weights(tmp_path / name, "simulated", 1, codec=name, **settings) for name in ("powersgd", "identity"))
    many = weights(tmp_path, engine, 4, codec=thin, **settings)
    assert np.abs(many - one).max() < 2e-4 * np.abs(one).max()
    assert np.abs(whole - one).max() > 1e-2  # and thin matrices are another way to go


@in_any_process
def test_without_luck_the_comparison_would_fail(tmp_path: Path, engine: Engine) -> None:
    settings = {"optimizer": OPTIMIZERS["sgd"]}
    one = weights(tmp_path, "simulated", 1, strategy="single-worker", seed=3, **settings)
    other = weights(tmp_path, engine, 4, seed=4, **settings)
    assert np.abs(other - one).max() > 1e-2


@in_any_process
def test_shards_change_no_bit(tmp_path: Path, engine: Engine) -> None:
    whole = weights(tmp_path / "a", engine, 2, optimizer=OPTIMIZERS["adam"])
    cut = weights(
        tmp_path / "b", engine, 2, optimizer=OPTIMIZERS["adam"], strategy={"name": "parameter-server", "shards": 5}
    )
    assert np.array_equal(whole, cut)


@in_any_process
def test_servers_and_all_reduce_agree_to_the_bit(tmp_path: Path, engine: Engine) -> None:
    served = weights(tmp_path / "a", engine, 3, optimizer=OPTIMIZERS["momentum"])
    reduced = weights(tmp_path / "b", engine, 3, optimizer=OPTIMIZERS["momentum"], strategy="all-reduce")
    assert np.array_equal(served, reduced)


def model_for(strategy: str) -> dict[str, Any]:
    return {"name": "mlp", "hidden": [16], "batch_norm": strategy == "fed-bn"}


def trained(folder: Path | str, engine: Engine | dict[str, Any] | str, strategy: str, workers: int) -> chimera.Run:
    return chimera.train(
        model_for(strategy),
        "digits",
        engine=engine,
        strategy=strategy,
        workers=workers,
        batch_size=16,
        rounds=ROUNDS,
        evaluate_every=6,
        optimizer="sgd"
        if REGISTERED.create(strategy).server_optimizer
        else {"name": "sgd", "lr": 0.1, "momentum": 0.9},
        seed=5,
        out=Path(folder) / "run",
    )


@cache
def in_virtual_time(strategy: str, workers: int, spread: float = 0.0) -> chimera.Run:
    with TemporaryDirectory() as folder:
        engine = {"name": "simulated", "compute": {"straggler_spread": spread}}
        return trained(folder, engine, strategy, workers)


@cache
def heeds_time(strategy: str) -> bool:
    """Whether the result of many workers depends on who is faster."""
    evenly, unevenly = (in_virtual_time(strategy, 2, spread).trained.parameters() for spread in (0.0, 3.0))
    return not np.array_equal(evenly, unevenly)


@pytest.mark.parametrize("strategy", BY_NAME)
def test_twice_in_virtual_time_is_the_same_to_the_bit(tmp_path: Path, strategy: str) -> None:
    stragglers = {"name": "simulated", "compute": {"straggler_spread": 3.0}}
    once, again = in_virtual_time(strategy, 2, 3.0), trained(tmp_path, stragglers, strategy, 2)
    assert np.array_equal(once.trained.parameters(), again.trained.parameters())
    assert (once.cost, once.rows, once.staleness) == (again.cost, again.rows, again.staleness)
    assert not (heeds_time(strategy) and strategy in SYNCHRONOUS)


@on_every_other_engine
@pytest.mark.parametrize("strategy", BY_NAME)
def test_every_engine_comes_to_the_same_weights(tmp_path: Path, engine: Engine, strategy: str) -> None:
    """With two workers where nobody's speed matters, else with one."""
    workers = 1 if heeds_time(strategy) else 2
    here, there = in_virtual_time(strategy, workers), trained(tmp_path, engine, strategy, workers)
    np.testing.assert_allclose(there.trained.parameters(), here.trained.parameters(), atol=2e-6)
    assert np.abs(here.trained.parameters()).max() > 0.05
    assert (there.cost.rounds, there.staleness) == (here.cost.rounds, here.staleness)


@pytest.mark.parametrize("engine", REAL[-1:], indirect=True, scope="module")
@pytest.mark.parametrize("strategy", [name for name in BY_NAME if name not in SYNCHRONOUS])
def test_where_speed_matters_several_workers_run_all_the_same(tmp_path: Path, engine: Engine, strategy: str) -> None:
    run = trained(tmp_path, engine, strategy, 2)
    assert run.cost.rounds == ROUNDS
    assert run.events == []
    assert np.isfinite(run.metrics["loss"])
