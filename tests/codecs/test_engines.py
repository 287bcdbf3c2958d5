"""Every codec with every strategy that sends gradients or changes of weights, on every engine; same seed, same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

import chimera
from chimera.codecs.codec import CODECS
from chimera.core.engine import ENGINES, Engine
from chimera.strategies.strategy import STRATEGIES
from chimera.testing.training import made, train
from chimera.training.given import open_engine, preload_of
from chimera.training.run import Cost
from codecs_kit import SETUPS

ROUNDS = 6
SYNCHRONOUS = [{"name": "parameter-server", "shards": 2}, {"name": "double-buffering"}]
OTHERS = [
    {"name": "async-parameter-server"},
    {"name": "stale-synchronous"},
    {"name": "delay-compensated"},
    {"name": "fed-buff", "local_steps": 2},
    {"name": "parameter-server", "quorum": 0.5},
]
NAMES = [entry.name for entry in CODECS.entries()]
ON_RAY = [SYNCHRONOUS[0], OTHERS[0]]  # each run starts four processes of Ray, which takes seconds
PACKING = [e.name for e in STRATEGIES.entries() if e.available and made(e.name).sends in ("messages", "peers")]


def setup_of(codec: str) -> dict[str, Any]:
    return next(setup for setup in SETUPS.values() if setup["name"] == codec)


def on_its_way(setup: dict[str, Any]) -> dict[str, Any]:
    """Return the codecs of both ways: the one under test on the uplink, unless it is for the downlink alone."""
    return {"name": "identity", "downlink": setup} if CODECS.of(setup).chained else setup


def fit(folder: Path, engine: str | Engine, codec: str, strategy: dict[str, Any]) -> Any:
    return chimera.train(
        "mlp",
        "digits",
        engine=engine,
        codec=on_its_way(setup_of(codec)),
        strategy=strategy,
        workers=2,
        batch_size=16,
        rounds=ROUNDS,
        optimizer={"name": "sgd", "lr": 0.05},
        out=folder,
    )


@cache
def in_virtual_time(codec: str, strategy: str, **options: Any) -> tuple[Any, Cost]:
    with TemporaryDirectory() as folder:
        run = fit(Path(folder) / "run", "simulated", codec, {"name": strategy, **options})
        return run.trained.parameters().copy(), run.cost


def label(strategy: dict[str, Any]) -> str:
    return " ".join(map(str, strategy.values()))


def skip_unless_it_goes_with(strategy: str, codec: str) -> None:
    """Skip a test of what is refused: a codec of weights where there is no downlink, and two memories of the same."""
    subject, made_codec = made(strategy), CODECS.of(setup_of(codec))
    if made_codec.chained and subject.sends == "peers":
        pytest.skip("there is no downlink that this codec could be for")
    if made_codec.carries and subject.carries:
        pytest.skip("strategy and codec would both carry what is left out")


@pytest.mark.parametrize("codec", NAMES)
@pytest.mark.parametrize("strategy", PACKING)
def test_it_trains_in_virtual_time(codec: str, strategy: str, tmp_path: Path) -> None:
    skip_unless_it_goes_with(strategy, codec)
    run = train(strategy, tmp_path / "run", codec=on_its_way(setup_of(codec)), rounds=4, evaluate_every=4)
    assert np.isfinite(run.trained.parameters()).all()
    assert run.cost.rounds == 4
    assert 0 < run.cost.packed_up <= run.cost.elements_up * 4.2  # what float32 takes, and headers


@pytest.mark.parametrize(
    "engine", [pytest.param("local", marks=pytest.mark.long), pytest.param("ray", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("strategy", PACKING)
def test_every_strategy_trains_with_packed_messages_between_processes(
    strategy: str, engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    opened = request.getfixturevalue(engine)
    run = train(strategy, tmp_path / "run", engine=opened, codec="qsgd", rounds=4, evaluate_every=4)
    assert np.isfinite(run.trained.parameters()).all()
    assert 0 < run.cost.packed_up < run.cost.elements_up * 4


@pytest.fixture
def local() -> Iterator[Engine]:
    """Give an engine to the runs of one test."""
    engine, _ = open_engine("local", preload_of(codecs=NAMES))
    with engine:
        yield engine


@pytest.fixture(scope="module")
def ray() -> Iterator[Engine]:
    """Give one engine to all tests: a session of Ray takes long to start."""
    if not ENGINES.find("ray").available:
        pytest.skip("Ray is not installed: pip install 'chimera-dml[ray]'")
    with ENGINES.create("ray") as engine:
        yield engine


@pytest.mark.long
@pytest.mark.parametrize("codec", NAMES)
def test_on_local_the_same_is_sent(tmp_path: Path, local: Engine, codec: str) -> None:
    for strategy in SYNCHRONOUS:
        check_the_same_is_sent(tmp_path / label(strategy), local, codec, strategy)


@pytest.mark.long
@pytest.mark.parametrize("codec", NAMES)
def test_it_trains_where_time_is_real(tmp_path: Path, local: Engine, codec: str) -> None:
    for strategy in OTHERS:
        check_it_trains(tmp_path / label(strategy), local, codec, strategy)


@pytest.mark.slow
@pytest.mark.parametrize("codec", NAMES)
def test_on_ray_the_same_is_sent_and_it_trains(tmp_path: Path, ray: Engine, codec: str) -> None:
    synchronous, asynchronous = ON_RAY
    check_the_same_is_sent(tmp_path / label(synchronous), ray, codec, synchronous)
    check_it_trains(tmp_path / label(asynchronous), ray, codec, asynchronous)


def check_the_same_is_sent(folder: Path, engine: Engine, codec: str, strategy: dict[str, Any]) -> None:
    """Check that a run sends and learns what it does in virtual time."""
    run = fit(folder, engine, codec, strategy)
    expected, cost = in_virtual_time(codec, strategy["name"], **{k: v for k, v in strategy.items() if k != "name"})
    assert run.cost.elements_up == cost.elements_up
    # rounding in the last bit may move an element over a threshold
    assert run.cost.packed_up == pytest.approx(cost.packed_up, rel=0.02)
    assert run.cost.packed_down == pytest.approx(cost.packed_down, rel=0.02)
    np.testing.assert_allclose(run.trained.parameters(), expected, atol=1e-5)


def check_it_trains(folder: Path, engine: Engine, codec: str, strategy: dict[str, Any]) -> None:
    run = fit(folder, engine, codec, strategy)
    assert np.isfinite(run.trained.parameters()).all()
    assert run.cost.rounds == ROUNDS
