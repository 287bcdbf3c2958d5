"""Random policies, requests and crashes: nothing leaves that the policy does not allow, and the budget holds."""

from __future__ import annotations

import math
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from chimera.core.errors import ChimeraError
from chimera.core.sqlite import SQLiteConnection
from chimera.data.order import OwnOrder
from chimera.federation.audit import log
from chimera.federation.audit.line import decode
from chimera.federation.audit.verify import verify
from chimera.federation.policy.approvals import decide
from chimera.federation.policy.gate import Gate
from chimera.federation.policy.policy import Limits, Policy, PrivacyBounds, Release, Requesters
from chimera.federation.policy.requests import Allowed, Call, Held, Later, Refused, Requester, Spending
from chimera.federation.policy.rules import LEARNER, PRIVATE, START, leaves
from chimera.privacy.accountant import Accountant
from chimera.training.privacy.settings import Privacy
from federation.policy_kit import ALICE, BOB, MALLORY, NOON_S, POLICY, count_keys, policy_of

DELTA = 1e-5
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
REQUESTERS = st.sampled_from([ALICE, BOB, MALLORY])
RUNS = st.sampled_from(["r1", "r2", "r3"])
ACTORS = st.sampled_from(["w1", "w2"])
METHODS = [
    *["delta"] * 6, "samples", "samples", START, "gradient", "take_part", "share_secrets", "advertise_keys",
    "samples", "tally", "measure",
    "local_state",
    "weights", "state", "attack", "__class__", "__init_subclass__", "_learner", "__dict__", "evaluate", "", "delta ", "DELTA",
]  # fmt: skip
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.floats(),
    st.integers(),
    st.text(max_size=5),
    st.just(10**400),
    st.just(-1),
    st.just([[]]),
)
NUMBERS = st.one_of(
    st.none(), st.integers(100, 140), st.sampled_from([-1, 1 << 63, (1 << 63) - 1, 10**400, True, 2.0, "1"])
)
GOOD: dict[str, Any] = {
    "strategy": {"name": "fed-avg", "local_steps": 5}, "model": {"name": "mlp"}, "rounds": 1000, "nodes": 4,
    "privacy": {"clip": 1.0, "noise": 8.0},
}  # fmt: skip
BARE = {**GOOD, "privacy": None}
MASKED: dict[str, Any] = {**GOOD, "privacy": {"clip": 1.0, "noise": 8.0, "secure_aggregation": True, "threshold": 0.75}}
CHANGES = [
    {"strategy": {"name": "fed-avg", "local_steps": 99}}, {"strategy": {"name": "parameter-server"}}, {"strategy": {}},
    {"model": {"name": "os:system"}}, {"model": {"name": "mlp", "hidden": 10**9}},
    {"model": {"name": "folder", "folder": "mlp"}},
    {"rounds": 10**30}, {"rounds": 2}, {"nodes": True}, {"metrics": ["rows"]}, {"code": "x"},
    {"privacy": None}, {"privacy": {}},
    *({"privacy": {**GOOD["privacy"], **one}} for one in (
        {"on": "server"}, {"noise_seed": "run"}, {"noise": 0.1}, {"noise": math.nan}, {"noise": math.inf}, {"noise": 1e300},
        {"noise": 0.0}, {"clip": 3.0}, {"clip": 0.0}, {"delta": 2.0}, {"threshold": 0.5}, {"secure_aggregation": True},
    )),
]  # fmt: skip
SETTINGS = st.one_of(
    st.sampled_from([GOOD, MASKED, BARE]), st.sampled_from([{**GOOD, **change} for change in CHANGES]),
    st.sampled_from([{**MASKED, "privacy": {**MASKED["privacy"], "on": "server"}}]),
)  # fmt: skip
BY_NAME = {one.name: one for one in (ALICE, BOB, MALLORY)}
DEATHS = ["before commit", "after commit", "in a line", "before fsync"]
ORDER = OwnOrder(8, 0)
POINTS = st.sampled_from([None] * 16 + DEATHS)
DIES = st.tuples(st.integers(0, 30), st.sampled_from(DEATHS))  # at which write of a run, and how


class Killed(BaseException):
    """The process ends here."""


def dies(*_: Any, **__: Any) -> Any:
    raise Killed


