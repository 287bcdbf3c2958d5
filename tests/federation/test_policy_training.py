"""Runs on nodes behind their gates: what an honest run calls is allowed, and its ledger counts what left."""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from torch import nn

import chimera
from chimera.core.errors import ChimeraError
from chimera.engines.http import wire
from chimera.engines.http.hosting.host import Host
from chimera.engines.http.hosting.hosted_actor import Reply
from chimera.engines.http.joined import MAX_CALLS
from chimera.federation.audit.verify import verify
from chimera.federation.node.gated_request import GatedRequest
from chimera.federation.policy.gate import Gate
from chimera.federation.policy.participants import Participants, certified
from chimera.federation.policy.reading import CallReader
from chimera.federation.policy.rules import START, STRATEGIES
from chimera.nodes.workers import TorchWorker
from chimera.privacy.accountant import Accountant
from chimera.web.logs import close_logs
from federation.policy_kit import ALICE, policy_of
from federation.test_policy_participants import HUB, Node
from nodes.served import serving, settings, write_data

pytestmark = pytest.mark.takes("it serves three nodes, and trains on them")

POLICY = """
approval = "automatic"
requesters = {{ names = ["alice"] }}
models.mlp = {{}}
secure_aggregation = "{masks}"
privacy = {{ min_noise = {noise}, epsilon_per_requester = {budget}, epsilon_in_all = {budget} }}
limits = {{ min_rows = 10 }}
release = {{ metrics = ["loss", "accuracy"] }}
[strategies.{strategy}]
local_steps = "any"
"""
NOISY = {"clip": 0.5, "noise": 4.0}
MASKED = {"clip": 0.5, "noise": 4.0, "secure_aggregation": True}


class GuardedHost(Host):
    """The host of a node behind its gate. The run is that of the driver's engine; the node adds what the driver declares."""

    def __init__(self, kinds: Mapping[str, Callable[..., Any]], gate: Gate, declared: Mapping[str, Any]) -> None:
        super().__init__(kinds)
        self.gate, self.reader, self.numbers, self.declared = (
            gate,
            CallReader(),
            itertools.count(1, MAX_CALLS),
            declared,
        )

    def create(self, actor: str, body: bytes, done: Callable[[Reply], None]) -> None:
        given = wire.unpack(body)
        told = wire.pack({**given, "settings": dict(self.declared)})
        self.guard(actor, "", told, done, lambda answered: super(GuardedHost, self).create(actor, body, answered))

    def call(self, actor: str, method: str, body: bytes, done: Callable[[Reply], None]) -> None:
        self.guard(
            actor, method, body, done, lambda answered: super(GuardedHost, self).call(actor, method, body, answered)
        )

    def guard(
        self, actor: str, method: str, body: bytes, done: Callable[[Reply], None], run: Callable[..., None]
    ) -> None:
        calls = self.reader.read_all(actor.partition(".")[0], next(self.numbers), actor, method, body)
        gated = GatedRequest(self.gate, ALICE, calls)
        assert gated.decide() is None
        if (allowed := gated.allowed(method, body)) is None:
            done(gated.reply(None))
            return
        assert allowed == (method, body)
        run(lambda reply: done(gated.reply(reply)))


class Certified(TorchWorker):
    """A node whose private workers sign their keys."""

    def __init__(self, member: Any, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._member = member

    def actors(self) -> dict[str, Any]:
        return certified(super().actors(), self._member)


@dataclass
class Federation:
    """Three nodes with their gates."""

    folder: Path
    declared: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    urls: list[str] = field(default_factory=list)
    test: Any = None

    def entries(self, node: int = 0) -> list[dict[str, Any]]:
        return [
            json.loads(line)["entry"] for line in (self.folder / f"gate{node}" / "audit.jsonl").read_text().splitlines()
        ]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(30, 8), nn.Tanh(), nn.Linear(8, 2))


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Federation]]:
    """Return a function that serves three nodes with a policy."""
    for name in [name for name in os.environ if name.startswith("CHIMERA_")]:
        monkeypatch.delenv(name)
    inputs, targets = load_breast_cancer(return_X_y=True)
    inputs = ((inputs - inputs.mean(0)) / inputs.std(0)).astype(np.float32)

    def served(text: str, declared: Mapping[str, Any]) -> Federation:
        made = Federation(
            tmp_path, dict(declared), text, test=((inputs[:450], targets[:450]), (inputs[450:], targets[450:]))
        )
        for i in range(3):
            name, certified = f"tree{i}", Node(HUB, f"tree{i}")
            write_data(tmp_path / name, inputs[i * 150 : i * 150 + 150], targets[i * 150 : i * 150 + 150])
            own = settings(tmp_path, name)
            check = Participants(HUB.pem, certified.fingerprint)
            gate = Gate(policy_of(text), tmp_path / f"gate{i}", rows=lambda: 150, participants=check)
            stack.callback(gate.close)
            host = partial(GuardedHost, gate=gate, declared=declared)
            monkeypatch.setattr("chimera.nodes.workers.worker.Host", host)
            app = Certified(certified.member, network, settings=own).app()
            made.urls.append(stack.enter_context(serving(app, own)))
        return made

    with ExitStack() as stack:
        yield served
    close_logs()


