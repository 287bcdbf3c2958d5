"""A non-finite gradient is rejected and named, and does not affect the other workers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import chimera
from chimera.core.engine import ENGINES
from chimera.core.errors import NonFiniteError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout, all_finite
from chimera.data.assignment import orders
from chimera.models.torch_model import TorchModel
from chimera.strategies.strategy import STRATEGIES
from chimera.testing.poison import MARK, NanOnPoison, digits, round_robin
from chimera.training.messages.rejection import Applied, Rejected, Rejections, Served
from chimera.training.optimizers.optimizer import OptimizerSettings
from chimera.training.server.parameter_shard import ParameterShard
from chimera.training.worker.learner import Learner
from training.conftest import Fit
from training.poisoned import Deceptive

WORKERS = 3
SHARDED: dict[str, dict[str, Any]] = {
    "parameter-server": {"name": "parameter-server", "shards": 2},
    "async-parameter-server": {"name": "async-parameter-server", "shards": 2},
    "delay-compensated": {"name": "delay-compensated", "lambda_": 0.5, "decay": 0.9, "shards": 2},
    "fed-avg": {"name": "fed-avg", "local_steps": 2, "shards": 2},
    "scaffold": {"name": "scaffold", "local_steps": 2, "shards": 2},
    "fed-bn": {"name": "fed-bn", "local_steps": 2, "keep": ["layers.0.bias"], "shards": 2},
    "fed-buff": {"name": "fed-buff", "local_steps": 2},
    "streaming-diloco": {
        "name": "streaming-diloco",
        "fragments": 2,
        "local_steps": 4,
        "server_optimizer": {"momentum": 0.5},
    },
}
DISTRIBUTED = [
    entry.name
    for entry in STRATEGIES.entries()
    if entry.name != "single-worker"
    and entry.factory.replicas != "parts"  # there is no other gradient to continue with
]


@pytest.fixture
def poisoned(fit: Fit) -> Callable[..., chimera.Run]:
    """Train with three poisonous samples in the part of rank 2."""

    def train(strategy: Any, name: str = "run", network: Any = NanOnPoison, **options: Any) -> chimera.Run:
        settings = {
            "data": digits({2: 3}),
            "partition": round_robin,
            "optimizer": {"name": "sgd", "lr": 0.3},
            "rounds": None,
            "epochs": 5,
            **options,
        }
        return fit(name, model=TorchModel(network, seed=0), strategy=strategy, **settings)

    return train


@pytest.mark.sampled(2)
@pytest.mark.parametrize("engine", ["simulated", "local"])
@pytest.mark.parametrize("strategy", [*SHARDED, "all-reduce", "d-psgd"])
def test_a_poisoned_rank_is_named_and_the_run_stays_accurate(
    poisoned: Callable[..., chimera.Run], strategy: str, engine: str
) -> None:
    run = poisoned(SHARDED.get(strategy, strategy), engine=engine)
    # On processes the machine's load decides how stale gradients are, and so how well the asynchronous ones learn.
    assert run.metrics["accuracy"] > (0.85 if engine == "simulated" else 0.6)
    assert run.stopped_by == "epochs"
    assert {(event.event, event.actor) for event in run.events} == {("gradient rejected", "worker 2")}
    told = [re.fullmatch(r"step (\d+): the loss is nan", event.detail) for event in run.events]
    assert len({match[1] for match in told}) == len(run.events)  # no step twice, whatever the shards
    assert 4 <= len(run.events) <= 3 * 7  # three samples an epoch, in one batch or in three
    assert all(np.isfinite(row["train_loss"]) for row in run.rows if "train_loss" in row)
    assert "gradient rejected" in (run.run_dir / "report.html").read_text()


@pytest.mark.parametrize("strategy", ["parameter-server", "all-reduce", "async-parameter-server"])
def test_gradients_are_checked_even_if_the_loss_is_finite(poisoned: Callable[..., chimera.Run], strategy: str) -> None:
    run = poisoned(strategy, network=Deceptive)
    assert run.metrics["accuracy"] > 0.85
    assert {event.actor for event in run.events} == {"worker 2"}
    assert re.fullmatch(r"step \d+: \d+ of 1210 values of the gradient are NaN or infinite", run.events[0].detail)


def test_servers_and_all_reduce_reject_the_same_gradients(poisoned: Callable[..., chimera.Run]) -> None:
    runs = [poisoned(strategy, strategy, epochs=2) for strategy in ("parameter-server", "all-reduce")]
    assert np.array_equal(*(run.trained.parameters() for run in runs))
    told = [[(event.actor, event.detail) for event in run.events] for run in runs]
    assert told[0] == told[1] != []
    assert runs[0].cost.samples == runs[1].cost.samples  # a repeated step counts once


@pytest.mark.long
@pytest.mark.parametrize("engine", ["simulated", "local"])
def test_replicas_stay_identical_after_repeated_steps(engine: str) -> None:
    workers, split = 4, digits({1: 40, 3: 2}, workers=4)
    with ENGINES.create(engine) as opened:
        model, train = opened.put(TorchModel(NanOnPoison, seed=0)), opened.put(split.train)
        parts = orders(round_robin, split.train, workers, 16, 0)
        settings = OptimizerSettings("adam", {"lr": 0.01})
        learners = [opened.spawn(Learner, r, model, train, parts[r], optimizer=settings) for r in range(workers)]
        group = opened.group(learners)
        applied = opened.get([learner.train(40, group) for learner in learners])
        weights = [message.arrays[0] for message in opened.get([learner.weights() for learner in learners])]
    assert all(np.array_equal(weights[0], other) for other in weights[1:])
    assert [bool(each.rejected) for each in applied] == [False, True, False, True]
    assert {each.rank for each in applied[1].rejected} == {1}
    assert [each.step for each in applied] == [40] * 4


@pytest.mark.long
def test_a_rejected_batch_does_not_change_the_worker(fit: Fit) -> None:
    def network() -> torch.nn.Module:
        return NanOnPoison(normalised=True)

    for strategy in ("parameter-server", "all-reduce"):
        model = TorchModel(network, seed=0, buffers="average")
        run = fit(
            strategy, model=model, strategy=strategy, data=digits({2: 3}), partition=round_robin, epochs=4, rounds=None
        )
        assert {event.actor for event in run.events} == {"worker 2"}
        assert np.isfinite(run.trained.buffers()).all()
        assert run.metrics["accuracy"] > 0.85


@pytest.mark.sampled(2)
@pytest.mark.parametrize("strategy", [*DISTRIBUTED, "single-worker"])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_diverged_run_raises_a_one_line_error(fit: Fit, strategy: str, workers: int) -> None:
    everywhere = digits(dict.fromkeys(range(3), 10_000))
    with pytest.raises(NonFiniteError, match=r"rank \d, step \d+: the loss is nan.*smaller learning rate") as caught:
        fit(
            model=TorchModel(NanOnPoison, seed=0),
            strategy=SHARDED.get(strategy, strategy),
            optimizer="sgd",
            data=everywhere,
            workers=workers,
            rounds=10_000,
        )
    assert "\n" not in str(caught.value)


class FailsOnPoison(NanOnPoison):
    """A network of a user with a mistake that shows for some samples only."""

    def forward(self, images: torch.Tensor) -> Any:
        if self.training and (images[:, :1] == MARK).any():
            raise LookupError("the mistake of the user")
        return self.layers(images)


@pytest.mark.sampled(3, always=["ad-psgd", "tree-all-reduce"])
@pytest.mark.parametrize("strategy", [*DISTRIBUTED, "single-worker"])
@pytest.mark.parametrize(("workers", "rank"), [(1, 0), (3, 0), (3, 1), (3, 2)])
@pytest.mark.parametrize("samples", [5, 10_000], ids=["late", "at once"])
def test_an_error_of_one_worker_ends_the_run_with_this_error(
    fit: Fit, strategy: str, workers: int, rank: int, samples: int
) -> None:
    mistaken = TorchModel(FailsOnPoison, seed=0)
    data = digits({rank: samples}, workers)
    with pytest.raises(LookupError, match="the mistake of the user"):
        fit(
            model=mistaken,
            data=data,
            partition=round_robin,
            strategy=SHARDED.get(strategy, strategy),
            optimizer="sgd",
            workers=workers,
            rounds=None,
            epochs=2,
        )


def test_an_error_of_a_member_of_a_group_is_raised_without_a_time_limit(fit: Fit) -> None:
    options: dict[str, Any] = {"partition": round_robin, "strategy": "all-reduce", "worker_timeout_s": math.inf}
    with pytest.raises(LookupError, match="the mistake of the user"):
        fit(model=TorchModel(FailsOnPoison, seed=0), data=digits({1: 5}), optimizer="sgd", **options)


def test_one_diverged_rank_does_not_end_an_asynchronous_run(poisoned: Callable[..., chimera.Run]) -> None:
    run = poisoned("async-parameter-server", data=digits({2: 10_000}))
    assert run.metrics["accuracy"] > 0.8
    assert len(run.events) > 80


@pytest.mark.parametrize(
    "strategy", [{"name": "fed-avg", "local_steps": 2, "fraction": 0.34}, "async-parameter-server"], ids=str
)
def test_a_short_run_without_any_gradient_fails(fit: Fit, strategy: Any) -> None:
    model, data = TorchModel(NanOnPoison, seed=0), digits(dict.fromkeys(range(3), 10_000))
    options: dict[str, Any] = {"model": model, "data": data, "strategy": strategy, "partition": round_robin}
    with pytest.raises(
        NonFiniteError, match=r"no gradient was applied, and \d were rejected, the first: rank \d"
    ) as caught:
        fit(**options, workers=3, rounds=3, engine="simulated")
    assert "\n" not in str(caught.value)
    with pytest.raises(NonFiniteError, match="no gradient was applied"):
        fit(**options, workers=3, rounds=3, engine="simulated", resume=True)


def test_a_run_reports_the_number_of_rejected_gradients(poisoned: Callable[..., chimera.Run]) -> None:
    run = poisoned("parameter-server", epochs=2)
    assert run.summary()["rejected_gradients"] == len(run.events) > 0
    whole = poisoned("parameter-server", "whole", data=digits({}), epochs=1)
    assert whole.summary()["rejected_gradients"] == 0


def shard(size: int, **optimizer: float) -> ParameterShard:
    layout = Layout(("w",), ((size,),))
    return ParameterShard(
        np.ones(size, np.float32), layout, optimizer=OptimizerSettings("sgd", {"lr": 0.5, **optimizer})
    )


def message(vector: Flat) -> Encoded:
    return Encoded("identity", vector.size, (np.asarray(vector, np.float32),))


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(["fine", "rejected", "nan", "inf", "-inf"]), min_size=1, max_size=6),
    st.integers(0, 2**32 - 1),
)
def test_a_step_is_the_mean_of_finite_gradients(kinds: list[str], seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = [rng.normal(size=5).astype(np.float32) for _ in kinds]
    fine = [message(vector) for kind, vector in zip(kinds, vectors, strict=True) if kind == "fine"]
    given: list[Encoded | Rejected] = []
    for rank, (kind, vector) in enumerate(zip(kinds, vectors, strict=True)):
        if kind not in ("fine", "rejected"):
            vector = vector.copy()
            vector[rank % 5] = float(kind)
        given.append(Rejected(rank, 7, "the loss is nan") if kind == "rejected" else message(vector))
    with_all, without = shard(5, momentum=0.9), shard(5, momentum=0.9)
    reached, applied = with_all.update(*given)
    wanted = without.update(*fine)[0] if fine else without.weights()
    assert np.array_equal(reached.arrays[0], wanted.arrays[0])
    assert applied.gradients == len(fine)
    assert len(applied.rejected) == len(kinds) - len(fine)
    assert [each.rank for each in applied.rejected if each.rank is not None] == [
        rank for rank, kind in enumerate(kinds) if kind == "rejected"
    ]
    for place, kind in enumerate(kinds, 1):
        named = any(f"gradient {place} of {len(kinds)} " in each.why for each in applied.rejected)
        assert named == (kind not in ("fine", "rejected"))


def test_large_gradients_are_accepted_and_overflows_rejected() -> None:
    large = message(np.full(4, 1e30, np.float32))
    assert shard(4).update(large, large)[1] == Applied(1, 2)
    huge = message(np.full(4, 3e38, np.float32))
    weights, applied = shard(4).update(huge, huge)
    assert np.array_equal(weights.arrays[0], np.ones(4))
    assert applied == Applied(0, 0, (Rejected(None, 0, "the sum of 2 gradients overflows"),))


@pytest.mark.parametrize("decay", [None, 0.9])
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_a_rejected_compensation_does_not_change_the_server(decay: float | None, bad: float) -> None:
    clean, other = shard(3), shard(3)
    then = message(np.zeros(3, np.float32))
    fine = message(np.array([1, -2, 3], np.float32))
    for gradient in (fine, message(np.array([0, bad, 0], np.float32)), Rejected(1, 4, "the loss is nan"), fine):
        applied = clean.compensate(gradient, then, 0.5, decay)[1]
        assert bool(applied.rejected) != (gradient is fine)
        if gradient is fine:
            other.compensate(fine, then, 0.5, decay)
    assert np.array_equal(clean.weights().arrays[0], other.weights().arrays[0])


@settings(deadline=None)
@given(st.lists(st.floats(width=32), max_size=40))
def test_all_finite_matches_numpy(values: list[float]) -> None:
    vector = np.array(values, np.float32)
    assert all_finite(vector) == bool(np.isfinite(vector).all())


class Named:
    def __init__(self, rank: int) -> None:
        self.name = f"worker {rank}"


def test_a_run_ends_only_after_many_rounds_without_gradients() -> None:
    workers, rejections = [Named(rank) for rank in range(3)], Rejections()
    bad = Applied(0, 0, (Rejected(1, 5, "the loss is nan"),))
    for _ in range(47):
        assert len(list(rejections.of([bad, bad], workers))) == 1
    assert list(rejections.of([Applied(1, 1)], workers)) == []
    for _ in range(47):
        assert len(list(rejections.of([bad], workers))) == 1
    with pytest.raises(NonFiniteError, match="the last of 48 rounds in a row"):
        list(rejections.of([bad], workers))
    assert list(Rejections().of([None, 3, "whatever else a strategy waits for"], workers)) == []


def test_updates_are_counted_as_applied_if_one_gradient_is_left() -> None:
    bad, workers = Rejected(1, 5, "the loss is nan"), [Named(rank) for rank in range(3)]
    for values, rounds, applied in (
        ([Applied(0, 0, (bad,))], 1, False),
        ([Applied(0, 1, (bad,))], 1, True),
        ([Served({0: Applied(0, 0, (bad,))})], 1, False),
        ([Served({0: Applied(0, 0, (bad,))})], 2, True),
        ([Served({0: Applied(0, 2, (bad,))})], 1, True),
    ):
        rejections = Rejections()
        list(rejections.of(values, workers, rounds))
        assert (rejections.count, rejections.applied) == (1, applied)
