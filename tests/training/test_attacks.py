"""Tests of scripted attackers: their messages, their events, and that they survive restarts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chimera.core.errors import ConfigurationError
from chimera.data.assignment import orders
from chimera.data.partition import PARTITIONERS
from chimera.data.split import DATASETS
from chimera.models.conversion import build_model
from chimera.training.fault_tolerance.injection import Fault, as_sentences
from chimera.training.optimizers.optimizer import OptimizerSettings
from chimera.training.worker.attack import Attack
from chimera.training.worker.learner import Learner
from training.conftest import Fit

FED_AVG = {"name": "fed-avg", "local_steps": 2, "aggregation": "median"}
SPLIT = DATASETS.create("digits")


def learner(*attack: Any) -> Learner:
    model = build_model("mlp", {"hidden": [8]}, seed=1, input_shape=(64,), outputs=10, task="classification")
    order = orders(PARTITIONERS.create("iid"), SPLIT.train, 1, 16, 0)[0]
    made = Learner(0, model, SPLIT.train, order, optimizer=OptimizerSettings("sgd", {"lr": 0.1}))
    if attack:
        made.attack(*attack)
    return made


def sent(made: Learner, **options: Any) -> np.ndarray:
    call: Any = made.delta(made.weights(), **options) if options else made.gradient(made.weights())
    return call[0].arrays[0].copy()  # type: ignore[no-any-return]


@pytest.mark.parametrize("options", [{}, {"steps": 3}, {"steps": 3, "weight": 0.5}])
def test_sign_flip_sends_the_scaled_negative_update(options: Any) -> None:
    np.testing.assert_allclose(sent(learner("sign flip", 3.0), **options), -3 * sent(learner(), **options), atol=1e-6)


def test_sent_weights_are_falsified_like_updates() -> None:
    begin = learner().weights().arrays[0].copy()
    honest, attacker = (sent(made, steps=3, reached=True) for made in (learner(), learner("sign flip", 2.0)))
    np.testing.assert_allclose(attacker - begin, -2 * (honest - begin), atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"steps": 2}])
def test_noise_has_the_given_scale_and_is_drawn_in_each_round(options: Any) -> None:
    one, same = learner("noise", 5.0), learner("noise", 5.0)
    first, second, again = sent(one, **options), sent(one, **options), sent(same, **options)
    assert first.std() == pytest.approx(5, rel=0.1)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.1
    np.testing.assert_allclose(first, again, atol=1e-5)


def test_label_flip_reverses_the_class_order() -> None:
    made = learner("label flip", 1.0)
    inputs, targets = SPLIT.train.take(orders(PARTITIONERS.create("iid"), SPLIT.train, 1, 16, 0)[0].batch(0))
    model = build_model("mlp", {"hidden": [8]}, seed=1, input_shape=(64,), outputs=10, task="classification")
    np.testing.assert_allclose(sent(made), model.gradient((inputs, 9 - targets))[0], atol=1e-7)


def test_fault_sentences_set_attackers_and_attacks() -> None:
    assert Fault.read("sign flip worker 3 by 4 at step 0").disturbance == Attack("sign flip", 4.0)
    assert Fault.read((7, "noise any worker by 0.5")).disturbance == Attack("noise", 0.5)
    assert Fault.read("label flip worker 1 at 2.5 s").disturbance == Attack("label flip")
    assert as_sentences([(0, "sign flip worker 1")], 2) == ["sign flip worker 1 at step 0"]
    assert as_sentences("sign flip worker 1 at step 0", 2) == ["sign flip worker 1 at step 0"]


@pytest.mark.parametrize(
    ("fault", "options", "why"),
    [
        ("sign flip server 0 at step 0", {}, "only workers attack"),
        ("label flip worker 0 by 2 at step 0", {}, "'by' has no meaning here"),
        ("noise worker 0 for 2 s at step 0", {}, "'for' has no meaning here"),
        ("noise worker 3 at step 0", {}, "the run has 3 workers"),
        ("sign flip worker 0 at step 0", {"strategy": "all-reduce"}, "send no messages to servers"),
        ("label flip worker 0 at step 0", {"data": "diabetes"}, "no class labels"),
    ],
)
def test_impossible_attacks_are_rejected_before_the_run(fit: Fit, fault: str, options: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as caught:
        fit(faults=[fault], **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("strategy", [FED_AVG, "parameter-server", "async-parameter-server", "all-reduce"], ids=str)
def test_an_attack_is_an_event_and_lowers_accuracy(fit: Fit, strategy: Any) -> None:
    honest = fit("honest", strategy=strategy)
    fault = "label flip worker 1 at step 4" if strategy == "all-reduce" else "sign flip worker 1 by 5 at step 4"
    attacked = fit("attacked", strategy=strategy, faults=[fault])
    assert [(event.event, event.actor) for event in attacked.events] == [("attack", "worker 1")]
    assert fault in (attacked.run_dir / "events.jsonl").read_text()
    assert "attack" in (attacked.run_dir / "report.html").read_text()
    assert not np.array_equal(honest.trained.parameters(), attacked.trained.parameters())


def test_repeated_fault_sentences_create_several_attackers(fit: Fit) -> None:
    run = fit(faults=["noise any worker at step 2"] * 4, rounds=4)
    attackers = [event.actor for event in run.events if event.event == "attack"]
    assert sorted(attackers) == ["worker 0", "worker 1", "worker 2"]
    assert [event.event for event in run.events if event.event != "attack"] == ["fault missed"]


@pytest.mark.long
@pytest.mark.parametrize("engine", ["simulated", "local"])
def test_a_resumed_run_has_the_same_attackers(fit: Fit, engine: str) -> None:
    options: dict[str, Any] = {
        "strategy": FED_AVG,
        "faults": ["noise any worker by 0.1 at step 3", "label flip any worker at step 5"],
        "evaluate_every": 6,
        "engine": engine,
    }
    whole = fit("whole", rounds=12, **options)
    fit("parts", rounds=6, **options)
    parts = fit("parts", rounds=12, resume=True, **options)
    assert np.array_equal(whole.trained.parameters(), parts.trained.parameters())


@pytest.mark.long
@pytest.mark.parametrize("engine", ["simulated", "local"])
def test_a_replaced_attacker_continues_to_attack(fit: Fit, engine: str) -> None:
    faults = ["sign flip worker 1 by 2 at step 2"]
    whole = fit("whole", strategy="parameter-server", faults=faults, rounds=10)
    killed = fit(
        "killed",
        strategy="parameter-server",
        engine=engine,
        rounds=10,
        snapshot_every=2,
        faults=[*faults, "kill worker 1 at step 5", "kill server 0 at step 7"],
    )
    assert np.array_equal(whole.trained.parameters(), killed.trained.parameters())
    assert killed.lost_workers == 1


def test_a_restart_after_total_loss_keeps_the_attackers(fit: Fit) -> None:
    """The run restarts, but its attackers stay."""
    faults = ["sign flip worker 1 by 2 at step 0"]
    whole = fit("whole", faults=faults, rounds=8)
    killed = fit("killed", faults=[*faults, "kill server 0 at step 3"], rounds=8, snapshot_every=100, evaluate_every=8)
    assert [event.event for event in killed.events if event.event == "went back"] == ["went back"]
    assert np.array_equal(whole.trained.parameters(), killed.trained.parameters())
