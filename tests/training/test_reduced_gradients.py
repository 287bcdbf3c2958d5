"""Tests of all-reduce with a codec: its cost, identical replicas, recovery and resuming."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import chimera
from chimera.core.engine import ENGINES, Engine
from chimera.core.errors import ActorLost, ConfigurationError
from chimera.data.assignment import orders
from chimera.models.torch_model import TorchModel
from chimera.testing.poison import NanOnPoison, digits, round_robin
from chimera.training.optimizers.optimizer import OptimizerSettings
from chimera.training.worker.learner import Learner
from training.conftest import Fit

POWER = {"name": "powersgd", "rank": 2}
FORGETFUL = {**POWER, "error_feedback": False}
PER_STEP = 4 * (2 * (16 + 64 + 10 + 16) + 16 + 10)  # bytes: P and Q of both matrices, and the biases
PROCESSES = ["local", *([pytest.param("ray", marks=pytest.mark.long)] if ENGINES.find("ray").available else [])]
EVERYWHERE = ["simulated", *PROCESSES]


def slow(bandwidth_bytes_s: float) -> dict[str, Any]:
    return {"name": "simulated", "network": {"bandwidth_bytes_s": bandwidth_bytes_s}}


def test_bytes_of_collectives_are_counted(fit: Fit) -> None:
    for codec, given in (("identity", 4 * 1210), (POWER, PER_STEP)):
        options = {"workers": 4, "evaluate_every": 30, "log_every": 30}
        run = fit(str(codec), strategy="all-reduce", codec=codec, **options)
        assert run.trained.layout.size == 1210
        assert (run.cost.elements_up, run.cost.packed_up) == (30 * 4 * 1210, 30 * 4 * given)
        assert run.cost.bits_per_element_up == run.summary()["bits_per_element_up"] == 8 * given / 1210
        assert run.cost.compression_ratio == 4 * 1210 / given
        assert run.cost.bits_per_element_down is None
        ring = 30 * 4 * given * 6 / 4  # a ring of four moves one and a half times the array
        assert ring <= run.cost.bytes_up < ring + 2000


def seconds_of_training(run: chimera.Run) -> float:
    rows = [json.loads(line) for line in (run.run_dir / "trace.jsonl").read_text().splitlines()]
    rows = [row for row in rows if (row["actor"], row["call"]) == ("worker 0", "train")]
    return float(sum(row["end_s"] - row["start_s"] - row["wait_s"] for row in rows))


@pytest.mark.parametrize(("codec", "given"), [("identity", 4 * 1210), (POWER, PER_STEP)])
def test_fewer_bytes_take_less_virtual_time(fit: Fit, codec: Any, given: int) -> None:
    runs = [fit(f"{speed}", engine=slow(speed), strategy="all-reduce", codec=codec) for speed in (1e5, 1e12)]
    slowly, fast = map(seconds_of_training, runs)
    assert slowly - fast == pytest.approx(30 * 4 / 3 * given / 1e5, rel=1e-3)  # a ring of three
    assert runs[0].cost.seconds > slowly


@pytest.mark.parametrize(
    ("strategy", "codec", "said"),
    [
        (
            "all-reduce",
            "sign",
            "codec 'sign', as it is set, has no form for all-reduce: use 'error-feedback', 'identity' or",
        ),
        ("all-reduce", {**POWER, "lossless": True}, "codec 'powersgd', as it is set, has no form for all-reduce"),
        ("all-reduce", {**POWER, "downlink": "cast"}, "no messages that codec 'cast' could encode on the downlink"),
        ("all-reduce", {"name": "powersgd", "rank": 0}, "rank must be from 1 to 1024"),
        ("single-worker", POWER, "strategy 'single-worker' sends no messages that codec 'powersgd' could encode"),
        (
            "single-worker",
            {"name": "identity", "lossless": True},
            "sends no messages that codec 'identity' could encode",
        ),
    ],
)
def test_invalid_options_raise_a_one_line_error(fit: Fit, strategy: str, codec: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        fit(strategy=strategy, codec=codec)
    assert "\n" not in str(caught.value)


def test_accuracy_is_the_same_as_without_a_codec(fit: Fit) -> None:
    runs = [
        fit(str(codec), strategy="all-reduce", codec=codec, workers=4, rounds=None, epochs=6)
        for codec in ("identity", POWER)
    ]
    assert runs[0].metrics["accuracy"] > 0.93
    assert runs[1].metrics["accuracy"] > runs[0].metrics["accuracy"] - 0.02


class Learners:
    """Learners on an engine, whose replicas can be read."""

    def __init__(self, engine: Engine, count: int, codec: dict[str, Any], poison: dict[int, int] | None = None) -> None:
        split = digits(poison or {}, workers=count)
        self.engine, self.count = engine, count
        self.given = engine.put(TorchModel(NanOnPoison, seed=0)), engine.put(split.train)
        self.orders = orders(round_robin, split.train, count, 16, 0)
        self.options = codec["name"], {name: value for name, value in codec.items() if name != "name"}
        self.all = [self.new(rank) for rank in range(count)]

    def new(self, rank: int) -> Any:
        optimizer = OptimizerSettings("sgd", {"lr": 0.1, "momentum": 0.9})
        return self.engine.spawn(
            Learner, rank, *self.given, self.orders[rank], optimizer=optimizer, codec=self.options, seed=3
        )

    def train(self, steps: int, learners: Sequence[Any] = ()) -> list[Any]:
        learners = learners or self.all
        group = self.engine.group(learners)
        return self.engine.get([learner.train(steps, group) for learner in learners])  # type: ignore[no-any-return]

    def replicas(self, learners: Sequence[Any] = ()) -> list[Any]:
        return [to_the_bit(state) for state in self.engine.get([each.state() for each in learners or self.all])]


def to_the_bit(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, dict):
        return {key: to_the_bit(part) for key, part in value.items()}
    return [to_the_bit(part) for part in value] if isinstance(value, list | tuple) else value


@pytest.mark.long
@pytest.mark.parametrize("engine", EVERYWHERE)
def test_replicas_stay_identical_with_invalid_gradients(engine: str) -> None:
    with ENGINES.create(engine) as opened:
        for rank in (1, 3):
            learners = Learners(opened, 4, {**POWER, "rank": rank}, {1: 40, 3: 2})
            applied = learners.train(40)
            first, *others = learners.replicas()
            assert all(other == first for other in others)
            assert len(first["codec"]) == 2
            assert [bool(each.rejected) for each in applied] == [False, True, False, True]


def test_a_joining_worker_continues_as_a_replica() -> None:
    with ENGINES.create("simulated") as opened:
        learners = Learners(opened, 3, POWER)
        learners.train(10)
        opened.kill(learners.all[1])
        new = learners.new(1)
        opened.get(new.restore(learners.all[0].state()))
        together = [learners.all[0], new, learners.all[2]]
        learners.train(10, together)
        first, *others = learners.replicas(together)
        assert all(other == first for other in others)
        with pytest.raises(ActorLost):
            learners.train(1)


@pytest.mark.long
@pytest.mark.parametrize("engine", ["simulated", "local"])
def test_without_codec_state_a_worker_loss_does_not_change_the_result(fit: Fit, engine: str) -> None:
    whole = fit("whole", strategy="all-reduce", codec=FORGETFUL)
    run = fit(
        engine=engine,
        strategy="all-reduce",
        codec=FORGETFUL,
        max_restarts=4,
        snapshot_every=4,
        faults=["kill worker 1 at step 7", "kill worker 0 at step 20"],
    )
    assert run.lost_workers == 2
    assert np.array_equal(run.trained.parameters(), whole.trained.parameters())


@pytest.mark.parametrize("policy", ["respawn", "drop", "redistribute"])
def test_a_run_continues_without_the_codec_state_of_a_lost_worker(fit: Fit, policy: str) -> None:
    run = fit(
        strategy="all-reduce",
        codec=POWER,
        workers=4,
        rounds=None,
        epochs=6,
        on_worker_loss=policy,
        faults=["kill worker 2 at step 30", "kill worker 0 at step 60"],
    )
    assert run.lost_workers == 2
    assert run.metrics["accuracy"] > 0.9


def test_a_loss_with_skewed_data_does_not_lower_accuracy_for_long(fit: Fit) -> None:
    """The gradients of workers differ in every step the same way; memories that held that would be felt when one is gone."""
    run = fit(
        strategy="all-reduce",
        codec=POWER,
        workers=4,
        rounds=230,
        evaluate_every=10,
        partition={"name": "dirichlet", "alpha": 0.1},
        optimizer={"name": "sgd", "lr": 0.1, "momentum": 0.9},
        on_worker_loss="drop",
        faults=["kill worker 1 at step 200"],
    )
    assert run.lost_workers == 1
    losses = {row["round"]: row["loss"] for row in run.rows if "loss" in row}
    assert losses[200] < 0.4
    assert max(losses[210], losses[220]) < losses[200] + 0.3


def test_a_loss_at_any_moment_of_a_step_repeats_no_step(fit: Fit) -> None:
    """Collectives take most of a step, and the moments of the loss cover the whole step."""
    options = {"strategy": "all-reduce", "codec": FORGETFUL, "engine": slow(1e5), "rounds": 12, "max_restarts": 9}
    whole = fit("whole", **options)
    for share in np.linspace(0.3, 0.6, 7):
        run = fit(f"{share}", faults=[(whole.cost.seconds * share, "kill worker 1")], **options)
        assert run.lost_workers == 1
        assert np.array_equal(run.trained.parameters(), whole.trained.parameters())


@pytest.mark.parametrize("codec", [POWER, FORGETFUL, {"name": "error-feedback"}], ids=str)
def test_a_resumed_run_sends_the_same_bytes(fit: Fit, codec: dict[str, Any]) -> None:
    options = {"strategy": "all-reduce", "codec": codec, "checkpoint_every": 8, "evaluate_every": 8}
    whole = fit("whole", rounds=24, **options)
    fit("cut", rounds=16, **options)
    cut = fit("cut", rounds=24, resume=True, **options)
    assert cut.trained.parameters().tobytes() == whole.trained.parameters().tobytes()
    assert (cut.cost.packed_up, cut.cost.bytes_up) == (whole.cost.packed_up, whole.cost.bytes_up)


@pytest.mark.long
def test_a_run_resumes_with_more_workers_than_it_had(fit: Fit) -> None:
    fit(strategy="all-reduce", codec=POWER, rounds=16, checkpoint_every=8)
    run = fit(strategy="all-reduce", codec=POWER, rounds=200, workers=4, resume=True)
    assert run.cost.rounds == 200
    assert run.metrics["accuracy"] > 0.9


@pytest.mark.parametrize("engine", PROCESSES)
@pytest.mark.long
def test_all_engines_give_the_same_weights_and_cost(fit: Fit, engine: str) -> None:
    here, there = (fit(name, engine=name, strategy="all-reduce", codec=POWER) for name in ("simulated", engine))
    np.testing.assert_allclose(there.trained.parameters(), here.trained.parameters(), atol=1e-4)
    assert there.cost.elements_up == here.cost.elements_up
    assert there.cost.packed_up == here.cost.packed_up == 30 * 3 * PER_STEP
    assert there.cost.bytes_up == pytest.approx(here.cost.bytes_up, rel=0.05)
