"""Results do not depend on the engine, and N workers with small batches equal one worker with the whole batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chimera
from chimera.core.engine import ENGINES, Engine
from chimera.core.parameters import Flat

ROUNDS, TOTAL = 12, 24
OPTIMIZERS = {
    "sgd": {"name": "sgd", "lr": 0.3},
    "momentum": {"name": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True},
    "adam": {"name": "adam", "lr": 0.01, "eps": 1e-5},  # by less it divides elements that are nothing but rounding
}
STRATEGIES = {
    "parameter-server": {"name": "parameter-server"},
    "parameter-server, 3 shards": {"name": "parameter-server", "shards": 3},
    "all-reduce": {"name": "all-reduce"},
    "ring-all-reduce": {"name": "ring-all-reduce"},
    "tree-all-reduce": {"name": "tree-all-reduce"},
}


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


@pytest.mark.sampled(4)
@in_any_process
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_n_workers_equal_one_worker_with_the_whole_batch(
    tmp_path: Path, engine: Engine, strategy: str, optimizer: str
) -> None:
    settings = {"optimizer": OPTIMIZERS[optimizer], "seed": 3}
    one = weights(tmp_path, "simulated", 1, strategy="single-worker", **settings)
    many = weights(tmp_path, engine, 4, strategy=STRATEGIES[strategy], **settings)
    assert np.abs(many - one).max() < 2e-5 * max(1, np.abs(one).max())
    assert np.abs(one).max() > 0.05  # and they have moved


@in_any_process
def test_n_workers_equal_one_worker_with_low_rank_reduction(tmp_path: Path, engine: Engine) -> None:
    settings: dict[str, Any] = {"optimizer": OPTIMIZERS["momentum"], "seed": 3, "strategy": "all-reduce"}
    thin = {"name": "powersgd", "rank": 2}
    one, whole = (weights(tmp_path / name, "simulated", 1, codec=name, **settings) for name in ("powersgd", "identity"))
    many = weights(tmp_path, engine, 4, codec=thin, **settings)
    assert np.abs(many - one).max() < 2e-4 * np.abs(one).max()
    assert np.abs(whole - one).max() > 1e-2  # and thin matrices are another way to go


@in_any_process
def test_the_comparison_detects_differences(tmp_path: Path, engine: Engine) -> None:
    settings = {"optimizer": OPTIMIZERS["sgd"]}
    one = weights(tmp_path, "simulated", 1, strategy="single-worker", seed=3, **settings)
    other = weights(tmp_path, engine, 4, seed=4, **settings)
    assert np.abs(other - one).max() > 1e-2


@pytest.mark.long
@in_any_process
def test_the_number_of_shards_does_not_change_results(tmp_path: Path, engine: Engine) -> None:
    whole = weights(tmp_path / "a", engine, 2, optimizer=OPTIMIZERS["adam"])
    cut = weights(
        tmp_path / "b", engine, 2, optimizer=OPTIMIZERS["adam"], strategy={"name": "parameter-server", "shards": 5}
    )
    assert np.array_equal(whole, cut)


@pytest.mark.long
@in_any_process
def test_servers_and_all_reduce_are_equal_to_the_bit(tmp_path: Path, engine: Engine) -> None:
    served = weights(tmp_path / "a", engine, 3, optimizer=OPTIMIZERS["momentum"])
    reduced = weights(tmp_path / "b", engine, 3, optimizer=OPTIMIZERS["momentum"], strategy="all-reduce")
    assert np.array_equal(served, reduced)
