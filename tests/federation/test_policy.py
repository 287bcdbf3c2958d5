"""The policy file of a node: valid files, and mistakes that are one line."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from chimera.core.errors import ConfigurationError
from chimera.federation.policy.admission import run_refusal
from chimera.federation.policy.bounds import Bound
from chimera.federation.policy.declared import Declared
from chimera.federation.policy.policy import Limits, Policy
from chimera.federation.policy.rules import CALLS, LEARNER, PRIVATE, STRATEGIES
from chimera.strategies.strategy import STRATEGIES as REGISTERED
from chimera.training.privacy.worker import LEAVES, PrivateWorker
from chimera.training.worker.learner import Learner
from federation.policy_kit import ALICE, BOB, MALLORY, POLICY, SETTINGS, policy_of


def test_a_policy_is_read(tmp_path: Path) -> None:
    (tmp_path / "models" / "tumour").mkdir(parents=True)
    file = tmp_path / "policy.toml"
    file.write_text(POLICY + '[models.tumour]\nfolder = "models/tumour"\n')
    policy = Policy.load(file)
    assert [policy.requesters.include(one) for one in (ALICE, BOB, MALLORY)] == [True, True, False]
    assert policy.models["tumour"].folder == tmp_path / "models" / "tumour"
    assert policy.strategies["fed-avg"].bounds["local_steps"] == Bound(most=20)
    assert (policy.privacy.min_noise, policy.privacy.protects, policy.min_nodes_in_sum) == (2.0, "rows", 1)


def test_the_default_refuses_every_request() -> None:
    policy = policy_of("")
    assert not policy.requesters.include(ALICE)
    assert (policy.privacy.epsilon_per_requester, policy.privacy.epsilon_in_all) == (0.0, 0.0)
    assert (policy.secure_aggregation, policy.min_nodes_in_sum, policy.approval) == ("required", 3, "ask")
    assert (policy.release.sample_rows, policy.release.statistics, policy.release.metrics) == (False, False, ())
    assert run_refusal(policy, Declared.of(SETTINGS)) == "the strategy is not allowed here"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("aproval = 'ask'", "no key 'aproval'; did you mean 'approval'?"),
        ("approval = 'maybe'", "it may be 'ask', 'automatic'"),
        ("[privacy]\nnoise = 1", "[privacy] has no key 'noise'"),
        ("[privacy]\nmin_noise = -1", "min_noise must be"),
        ("[privacy]\nmin_noise = nan", "min_noise must be"),
        ("[privacy]\nepsilon_in_all = nan", "epsilon_in_all must be at least 0"),
        ("[privacy]\nmin_noise = 0\nepsilon_in_all = 3", "an update without noise has no epsilon"),
        ("[privacy]\ndelta = 1", "delta must be"),
        ("[privacy]\nmin_noise = true", "Expected `float`, got `bool`".replace("`", "")),
        ("[limits]\nhours = '8-18'", "hours must be an interval"),
        ("[limits]\nmin_rows = 0", "min_rows must be at least 1"),
        ("[limits]\nrounds_per_day = -1", "rounds_per_day must be at least 0"),
        ("[release]\nsample_rows = 'no'", "[release]"),
        ("min_nodes_in_sum = 3\nsecure_aggregation = 'optional'", "single updates are read"),
        ("min_nodes_in_sum = 1", "min_nodes_in_sum must be"),
        ("known_nodes = ['ab']", "no SHA-256 of a certificate"),
        ("[requesters]\nfingerprints = ['alice']", "no SHA-256 of a certificate"),
        ("requesters = 3", "[requesters] is a table"),
        ("[strategies.fed-avgg]", "unknown strategy 'fed-avgg'; did you mean 'fed-avg'?"),
        ("[strategies.all-reduce]", "does not run on nodes"),
        ("[strategies.'os:system']", "a policy must not name code by path"),
        ("[strategies.fed-avg]\nlocal_step = 'any'", "did you mean 'local_steps'?"),
        ("[strategies.fed-avg]\nlocal_steps = { lest = 1 }", "is a bound such as"),
        ("[strategies.fed-avg]\nlocal_steps = { least = 3, most = 1 }", "least is at most most"),
        ("[strategies.fed-avg]\nlocal_steps = { one_of = [] }", "one_of is a list"),
        ("strategies = 1", "[strategies] has one table for each name"),
        ("[models.'mine.py:Net']", "a policy must not name code by path"),
        ("[models.mine]\nfolder = 'nowhere'", "there is no folder"),
        ("[models.mine]\nfolder = 3", "there is no folder"),
        ("[models.mine]\nfolder = '.'\nhidden = 3", "[models.mine] has no option 'hidden'"),
        ("[models.mlp]\nhiden = 3", "did you mean 'hidden'?"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        Policy.load(file)
    assert said in str(caught.value).replace("`", "")
    assert "\n" not in str(caught.value)
    assert str(file) in str(caught.value)


def test_an_unreadable_file_is_one_line(tmp_path: Path) -> None:
    for path, said in ((tmp_path / "no.toml", "there is no policy file"), (tmp_path, "cannot be read")):
        with pytest.raises(ConfigurationError, match=said):
            Policy.load(path)
    (tmp_path / "bad.toml").write_text("a = [")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Policy.load(tmp_path / "bad.toml")


@pytest.mark.parametrize(
    ("bound", "allowed", "refused"),
    [
        ({"least": 1, "most": 3}, (1, 2.5, 3), (0, 4, True, "2", math.nan, math.inf, None, 10**400, [2])),
        ({"most": 3}, (-(10**400), 3), (10**400,)),
        ({"one_of": [1, "a"]}, (1, "a"), (True, 2, "b", None)),
        (False, (False,), (0, None, True)),
        ([8, 8], ([8, 8], (8, 8)), ([8], [True, 8], 8)),
        ("any", (1, "x", {"a": 1}), ()),
    ],
)
def test_bounds_of_options(bound: Any, allowed: tuple[Any, ...], refused: tuple[Any, ...]) -> None:
    made = Bound.of(bound, "x")
    assert all(map(made.allows, allowed))
    assert not any(map(made.allows, refused))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, None),
        ({"strategy": {"name": "fed-avg"}}, None),  # the default of local_steps is 10
        ({"strategy": {"name": "scaffold"}}, "the strategy is not allowed here"),
        ({"strategy": {"name": "fed-avg", "local_steps": 21}}, "'local_steps' of the strategy must be at most 20"),
        ({"strategy": {"name": "fed-avg", "weighted": True}}, "'weighted' of the strategy is not allowed here"),
        ({"model": {"name": "mlp", "hidden": 64}}, "'hidden' of the model must be 16 or 32"),
        ({"model": {"name": "folder", "folder": "mlp"}}, "the model is not allowed here"),
        ({"model": {"name": "os:system"}}, "the model is not allowed here"),
        ({"privacy": None}, "noise or masks only"),
        ({"privacy": {"clip": 1.0}}, "noise must be at least 2"),
        ({"privacy": {"clip": 2.0, "noise": 4.0}}, "clip must be at most 1.5"),
        ({"privacy": {"clip": 1.0, "noise": 4.0, "on": "server"}}, "set on = 'clients'"),
        ({"privacy": {"clip": 1.0, "noise": 4.0, "noise_seed": "run"}}, "set noise_seed = 'system'"),
        ({"metrics": ["loss"]}, None),
        ({"metrics": ["loss", "rows"]}, "the metric 'rows' does not leave this node"),
    ],
)
def test_runs_that_a_policy_allows(change: dict[str, Any], said: str | None) -> None:
    reason = run_refusal(policy_of(), Declared.of({**SETTINGS, **change}))
    assert reason is None if said is None else said in str(reason)


def test_a_default_outside_of_the_bounds_is_refused() -> None:
    policy = policy_of(POLICY.replace("most = 20", "most = 8"))
    declared = Declared.of({**SETTINGS, "strategy": {"name": "fed-avg"}})
    assert "its default is not" in str(run_refusal(policy, declared))


def test_masks_that_a_policy_requires_or_refuses() -> None:
    masked = Declared.of({**SETTINGS, "privacy": {"clip": 1.0, "noise": 4.0, "secure_aggregation": True}})
    required, refused = (policy_of(POLICY.replace('"optional"', word)) for word in ('"required"', '"refused"'))
    assert run_refusal(required, masked) is None
    few = Declared.of({**SETTINGS, "nodes": 3, "privacy": {"clip": 1.0, "noise": 4.0, "secure_aggregation": True}})
    assert "sums must have at least 3 nodes" in str(run_refusal(required, few))  # two of three survivors would suffice
    assert "must be true" in str(run_refusal(required, Declared.of(SETTINGS)))
    assert "must be false" in str(run_refusal(refused, masked))


def test_options_of_every_model(tmp_path: Path) -> None:
    (tmp_path / "tumour").mkdir()
    text = (
        POLICY.replace("[models.mlp]", "[models.mlp]\nmetrics = 'any'")
        + "[models.tumour]\nfolder = 'tumour'\nloss = 'mse'\n"
    )
    policy = policy_of(text, tmp_path)
    for model, said in (
        ({"name": "mlp", "hidden": 16, "metrics": ["f1"]}, None),
        ({"name": "folder", "folder": "tumour", "loss": "mse"}, None),
        ({"name": "folder", "folder": "tumour", "loss": "x:y"}, "must be 'mse'"),
        ({"name": "folder", "folder": "tumour", "path": "/"}, "not allowed here"),
        ({"name": "tumour"}, "the model is not allowed here"),
    ):
        reason = run_refusal(policy, Declared.of({**SETTINGS, "model": model}))
        assert reason is None if said is None else said in str(reason)


@pytest.mark.parametrize(
    "given",
    [
        None, [], {}, {**SETTINGS, "code": "x"}, {**SETTINGS, "rounds": True}, {**SETTINGS, "rounds": 0},
        {**SETTINGS, "rounds": 10**30}, {**SETTINGS, "nodes": 2.5}, {**SETTINGS, "model": "mlp"}, {**SETTINGS, "model": {}},
        {**SETTINGS, "privacy": {"clip": math.nan, "noise": 1.0}}, {**SETTINGS, "privacy": {"noise": 1.0}},
        {**SETTINGS, "privacy": {"clip": 1.0, "noise": math.nan}}, {**SETTINGS, "model": {"name": "mlp", "x": "y" * 70_000}},
        {**SETTINGS, "model": {"name": "mlp", "x": object()}}, {**SETTINGS, "strategy": {"name": "s" * 201}},
    ],
)  # fmt: skip
def test_settings_that_are_none(given: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Declared.of(given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("hours", "open_", "closed"),
    [
        ("08:00-18:00", (480, 1079), (479, 1080)),
        ("22:00-06:00", (1320, 0, 359), (360, 1319)),
        ("00:00-00:00", (0, 1439), ()),
    ],
)
def test_hours(hours: str, open_: tuple[int, ...], closed: tuple[int, ...]) -> None:
    limits = Limits(hours=hours)
    assert all(map(limits.open_at, open_))
    assert not any(map(limits.open_at, closed))


def test_the_rules_name_classes_calls_and_strategies_that_exist() -> None:
    for name, kind in ((LEARNER, Learner), (PRIVATE, PrivateWorker)):
        assert name == f"{kind.__module__}.{kind.__qualname__}"
        assert all(hasattr(Learner, method) for method in CALLS[name].keys() - {"measure"})
    assert {entry.name for entry in REGISTERED.entries()} >= set(STRATEGIES)
    beside = {"__init__", "evaluate", "measure"}  # the list of a private worker decides about the last two
    assert CALLS[PRIVATE].keys() - beside <= LEAVES.keys()
    assert LEAVES.keys() - CALLS[PRIVATE].keys() == {"attack"}
