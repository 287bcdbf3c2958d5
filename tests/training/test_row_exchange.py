"""Workers that pull and push only the rows of their batches get the same results as with all rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chimera
from chimera.codecs.codec import CODECS
from chimera.core.engine import ENGINES
from chimera.core.errors import CodecError, ConfigurationError
from chimera.data.order import ShardOrder
from chimera.training.optimizers.optimizer import OptimizerSettings
from chimera.training.server.parameter_shard import ParameterShard
from chimera.training.worker.learner import Learner
from embedding_kit import Embedding, windows

ROWS = {"name": "rows", "downlink": "rows"}
SYNCHRONOUS: dict[str, Any] = {
    "one server": "parameter-server",
    "three servers": {"name": "parameter-server", "shards": 3},
    "a step late": {"name": "double-buffering", "shards": 2},
}
OWN_PACE: dict[str, Any] = {
    "own pace": {"name": "async-parameter-server", "shards": 3},
    "bounded": "stale-synchronous",
    "corrected": {"name": "delay-compensated", "decay": 0.9},
    "local steps": {"name": "fed-buff", "shards": 3, "local_steps": 3},
    "rounds of local steps": {"name": "fed-avg", "shards": 2, "local_steps": 4},
    "some of them": {"name": "fed-avg", "shards": 2, "local_steps": 3, "fraction": 0.67},
    "a quorum": {"name": "parameter-server", "quorum": 0.5, "shards": 2},
}
OPTIMIZERS = {
    "sgd": {"name": "sgd", "lr": 0.3},
    "adagrad": {"name": "adagrad", "lr": 0.1},
    "momentum": {"name": "sgd", "lr": 0.1, "momentum": 0.9},
    "adam": {"name": "adam", "lr": 0.01},
}
ON_REAL_ENGINES = [pytest.param("one server", "local", marks=pytest.mark.long)]
if ENGINES.find("ray").available:
    ON_REAL_ENGINES.append(pytest.param("three servers", "ray", marks=pytest.mark.long))
Learnt = Callable[..., chimera.Run]


@pytest.fixture
def learnt(tmp_path: Path) -> Learnt:
    def train(codec: Any = ROWS, name: str = "run", model: Any = None, **options: Any) -> chimera.Run:
        given: dict[str, Any] = {
            "engine": "simulated",
            "strategy": "parameter-server",
            "optimizer": OPTIMIZERS["sgd"],
            "workers": 3,
            "batch_size": 16,
            "rounds": 12,
            "evaluate_every": 6,
            "seed": 2,
        }
        return chimera.train(model or Embedding(), windows(), codec=codec, out=tmp_path / name, **{**given, **options})

    return train


def same(one: chimera.Run, other: chimera.Run) -> bool:
    return bool(one.trained.parameters().tobytes() == other.trained.parameters().tobytes())


@pytest.mark.long
@pytest.mark.parametrize(
    ("strategy", "engine"),
    [*((name, "simulated") for name in SYNCHRONOUS), ("three servers", "local"), *ON_REAL_ENGINES],
)
def test_row_exchange_gives_the_same_bits(learnt: Learnt, engine: str, strategy: str) -> None:
    whole = learnt("identity", "whole", strategy=SYNCHRONOUS[strategy])
    by_rows = learnt(strategy=SYNCHRONOUS[strategy], engine=engine)
    assert same(whole, by_rows)
    assert by_rows.metrics == whole.metrics
    assert by_rows.cost.elements_up == whole.cost.elements_up
    assert by_rows.cost.packed_up < 0.15 * whole.cost.packed_up
    assert by_rows.cost.packed_down < 0.15 * whole.cost.packed_down


@pytest.mark.parametrize("strategy", OWN_PACE.values(), ids=OWN_PACE)
def test_row_exchange_gives_the_same_bits_with_asynchronous_workers(learnt: Learnt, strategy: Any) -> None:
    """In virtual time with a network that takes no time, so that fewer bytes do not change the order of updates."""
    assert same(learnt("identity", "whole", strategy=strategy), learnt(strategy=strategy))


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_row_exchange_gives_the_same_bits_with_any_optimizer(learnt: Learnt, optimizer: Any) -> None:
    """Rows are pulled exactly, so optimizers may also move rows without a gradient."""
    options = {"optimizer": optimizer, "strategy": {"name": "parameter-server", "shards": 2}}
    whole, by_rows = learnt("identity", "whole", **options), learnt(**options)
    assert by_rows.trained.parameters() == pytest.approx(whole.trained.parameters(), rel=1e-6, abs=1e-7)


@pytest.mark.long
@pytest.mark.parametrize("downlink", ["identity", {"name": "delta", "codec": "rows"}], ids=["up", "both ways"])
@pytest.mark.parametrize("strategy", ["parameter-server", {"name": "fed-buff", "shards": 2}], ids=str)
def test_a_model_without_row_support_still_sends_few_rows(learnt: Learnt, strategy: Any, downlink: Any) -> None:
    whole = learnt("identity", "whole", strategy=strategy, rounds=40)
    run = learnt({"name": "rows", "downlink": downlink}, strategy=strategy, rounds=40)
    assert run.trained.parameters() == pytest.approx(whole.trained.parameters(), abs=1e-5)
    assert run.cost.packed_up < 0.35 * whole.cost.packed_up
    if downlink != "identity":
        assert run.cost.packed_down < 0.6 * whole.cost.packed_down


@pytest.mark.parametrize(
    "strategy",
    [{"name": "parameter-server", "shards": 2}, OWN_PACE["rounds of local steps"], OWN_PACE["some of them"]],
    ids=lambda strategy: str(strategy["name"]),
)
@pytest.mark.parametrize("engine", ["simulated", pytest.param("local", marks=pytest.mark.long)])
def test_a_worker_loss_does_not_change_the_result(learnt: Learnt, engine: str, strategy: Any) -> None:
    whole = learnt("identity", "whole", strategy=strategy, rounds=20)
    faults = ["kill worker 1 at step 5", "kill server 0 at step 9"]
    run = learnt(strategy=strategy, engine=engine, rounds=20, snapshot_every=4, max_restarts=3, faults=faults)
    assert same(whole, run)
    assert {event.event for event in run.events} >= {"worker lost", "server lost", "went back"}


def test_a_resumed_run_gives_the_same_result(learnt: Learnt) -> None:
    options = {"checkpoint_every": 6, "strategy": {"name": "parameter-server", "shards": 2}}
    whole = learnt("identity", "whole", rounds=18, **options)
    learnt(name="cut", rounds=12, **options)
    assert same(whole, learnt(name="cut", rounds=18, resume=True, **options))


class Counted:
    """Counts how often a batch is taken."""

    def __init__(self) -> None:
        self._data, self.taken = windows().train, 0

    def take(self, rows: Any, key: Any) -> Any:
        self.taken += 1
        return self._data.take(rows, key)


def test_no_dense_gradient_is_allocated_and_no_batch_is_read_twice() -> None:
    model, data, bounds = Embedding(), Counted(), Embedding().layout.bounds(2)
    order = ShardOrder(np.arange(1000), batch_size=20, seed=0, rank=0)
    options: dict[str, Any] = {"optimizer": OptimizerSettings(), "codec": ("rows", {}), "downlink": ("rows", {})}
    worker = Learner(0, model, data, order, **options)  # type: ignore[arg-type]
    servers = [
        ParameterShard(
            model.parameters()[begin:end],
            model.layout.cut(begin, end),
            optimizer=OptimizerSettings(),
            codec=("rows", {}),
        )
        for begin, end in itertools.pairwise(bounds)
    ]
    for step in (1, 2):
        weights = [server.rows(wanted) for server, wanted in zip(servers, worker.wanted(2), strict=True)]
        for server, gradient in zip(servers, worker.gradient(*weights), strict=True):
            _, applied = server.update(gradient)
            assert applied.gradients == 1
        assert (data.taken, model.full_gradients) == (step, 0)
    worker.wanted(2)
    with pytest.raises(CodecError, match="not the rows that `wanted` requested"):
        worker.gradient(*weights)


def bad_rows(found: Any) -> Any:
    class Bad(Embedding):
        def rows(self, batch: Any) -> Any:
            return found

    return Bad()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"model": "mlp"}, r"cannot tell which rows a batch needs.*name = \"delta\", codec = \"rows\""),
        (
            {"codec": {"name": "int8", "downlink": "rows"}},
            "workers push rows, which codec 'int8' cannot encode",
        ),
        ({"strategy": "all-reduce"}, "on the downlink: use 'identity'|sends no messages that codec 'rows'"),
        ({"model": bad_rows({"embedding": np.array([2, 1])})}, "rows of 'embedding' must ascend, from 0 to 399"),
        ({"model": bad_rows({"embedding": np.array([400])})}, "rows of 'embedding' must ascend, from 0 to 399"),
        (
            {"model": bad_rows({"embeding": np.array([1])})},
            "no tensor 'embeding'; its tensors: embedding, output, bias",
        ),
        (
            {"model": bad_rows({"embedding": np.array([1])})},
            "returned rows that its method rows did not list for this batch",
        ),
    ],
)
def test_invalid_options_raise_a_one_line_error(learnt: Learnt, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match) as caught:
        learnt(**options)
    assert "\n" not in str(caught.value)


def test_the_codec_declares_row_support() -> None:
    assert CODECS.create("rows").by_rows
    assert not CODECS.create("delta", {"codec": "rows"}).by_rows
