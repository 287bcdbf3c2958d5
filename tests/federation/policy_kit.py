"""Policies, requesters and calls for tests of a node's gate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chimera.core.errors import PrivacyError
from chimera.core.toml import read_toml
from chimera.data.order import OwnOrder
from chimera.federation.policy.declared import Declared
from chimera.federation.policy.gate import Gate
from chimera.federation.policy.policy import Policy
from chimera.federation.policy.requests import Call, Requester
from chimera.federation.policy.rules import LEARNER, PRIVATE, START

ALICE = Requester("alice", "a" * 64)
BOB = Requester("bob", "b" * 64)
MALLORY = Requester("mallory", "c" * 64)
NOON_S = 1_800_014_400.0

POLICY = """
approval = "automatic"
secure_aggregation = "optional"

[requesters]
names = ["alice"]
fingerprints = ["sha256:BB%s"]

[strategies.fed-avg]
local_steps = { most = 20 }

[strategies.fed-prox]

[models.mlp]
hidden = { one_of = [16, 32] }

[privacy]
min_noise = 2.0
max_clip = 1.5
epsilon_per_requester = 20.0
epsilon_in_all = 30.0

[limits]
min_rows = 50

[release]
metrics = ["loss", "accuracy"]
""" % ("b" * 62)
MASKED = POLICY.replace('"optional"', '"required"')
BARE = """
approval = "automatic"
secure_aggregation = "refused"
[requesters]
names = ["alice"]
[strategies.fed-avg]
[strategies.parameter-server]
[models.mlp]
[privacy]
min_noise = 0
epsilon_per_requester = inf
epsilon_in_all = inf
"""
SETTINGS: Mapping[str, Any] = {
    "strategy": {"name": "fed-avg", "local_steps": 5},
    "model": {"name": "mlp", "hidden": 32},
    "rounds": 100,
    "nodes": 4,
    "privacy": {"clip": 1.0, "noise": 4.0},
}
MASKED_SETTINGS = {**SETTINGS, "privacy": {"clip": 1.0, "noise": 4.0, "secure_aggregation": True, "threshold": 0.75}}
BARE_SETTINGS = {"strategy": {"name": "fed-avg"}, "model": {"name": "mlp"}, "rounds": 100, "nodes": 4}


def policy_of(text: str = POLICY, folder: Path = Path()) -> Policy:
    return Policy.of(read_toml(text), folder)


def gate_of(folder: Path, text: str = POLICY, **options: Any) -> Gate:
    options = {"rows": lambda: 500, "clock": lambda: NOON_S, **options}
    return Gate(policy_of(text), folder, **options)


def count_keys(keys: Any) -> int:
    """Return the number of keys; a list with a zero is forged."""
    if 0 in keys:
        raise PrivacyError("a key is forged")
    return len(keys)


class Requests:
    """Calls of one run, with consecutive numbers."""

    def __init__(self, run: str = "r1", settings: Mapping[str, Any] = SETTINGS) -> None:
        self.run, self.settings, self._number = run, settings, 0

    @property
    def kind(self) -> str:
        return PRIVATE if self.settings.get("privacy") else LEARNER

    def call(self, method: str, *given: Any, number: int | None = None, **named: Any) -> Call:
        if number is None:
            self._number += 1
            number = self._number
        return Call(self.run, number, self.kind, method, self.settings, "worker", given, named, size=1000)

    def start(self) -> Call:
        named = {"privacy": Declared.of(self.settings).protection} if self.settings.get("privacy") else {}
        return self.call(START, 0, None, None, OwnOrder(8, 0), **named)

    def update(self, **named: Any) -> Call:
        return self.call("delta", b"weights", **{"steps": 5, **named})