def train(made: Federation, strategy: Mapping[str, Any], **options: Any) -> Any:
    engine = {"name": "http", "nodes": made.urls}
    common = {
        "workers": 3,
        "batch_size": 20,
        "rounds": 2,
        "optimizer": {"name": "sgd", "lr": 0.1},
        "checkpoint_every": 1,
    }
    return chimera.train(
        network, made.test, engine=engine, strategy=strategy, out=made.folder / "run", **{**common, **options}
    )


def declared_of(strategy: Mapping[str, Any], privacy: Any, rounds: int = 2) -> dict[str, Any]:
    model = {"name": "mlp"}
    return {"strategy": dict(strategy), "model": model, "rounds": rounds, "nodes": 3, "privacy": privacy}


@pytest.mark.parametrize("privacy", [NOISY, MASKED], ids=["noise", "masks"])
def test_a_private_run_within_the_policy(serve: Callable[..., Federation], privacy: dict[str, Any]) -> None:
    strategy = {"name": "fed-avg", "local_steps": 2}
    masks = "required" if privacy is MASKED else "refused"
    text = POLICY.format(masks=masks, noise=4.0, budget=50, strategy="fed-avg")
    made = serve("min_nodes_in_sum = 2\n" * (privacy is MASKED) + text, declared_of(strategy, privacy))
    train(made, strategy, privacy=privacy)
    for node in range(3):
        entries = made.entries(node)
        assert {entry["decision"] for entry in entries} == {"released"}
        updates = [entry for entry in entries if entry["method"] == "delta"]
        assert [entry["rows"] for entry in updates] == [40, 40]
        share = (2 if privacy is MASKED else 1) / 3  # two of three survivors suffice to read a masked sum
        expected = Accountant([[4.0 * share**0.5 / 2, 1.0, 2]]).epsilon(1e-5, sampled=False)
        assert sum(entry["epsilon"] for entry in entries) == pytest.approx(expected)
        assert verify(made.folder / f"gate{node}").lines == len(entries)


def test_a_run_that_exceeds_the_policy_ends_at_the_node(serve: Callable[..., Federation]) -> None:
    strategy = {"name": "fed-avg", "local_steps": 2}
    text = POLICY.format(masks="refused", noise=4.0, budget=50, strategy="fed-avg")
    made = serve(text, declared_of(strategy, NOISY))
    with pytest.raises(ChimeraError):  # less noise than declared
        train(made, strategy, privacy={"clip": 0.5, "noise": 1.0})
    entries = [entry for node in range(3) for entry in made.entries(node)]  # the run ends with the first refusal
    decisions = Counter((entry["method"], entry["decision"]) for entry in entries)
    assert decisions[START, "refused"] >= 1
    assert ("delta", "released") not in decisions


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(name, marks=() if name in ("scaffold", "parameter-server") else pytest.mark.long)
        for name in sorted(STRATEGIES)
    ],
)
def test_the_list_suffices_for_each_strategy(serve: Callable[..., Federation], strategy: str) -> None:
    table: dict[str, Any] = {"name": strategy}
    text = POLICY.format(masks="refused", noise=0, budget="inf", strategy=strategy)
    if STRATEGIES[strategy] == "gradient":
        text = text.replace('local_steps = "any"\n', "")
    else:
        table["local_steps"] = 2
    if strategy == "fed-bn":
        table["keep"], text = ["2.*"], text + 'keep = "any"\n'
    made = serve(text, declared_of(table, None, rounds=1000))
    train(made, table)
    decisions = Counter((entry["method"], entry["decision"]) for entry in made.entries())
    assert {decision for _, decision in decisions} == {"released"}
    assert decisions[STRATEGIES[strategy], "released"] >= 1