def killed_at(stack: ExitStack, point: str) -> None:
    """Let this process end at a point of the next write."""
    commit, write = SQLiteConnection.write, os.write

    def after_commit(self: SQLiteConnection, work: Callable[[Any], Any], **options: Any) -> Any:
        commit(self, work, **options)
        raise Killed

    def before_commit(self: SQLiteConnection, work: Callable[[Any], Any], **options: Any) -> Any:
        return commit(self, lambda db: (work(db), dies()), **options)

    def half(file: int, data: bytes) -> int:
        write(file, bytes(data[: len(data) // 2]))
        raise Killed

    places: dict[str, tuple[Any, str, Any]] = {
        "before commit": (SQLiteConnection, "write", before_commit),
        "after commit": (SQLiteConnection, "write", after_commit),
        "in a line": (log.os, "write", half),
        "before fsync": (log.os, "fsync", dies),
    }
    stack.enter_context(mock.patch.object(*places[point]))


def epsilon(history: Counter[float]) -> float:
    return Accountant([noise, 1.0, count] for noise, count in history.items()).epsilon(DELTA, sampled=False)


class Node(RuleBasedStateMachine):
    """A node, its requesters, and an own account of what left."""

    @initialize(
        names=st.sampled_from([("alice", "bob"), ("alice", "bob"), ("alice",)]), min_noise=st.sampled_from([0.5, 2.0]),
        budgets=st.sampled_from([(0.0, 9.0), (4.0, 5.0), (8.0, 6.0), (math.inf, 8.0), (9.0, 9.0)]), bare=st.booleans(),
        masks=st.sampled_from(["required", "optional", "refused"]), asks=st.booleans(),
        rounds_per_day=st.sampled_from([None, None, None, 3]), bytes_per_day=st.sampled_from([None, None, None, 10_000]),
        metrics=st.sampled_from([(), ("loss",)]), hours=st.sampled_from(["00:00-00:00", "00:00-00:00", "09:00-15:00"]),
    )  # fmt: skip
    def begin(
        self, names: Any, min_noise: float, budgets: Any, bare: bool, masks: Any, asks: bool, **more: Any
    ) -> None:
        """Start a node with a random policy."""
        if bare and masks != "required":
            min_noise, budgets = 0.0, (math.inf, math.inf)
        kit = policy_of(POLICY.replace("hidden = { one_of = [16, 32] }", ""))
        self.policy = Policy(
            Requesters(names), {name: kit.strategies[name] for name in ("fed-avg",)}, kit.models,
            PrivacyBounds(min_noise, 1.5, DELTA, *budgets),
            Limits(more["rounds_per_day"], more["bytes_per_day"], more["hours"], min_rows=50),
            Release(metrics=more["metrics"]), masks, approval="ask" if asks else "automatic",
        )  # fmt: skip
        self.scratch = tempfile.TemporaryDirectory(dir=MEMORY)
        self.folder, self.now_s, self.latest_s = Path(self.scratch.name), NOON_S, NOON_S
        self.waiting: list[tuple[Requester, Call]] = []
        self.owner: dict[str, str] = {}
        self.settings_of: dict[str, Any] = {}
        self.numbers: set[tuple[str, int]] = set()
        self.asked: dict[tuple[str, str], float] = {}  # the share of the noise in the next update of an actor
        self.left: dict[str, Counter[float]] = {}
        self.days: dict[int, list[int]] = {}
        self.spent_before = 0.0
        self.last_number = 100
        self.evaluations: Counter[str] = Counter()
        self.history: list[Call] = []
        self.open()

    def open(self) -> None:
        rows, clock = (lambda: 500), (lambda: self.now_s)
        self.gate = Gate(self.policy, self.folder, rows=rows, participants=count_keys, clock=clock)

    def die(self) -> None:
        """End the process, whose actors and waiting calls are gone, and start the next one."""
        with mock.patch.object(log.AuditLog, "settle"):  # a killed process does not write the last lines
            self.gate.close()
        self.waiting.clear()
        self.asked.clear()
        self.open()
        assert verify(self.folder).unwritten == 0

    def attempt(self, work: Callable[[], Any], point: str | None) -> Any:
        """Do something, or end in the middle of it; return None then."""
        self.latest_s = max(self.latest_s, self.now_s)
        try:
            with ExitStack() as stack:
                if point:
                    killed_at(stack, point)
                return work()
        except Killed:
            self.die()
            return None

    def train(
        self, run: str, requester: Requester, actor: str, asked: int, updates: int, rows: int, metrics: Any, dies: Any
    ) -> None:
        """Do what an honest run does: begin an actor, set a round, and request updates, which leave."""
        masks, bare = self.policy.secure_aggregation, self.policy.privacy.unlimited
        given = self.settings_of.get(run, MASKED if masks == "required" else BARE if bare else GOOD)
        owner, private = BY_NAME[self.owner.get(run, requester.name)], given["privacy"]
        masked = private is not None and private.get("secure_aggregation", False)
        named = {"privacy": Privacy.of(private)} if private else {}
        points = iter([dies[1] if place == dies[0] else None for place in range(20)])
        start = self.call(run, START, actor, 0, None, None, ORDER, given=given, **named)
        decision = self.ask(owner, start, next(points))
        if isinstance(decision, Held):
            self.decide(True, decision.number)
            self.ask(owner, start, next(points))
        if masked:
            self.take_part(owner, self.call(run, "share_secrets", actor, [1] * asked))
        elif private:
            self.take_part(owner, self.call(run, "take_part", actor, asked))
        for _ in range(updates):
            if self.ask(owner, self.call(run, "delta", actor, steps=5), next(points)) == Allowed():
                self.answer(len(self.waiting) - 1, rows, (), 1000, next(points))
        if self.ask(owner, self.call(run, "measure", actor), next(points)) == Allowed():
            self.answer(len(self.waiting) - 1, rows, metrics, 10, None)

    honest = rule(
        run=RUNS, requester=st.sampled_from([ALICE, BOB]), actor=ACTORS, asked=st.integers(2, 4), updates=st.integers(1, 6),
        rows=st.sampled_from([160, 160, 160, 49]), metrics=st.sampled_from([("loss",), ("loss", "rows"), ()]), dies=DIES,
    )  # fmt: skip
    train_often, train_more, train_again = honest(train), honest(train), honest(train)  # rules are drawn alike

    @rule(
        run=RUNS, requester=REQUESTERS, actor=ACTORS, number=NUMBERS, point=POINTS, method=st.sampled_from(METHODS),
        steps=st.sampled_from([1, 5, 6, 10**20, True]), weight=st.sampled_from([1.0, math.nan, math.inf]),
        reached=st.booleans(),
    )  # fmt: skip
    def hostile_update(
        self, run: str, requester: Requester, actor: str, number: Any, method: str, point: Any, **named: Any
    ) -> None:
        """Request updates with other arguments, in runs of others, and with other numbers."""
        call = self.call(run, method, actor, **named)
        self.ask(requester, call if number is None else replace(call, number=number), point)

    @rule(run=RUNS, requester=REQUESTERS, given=SETTINGS, odd=ODD, honest=st.booleans(), point=POINTS)
    def hostile_start(self, run: str, requester: Requester, given: Any, odd: Any, honest: bool, point: Any) -> None:
        """Begin an actor with random settings, or with others than declared."""
        privacy = odd
        with suppress(ValueError):
            privacy = Privacy.of(given["privacy"]) if honest else odd
        named = {} if privacy is None else {"privacy": privacy}
        given = given if honest else self.settings_of.get(run, given)
        self.ask(requester, self.call(run, START, "w1", 0, None, None, ORDER, given=given, **named), point)

    @rule(run=RUNS, requester=REQUESTERS, asked=st.one_of(st.integers(0, 6), ODD))
    def hostile_round(self, run: str, requester: Requester, asked: Any) -> None:
        """Set odd numbers of nodes, and odd lists of keys."""
        self.take_part(requester, self.call(run, "take_part", "w1", asked))
        self.take_part(
            requester,
            self.call(run, "share_secrets", "w1", [1] * asked if type(asked) is int and 0 <= asked < 9 else [0]),
        )

    @rule(
        run=st.one_of(RUNS, ODD), requester=REQUESTERS, number=NUMBERS,
        kind=st.sampled_from([PRIVATE, LEARNER, "os.system", ""]),
        method=st.one_of(st.sampled_from(METHODS), ODD), given=st.one_of(st.just(GOOD), SETTINGS, ODD),
        size=st.one_of(st.integers(0, 9999), ODD), argument=ODD,
    )  # fmt: skip
    def hostile(
        self, run: Any, requester: Requester, number: Any, kind: str, method: Any, given: Any, size: Any, argument: Any
    ) -> None:
        """Request anything."""
        self.ask(requester, Call(run, number, kind, method, given, "w1", (argument,), {"x": argument}, size), None)

    @precondition(lambda self: self.history)
    @rule(
        place=st.integers(0, 10**6), requester=REQUESTERS, run=st.one_of(st.none(), RUNS), number=NUMBERS, point=POINTS
    )
    def repeat(self, place: int, requester: Requester, run: str | None, number: Any, point: Any) -> None:
        """Repeat an earlier call, perhaps as another requester, in another run or with another number."""
        call = self.history[-1 - place % min(len(self.history), 8)]
        self.ask(requester, replace(call, run=run or call.run, number=call.number if number is None else number), point)

    def call(self, run: str, method: str, actor: str, *arguments: Any, given: Any = None, **named: Any) -> Call:
        """Return the next call of a run."""
        self.last_number += 1
        given = given or self.settings_of.get(run, GOOD)
        kind = PRIVATE if given.get("privacy") else LEARNER
        return Call(run, self.last_number, kind, method, given, actor, arguments, named, 100)

    def take_part(self, requester: Requester, call: Call) -> None:
        """Request a round, and follow which share of the noise the actor then adds."""
        if self.ask(requester, call, None) == Allowed():
            asked: Any = call.given[0]
            if call.method == "take_part":
                self.asked[call.run, call.actor] = 1 / asked
            else:
                privacy = Privacy.of(self.settings_of[call.run]["privacy"])
                assert privacy is not None
                self.asked[call.run, call.actor] = privacy.needed(len(asked)) / len(asked)

    @precondition(lambda self: self.waiting)
    @rule(
        place=st.integers(0, 99), rows=st.sampled_from([0, 49, 50, 500]),
        metrics=st.sampled_from([(), ("loss",), ("loss", "rows")]),
        size=st.sampled_from([10, 5000]), point=POINTS,
    )  # fmt: skip
    def answer(self, place: int, rows: int, metrics: Any, size: int, point: Any) -> None:
        """Let an answer leave."""
        requester, call = self.waiting.pop(place % len(self.waiting))
        assert self.gate.answer(MALLORY, call, size, Spending(rows, metrics)) != Allowed()
        day = self.days.setdefault(int(max(self.now_s, self.latest_s) // 86_400), [0, 0])
        decision = self.attempt(lambda: self.gate.answer(requester, call, size, Spending(rows, metrics)), point)
        if decision is None:
            return
        limits = self.policy.limits
        day[1] += call.size + (size if decision == Allowed() else 0)
        if decision != Allowed():
            assert isinstance(decision, Refused)
            return
        assert limits.bytes_per_day is None or day[1] <= limits.bytes_per_day
        if call.method in ("evaluate", "measure"):
            assert set(metrics) <= set(self.policy.release.metrics)
        if call.method == "delta" or (call.method in ("evaluate", "measure") and metrics):
            assert rows >= 50
        if call.method in ("delta", "local_state"):
            privacy = self.settings_of[call.run]["privacy"]
            noise = privacy["noise"] * math.sqrt(self.asked.get((call.run, call.actor), 1.0)) / 2 if privacy else 0.0
            self.left.setdefault(requester.name, Counter())[noise] += 1

    @rule(seconds=st.sampled_from([-(10**6), -3600, 60, 3600 * 5, 86_400]))
    def clock(self, seconds: int) -> None:
        """Set the clock, also back."""
        self.now_s += seconds

    @rule()
    def crash(self) -> None:
        """End the process between two calls."""
        self.die()

    @rule(approve=st.sampled_from([True, True, True, False]), number=st.integers(1, 3))
    def decide(self, approve: bool, number: int) -> None:
        """Decide about a run as the administrator."""
        self.latest_s = max(self.latest_s, self.now_s)
        with suppress(ChimeraError):
            decide(self.folder, number, approve=approve, by="ada")

    def ask(self, requester: Requester, call: Call, point: Any) -> Any:
        """Request a call; check that it may run if the gate says so."""
        decision = self.attempt(lambda: self.gate.request(requester, call), point)
        if isinstance(decision, Held | Later | Allowed) and call.run not in self.owner:
            self.owner[call.run], self.settings_of[call.run] = requester.name, call.settings
        if decision == Allowed():
            self.check(requester, call)
            self.waiting.append((requester, call))
            self.history.append(call)
            if call.method == START:
                self.asked.pop((call.run, call.actor), None)
        elif decision == Allowed(again=True):
            assert (call.run, call.number) in self.numbers
        return decision

    def check(self, requester: Requester, call: Call) -> None:
        """Check a call that may run by other words than those of the gate."""
        policy, given = self.policy, self.settings_of[call.run]
        privacy = given["privacy"]
        assert requester.name in policy.requesters.names
        assert self.owner[call.run] == requester.name
        assert type(call.number) is int
        assert 0 <= call.number < 1 << 63
        assert given.keys() <= {"strategy", "model", "rounds", "nodes", "privacy", "metrics"}
        assert given["strategy"] == {"name": "fed-avg", "local_steps": 5}
        assert given["model"] == {"name": "mlp"}
        assert call.kind == (PRIVATE if privacy else LEARNER)
        common = {START, "delta", "samples", "tally", "measure", "evaluate"}
        assert call.method in common | (
            {"take_part", "share_secrets", "advertise_keys"} if privacy else {"local_state"}
        )
        if privacy:
            assert privacy["noise"] >= policy.privacy.min_noise
            assert privacy["clip"] <= 1.5
            assert (privacy.get("on", "clients"), privacy.get("noise_seed", "system")) == ("clients", "system")
            assert policy.secure_aggregation in (
                "optional",
                "required" if privacy.get("secure_aggregation") else "refused",
            )
        else:
            assert policy.privacy.unlimited
            assert policy.secure_aggregation != "required"
        if call.method == START:
            assert call.named == ({"privacy": Privacy.of(privacy)} if privacy else {})
        if call.method == "delta":
            assert call.named["steps"] in (1, 5)
            assert not (privacy and call.named.get("reached"))
            assert math.isfinite(call.named.get("weight", 1.0))
            assert (call.run, call.number) not in self.numbers
            self.numbers.add((call.run, call.number))
            day = self.days.setdefault(int(max(self.now_s, self.latest_s) // 86_400), [0, 0])
            day[0] += 1
            assert policy.limits.rounds_per_day is None or day[0] <= policy.limits.rounds_per_day
        elif call.method in ("measure", "evaluate"):
            self.evaluations[call.run] += 1
            assert self.evaluations[call.run] <= given["rounds"] + 2
        elif call.method == "local_state":
            self.numbers.add((call.run, call.number))
        if policy.limits.hours != "00:00-00:00":
            assert 9 <= self.now_s % 86_400 // 3600 < 15

    @invariant()
    def the_budget_holds(self) -> None:
        """What left is within the budgets, and no more than the ledger says; the ledger never decreases."""
        bounds = self.policy.privacy
        rows = self.gate._ledger.read(lambda db: db.execute("SELECT requester, noise, updates FROM spent").fetchall())
        spent: dict[str, Counter[float]] = {}
        for requester, noise, updates in rows:
            spent.setdefault(requester, Counter())[noise] += updates
        for requester, left in self.left.items():
            assert epsilon(left) <= epsilon(spent[requester]) <= bounds.epsilon_per_requester
        in_all = epsilon(sum(spent.values(), Counter()))
        assert self.spent_before <= in_all <= bounds.epsilon_in_all
        self.spent_before = in_all

    @invariant()
    def the_log_is_whole(self) -> None:
        """The audit log follows from the ledger at each moment. Only lines of calls that let nothing out wait for the file."""
        found, query = verify(self.folder), "SELECT line FROM audit_lines WHERE sequence > ?"
        rows = self.gate._ledger.read(lambda db: db.execute(query, (found.lines,)).fetchall())
        entries = [decode(line).entry for (line,) in rows]
        assert len(entries) == found.unwritten
        assert all(leaves(entry.kind, entry.method) == "nothing" for entry in entries)

    def teardown(self) -> None:
        """Remove the node."""
        if hasattr(self, "gate"):
            self.gate.close()
            self.scratch.cleanup()


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Any:
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.takes("it plays 25 sequences of requests")
def test_nothing_leaves_that_the_policy_does_not_allow() -> None:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    run_state_machine_as_test(
        Node, settings=settings(max_examples=25, stateful_step_count=25, suppress_health_check=checks)
    )


@pytest.mark.long
@pytest.mark.parametrize("remembered", [10_000, 2], ids=["all actors remembered", "two actors remembered"])
def test_nothing_leaves_in_many_more_sequences(remembered: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chimera.federation.policy.shares._MAX_RUNS", remembered)
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    run_state_machine_as_test(
        Node, settings=settings(max_examples=400, stateful_step_count=60, suppress_health_check=checks)
    )
