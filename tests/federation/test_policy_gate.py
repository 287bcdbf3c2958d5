"""The gate of a node: only what the policy allows runs and leaves, and the budget holds, also after a crash."""

from __future__ import annotations

import json
import math
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from chimera.core.call import work
from chimera.core.errors import ConfigurationError, DataError, PrivacyError
from chimera.data.order import OwnOrder
from chimera.engines.http import wire
from chimera.engines.http.failure import revived
from chimera.engines.http.hosting.host import Host
from chimera.federation.audit.verify import verify
from chimera.federation.policy import requests as reasons
from chimera.federation.policy.answers import leaving, read_answer
from chimera.federation.policy.approvals import decide
from chimera.federation.policy.gate import Gate
from chimera.federation.policy.ledger import minute_of
from chimera.federation.policy.reading import CallReader
from chimera.federation.policy.requests import Allowed, Held, Later, Refused, Requester, Spending
from chimera.federation.policy.rules import DESCRIBER, LEARNER, PRIVATE
from chimera.privacy.accountant import Accountant
from chimera.training.privacy.settings import Privacy
from federation.policy_kit import (
    ALICE,
    BARE,
    BARE_SETTINGS,
    BOB,
    MALLORY,
    MASKED,
    MASKED_SETTINGS,
    NOON_S,
    POLICY,
    SETTINGS,
    Requests,
    count_keys,
    gate_of,
)

TOMORROW = Later("day", (1440 - minute_of(NOON_S)) * 60)
ENOUGH = Spending(rows=160)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line)["entry"] for line in (folder / "audit.jsonl").read_text().splitlines()]


def begin(gate: Gate, run: Requests, requester: Requester = ALICE) -> None:
    call = run.start()
    assert gate.request(requester, call) == Allowed()
    assert gate.answer(requester, call, 10, Spending()) == Allowed()


def update(gate: Gate, run: Requests, requester: Requester = ALICE, **named: Any) -> Any:
    """Return the decision about one update, and let it leave if it may run."""
    call = run.update(**named)
    decision = gate.request(requester, call)
    return gate.answer(requester, call, 5000, ENOUGH) if decision == Allowed() else decision


def test_a_run_within_the_policy(tmp_path: Path) -> None:
    gate, run = gate_of(tmp_path), Requests()
    begin(gate, run)
    for method in ("samples", "step", "tally", "go_to"):
        call = run.call(method)
        assert gate.request(ALICE, call) == Allowed()
        assert gate.answer(ALICE, call, 10, Spending()) == Allowed()
    assert update(gate, run) == Allowed()
    gate.close()
    told = lines(tmp_path)
    assert [line["decision"] for line in told] == ["released"] * 6
    assert told[-1] == {
        "time": "2027-01-15T12:00:00Z", "decision": "released", "requester": "alice", "fingerprint": "a" * 64, "run": "r1",
        "number": 6, "kind": PRIVATE, "method": "delta", "bytes_in": 1000, "bytes_out": 5000, "rows": 160,
        "epsilon": pytest.approx(Accountant([[2.0, 1.0, 1]]).epsilon(1e-5, sampled=False)), "reason": "", "node": "",
    }  # fmt: skip
    assert verify(tmp_path).lines == 6


def test_an_answer_leaves_when_its_ledger_is_on_the_disk(tmp_path: Path) -> None:
    """Requests, and answers that follow from what the requester sent, wait for no disk; the next other answer does for all."""
    gate, run = gate_of(tmp_path), Requests()
    begin(gate, run)

    def synchronous() -> int:
        return int(gate._ledger.read(lambda db: db.execute("PRAGMA synchronous").fetchone()[0]))

    normal, full = 1, 2
    for method, level, unwritten in (("step", normal, 1), ("tally", normal, 2), ("samples", full, 0)):
        call = run.call(method)
        assert gate.request(ALICE, call) == Allowed()
        assert gate.answer(ALICE, call, 10, Spending()) == Allowed()
        assert (synchronous(), verify(tmp_path).unwritten) == (level, unwritten)
    call = run.update()
    assert gate.request(ALICE, call) == Allowed()
    assert synchronous() == normal
    assert gate.answer(ALICE, call, 10, ENOUGH) == Allowed()
    assert (synchronous(), verify(tmp_path).unwritten) == (full, 0)
    call = run.call("step")
    assert gate.request(ALICE, call) == Allowed()
    assert gate.answer(ALICE, call, 10, Spending()) == Allowed()
    gate.close()
    assert verify(tmp_path).unwritten == 0


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        (PRIVATE, "gradient"), (PRIVATE, "local_state"), (PRIVATE, "buffers"), (PRIVATE, "weights"), (PRIVATE, "state"),
        (PRIVATE, "__class__"), (PRIVATE, "__getattr__"), (PRIVATE, "__reduce__"), (PRIVATE, "_learner"), (PRIVATE, "attack"),
        (PRIVATE, ""), (PRIVATE, "Delta"), (PRIVATE, "delta\n"), (PRIVATE, "x" * 300), (PRIVATE, "dëlta"),
        (LEARNER, "delta"), (LEARNER, "buffers"), ("builtins.eval", "delta"), ("", "delta"), ("os:system", "__init__"),
    ],
)  # fmt: skip
def test_calls_off_the_list_are_refused_alike(tmp_path: Path, kind: str, method: str) -> None:
    gate, run = gate_of(tmp_path), Requests()
    begin(gate, run)
    assert gate.request(ALICE, replace(run.update(), kind=kind, method=method)) == Refused(reasons.NOT_ALLOWED)
    gate.close()
    assert lines(tmp_path)[-1]["decision"] == "refused"
    verify(tmp_path)


@pytest.mark.parametrize(
    "named",
    [
        {"steps": 0}, {"steps": 6}, {"steps": 10**30}, {"steps": True}, {"steps": 2.0}, {"steps": None}, {"weight": math.nan},
        {"weight": math.inf}, {"weight": "1"}, {"reached": True}, {"reached": 1}, {"learner": "os:system"}, {"__class__": 1},
    ],
)  # fmt: skip
def test_arguments_of_another_update_are_refused(tmp_path: Path, named: Mapping[str, Any]) -> None:
    gate, run = gate_of(tmp_path), Requests()
    begin(gate, run)
    assert update(gate, run, **named) == Refused(reasons.NOT_ALLOWED)
    assert update(gate, run) == Allowed()
    gate.close()


@pytest.mark.parametrize(
    "privacy",
    [
        None, Privacy(clip=1.0, noise=3.0), Privacy(clip=1.1, noise=4.0), Privacy(clip=1.0, noise=4.0, on="server"),
        Privacy(clip=1.0, noise=4.0, noise_seed="run"), {"clip": 1.0, "noise": 4.0},
    ],
)  # fmt: skip
def test_an_actor_with_other_settings_than_declared_does_not_begin(tmp_path: Path, privacy: Any) -> None:
    gate, run = gate_of(tmp_path), Requests()
    assert gate.request(ALICE, replace(run.start(), named={"privacy": privacy})) == Refused(reasons.NOT_ALLOWED)
    assert gate.request(ALICE, replace(run.start(), kind=LEARNER, named={})) == Refused(reasons.NOT_ALLOWED)
    gate.close()


@pytest.mark.parametrize("number", [-1, 1 << 63, 10**400, True, 1.0, "1", None])
def test_numbers_of_calls_that_are_none(tmp_path: Path, number: Any) -> None:
    gate, run = gate_of(tmp_path), Requests()
    begin(gate, run)
    assert gate.request(ALICE, replace(run.update(), number=number)) == Refused(reasons.NOT_ALLOWED)
    assert gate.request(ALICE, replace(run.update(), run=number)) == Refused(reasons.NOT_ALLOWED)
    gate.close()


def test_only_listed_requesters_and_only_in_their_own_runs(tmp_path: Path) -> None:
    gate, run, other = gate_of(tmp_path), Requests(), Requests("r2")
    assert gate.request(MALLORY, run.start()) == Refused(reasons.NOT_ALLOWED)
    assert update(gate, run) == Refused(reasons.NOT_ALLOWED)  # the run has not begun
    begin(gate, run)
    begin(gate, other, BOB)
    assert update(gate, run, BOB) == Refused(reasons.NOT_ALLOWED)
    assert update(gate, run, MALLORY) == Refused(reasons.NOT_ALLOWED)
    call = run.update()
    assert gate.request(ALICE, call) == Allowed()
    assert gate.answer(BOB, call, 10, ENOUGH) == Refused(reasons.NOT_ALLOWED)
    assert gate.answer(ALICE, call, 10, ENOUGH) == Allowed()
    gate.close()


def test_a_revoked_requester_is_refused_also_in_a_call_that_runs(tmp_path: Path) -> None:
    revoked: set[str] = set()
    gate, run = gate_of(tmp_path, revoked=lambda: revoked), Requests()
    begin(gate, run)
    call = run.update()
    assert gate.request(ALICE, call) == Allowed()
    revoked.add(ALICE.fingerprint)
    assert gate.answer(ALICE, call, 5000, ENOUGH) == Refused(reasons.REVOKED)
    assert gate.request(ALICE, run.call("samples")) == Refused(reasons.REVOKED)
    begin(gate, Requests("r2"), BOB)
    said = [(line["decision"], line["reason"]) for line in lines(tmp_path)]
    assert said[1:3] == [("withheld", reasons.REVOKED), ("refused", reasons.REVOKED)]
    gate.close()


def test_settings_of_a_run_do_not_change(tmp_path: Path) -> None:
    gate, run = gate_of(tmp_path), Requests()
    begin(gate, run)
    run.settings = {**SETTINGS, "rounds": 10_000}
    assert update(gate, run) == Refused(reasons.CHANGED)
    gate.close()


def test_a_call_with_one_number_runs_once(tmp_path: Path) -> None:
    gate, run = gate_of(tmp_path), Requests()
    begin(gate, run)
    call = run.update()
    assert gate.request(ALICE, call) == Allowed()
    assert gate.request(ALICE, call) == Refused(reasons.EARLIER)  # it runs now
    assert gate.answer(ALICE, call, 10, ENOUGH) == Allowed()
    assert gate.answer(ALICE, call, 10, ENOUGH) == Refused(reasons.NOT_ALLOWED)
    assert gate.request(ALICE, call) == Allowed(again=True)
    gate.close()
    gate = gate_of(tmp_path)
    assert gate.request(ALICE, call) == Allowed(again=True)
    gate.close()


def rounds_within(budget: float, noise: float, delta: float = 1e-5) -> int:
    """Return how many updates with this noise multiplier a budget allows, by the accountant itself."""
    count = 0
    while Accountant([[noise, 1.0, count + 1]]).epsilon(delta, sampled=False) <= budget:
        count += 1
    return count


def test_budgets_of_one_requester_and_of_all(tmp_path: Path) -> None:
    gate, run, other = gate_of(tmp_path), Requests(), Requests("r2")
    begin(gate, run)
    begin(gate, other, BOB)
    of_alice, in_all = rounds_within(20.0, 2.0), rounds_within(30.0, 2.0)  # rows: half of the noise of 4
    assert 0 < of_alice < in_all < 2 * of_alice
    assert [update(gate, run) for _ in range(of_alice + 2)] == [Allowed()] * of_alice + [Refused(reasons.EXHAUSTED)] * 2
    decisions = [update(gate, other, BOB) for _ in range(of_alice)]
    assert decisions.count(Allowed()) == in_all - of_alice
    assert decisions[-1] == Refused(reasons.EXHAUSTED)
    gate.close()
    gate, third = gate_of(tmp_path), Requests("r3")
    begin(gate, third)
    assert update(gate, third) == Refused(
        reasons.EXHAUSTED
    )  # another run and another process do not begin a new budget
    gate.close()


def test_less_noise_in_an_update_spends_more(tmp_path: Path) -> None:
    spent = []
    for asked in (1, 4):
        gate, run = gate_of(tmp_path / str(asked), POLICY.replace("20.0", "2e3").replace("30.0", "2e3")), Requests()
        begin(gate, run)
        call = run.call("take_part", asked)
        assert gate.request(ALICE, call) == Allowed()
        assert update(gate, run) == Allowed()
        gate.close()
        spent.append(lines(tmp_path / str(asked))[-1]["epsilon"])
    assert spent == [
        pytest.approx(Accountant([[noise, 1.0, 1]]).epsilon(1e-5, sampled=False))
        for noise in (4 / 2, 4 / 2 / math.sqrt(4))
    ]


@pytest.mark.parametrize("asked", [0, 5, -1, 10**30, True, 1.5, "2", None])
def test_a_round_of_more_nodes_than_declared_is_refused(tmp_path: Path, asked: Any) -> None:
    gate, run = gate_of(tmp_path), Requests()
    begin(gate, run)
    assert gate.request(ALICE, run.call("take_part", asked)) == Refused(reasons.NOT_ALLOWED)
    gate.close()


def test_a_smaller_round_later_does_not_hide_the_noise_that_is_missing(tmp_path: Path) -> None:
    gate, run = gate_of(tmp_path, POLICY.replace("20.0", "2e3").replace("30.0", "2e3")), Requests()
    begin(gate, run)
    for asked in (4, 1):
        assert gate.request(ALICE, run.call("take_part", asked)) == Allowed()
    assert update(gate, run) == Allowed()
    gate.close()
    assert lines(tmp_path)[-1]["epsilon"] == pytest.approx(Accountant([[1.0, 1.0, 1]]).epsilon(1e-5, sampled=False))


def test_masked_updates_need_an_accepted_list_of_enough_nodes(tmp_path: Path) -> None:
    gate, run = gate_of(tmp_path, MASKED, participants=count_keys), Requests(settings=MASKED_SETTINGS)
    begin(gate, run)
    assert gate.request(ALICE, run.call("advertise_keys")) == Allowed()
    assert gate.request(ALICE, run.call("take_part", 1)) == Refused(reasons.NOT_ALLOWED)
    assert update(gate, run) == Refused(reasons.NOT_ALLOWED)
    for keys in ([1], [1, 2], [1, 2, 0, 4], [1, 2, 3, 4, 5], []):  # 2 of 2 are fewer than min_nodes_in_sum
        assert gate.request(ALICE, run.call("share_secrets", keys)) == Refused(reasons.PARTICIPANTS)
    assert update(gate, run) == Refused(reasons.NOT_ALLOWED)
    assert gate.request(ALICE, run.call("share_secrets", [1, 2, 3, 4])) == Allowed()
    assert update(gate, run) == Allowed()
    gate.close()
    noise = 4 / 2 * math.sqrt(3 / 4)  # three of four survivors suffice to read the sum
    assert lines(tmp_path)[-1]["epsilon"] == pytest.approx(Accountant([[noise, 1.0, 1]]).epsilon(1e-5, sampled=False))


def test_a_node_without_a_check_of_participants_refuses_masked_sums(tmp_path: Path) -> None:
    gate, run = gate_of(tmp_path, MASKED), Requests(settings=MASKED_SETTINGS)
    begin(gate, run)
    assert gate.request(ALICE, run.call("share_secrets", [1, 2, 3, 4])) == Refused(reasons.PARTICIPANTS)
    gate.close()


def test_updates_without_noise_need_a_policy_without_a_budget(tmp_path: Path) -> None:
    gate, run = gate_of(tmp_path, BARE), Requests(settings=BARE_SETTINGS)
    begin(gate, run)
    assert update(gate, run) == Allowed()
    assert gate.request(ALICE, run.call("gradient", b"")) == Refused(reasons.NOT_ALLOWED)  # that of another strategy
    assert gate.request(ALICE, run.call("local_state")) == Allowed()
    gate.close()
    assert lines(tmp_path)[1]["epsilon"] is None
    gate, run = gate_of(tmp_path), Requests("r2")
    begin(gate, run)
    assert update(gate, run) == Refused(reasons.EXHAUSTED)  # no later budget covers those updates
    gate.close()


def test_limits_of_a_day(tmp_path: Path) -> None:
    time_s = [NOON_S]
    text = POLICY.replace(
        "min_rows = 50", 'min_rows = 50\nrounds_per_day = 2\nbytes_per_day = 40000\nhours = "00:01-23:59"'
    )
    gate, run = gate_of(tmp_path, text, clock=lambda: time_s[0]), Requests()
    begin(gate, run)
    assert [update(gate, run) for _ in range(3)] == [Allowed(), Allowed(), TOMORROW]
    time_s[0] = NOON_S - 40 * 86_400  # a clock that is set back begins no new day
    assert update(gate, run) == TOMORROW
    time_s[0] = NOON_S + 86_400
    assert update(gate, run) == Allowed()
    call = run.call("samples")
    assert gate.request(ALICE, call) == Allowed()
    assert gate.answer(ALICE, call, 40_000, Spending()) == Refused(reasons.LIMIT)  # it would leave, and is too large
    assert gate.request(ALICE, replace(run.update(), size=40_000)) == TOMORROW
    assert gate.request(ALICE, replace(run.update(), size=40_001)) == Refused(reasons.LIMIT)  # on each day
    gate.close()


def test_hours_in_local_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    gate, run = (
        gate_of(tmp_path, POLICY.replace("min_rows = 50", 'min_rows = 50\nhours = "13:00-14:00"')),
        Requests(),
    )
    assert gate.request(ALICE, run.start()) == Later("hours", 3600)  # it is 12:00
    gate.close()
    asking = POLICY.replace("automatic", "ask").replace("min_rows = 50", 'min_rows = 50\nhours = "22:00-06:00"')
    gate = gate_of(tmp_path / "asking", asking)
    assert gate.request(ALICE, run.start()) == Held(1)  # an administrator decides at any hour
    decide(tmp_path / "asking", 1, approve=True, by="ada")
    assert gate.request(ALICE, run.start()) == Later("hours", 10 * 3600)
    assert [line["decision"] for line in lines(tmp_path / "asking")] == ["held", "approved"]
    gate.close()
    monkeypatch.undo()
    time.tzset()


def test_a_run_has_the_declared_number_of_rounds(tmp_path: Path) -> None:
    gate, run = gate_of(tmp_path), Requests(settings={**SETTINGS, "rounds": 2})
    begin(gate, run)
    assert [update(gate, run) for _ in range(3)] == [Allowed(), Allowed(), Refused(reasons.RUN_OVER)]
    gate.close()


def test_few_rows_look_like_any_other_refusal(tmp_path: Path) -> None:
    gate, run = gate_of(tmp_path, rows=lambda: 49), Requests()
    assert gate.request(ALICE, run.start()) == Refused(reasons.NOT_ALLOWED) == gate.request(MALLORY, run.start())
    gate.close()
    gate, run = gate_of(tmp_path), Requests()
    begin(gate, run)
    call = run.update()
    assert gate.request(ALICE, call) == Allowed()
    assert gate.answer(ALICE, call, 10, Spending(rows=49)) == Refused(reasons.NOT_ALLOWED)
    gate.close()
    assert lines(tmp_path)[-1]["decision"] == "withheld"
    assert lines(tmp_path)[-1]["bytes_out"] == 0
    assert lines(tmp_path)[-1]["epsilon"] > 0


def test_a_repeated_update_leaves_if_the_update_did(tmp_path: Path) -> None:
    gate, run = gate_of(tmp_path), Requests()
    begin(gate, run)
    repeated = Spending(rows=0)  # a worker reads no row in a repeated round
    for spent, decision in (
        (repeated, Refused(reasons.NOT_ALLOWED)),  # of no update
        (ENOUGH, Allowed()),
        (repeated, Allowed()),
        (Spending(rows=49), Refused(reasons.NOT_ALLOWED)),
        (repeated, Refused(reasons.NOT_ALLOWED)),
        (ENOUGH, Allowed()),
        (repeated, Refused(reasons.NOT_ALLOWED)),  # it could be the one that was withheld
    ):
        call = run.update()
        assert gate.request(ALICE, call) == Allowed()
        assert gate.answer(ALICE, call, 10, spent) == decision
    gate.close()


def test_an_error_leaves_whatever_rows_it_read(tmp_path: Path) -> None:
    gate, run = gate_of(tmp_path), Requests()
    begin(gate, run)
    for method in ("delta", "measure"):
        call = run.update() if method == "delta" else run.call(method)
        assert gate.request(ALICE, call) == Allowed()
        assert gate.answer(ALICE, call, 10, Spending(failed=True)) == Allowed()
    gate.close()


def test_statistics_leave_only_if_the_policy_says_so(tmp_path: Path) -> None:
    for place, text in enumerate((POLICY, POLICY.replace("[release]", "[release]\nstatistics = true"))):
        gate, run = gate_of(tmp_path / str(place), text), Requests()
        begin(gate, run)
        for statistics in (False, True):
            call = replace(run.call("describe"), kind=DESCRIBER)
            assert gate.request(ALICE, call) == Allowed()
            decision = gate.answer(ALICE, call, 10, Spending(500, statistics=statistics))
            assert decision == (Refused(reasons.NOT_ALLOWED) if statistics and not place else Allowed())
        gate.close()


def test_only_listed_metrics_leave(tmp_path: Path) -> None:
    gate, run = gate_of(tmp_path), Requests()
    begin(gate, run)
    for metrics, decision in ((("loss",), Allowed()), (("loss", "rows"), Refused(reasons.NOT_ALLOWED))):
        call = run.call("evaluate")
        assert gate.request(ALICE, call) == Allowed()
        assert gate.answer(ALICE, call, 10, Spending(rows=100, metrics=metrics)) == decision
    gate.close()
    gate, run = gate_of(tmp_path, POLICY.replace('metrics = ["loss", "accuracy"]', "")), Requests("r2")
    begin(gate, run)
    for spent, decision in ((Spending(), Allowed()), (Spending(100, ("loss",)), Refused(reasons.NOT_ALLOWED))):
        call = run.call("measure")  # a node that gives no metrics answers that there are none
        assert gate.request(ALICE, call) == Allowed()
        assert gate.answer(ALICE, call, 10, spent) == decision
    gate.close()


def test_a_run_has_two_more_evaluations_than_rounds(tmp_path: Path) -> None:
    gate, run = gate_of(tmp_path), Requests(settings={**SETTINGS, "rounds": 1})
    begin(gate, run)
    decisions = [gate.request(ALICE, run.call("measure")) for _ in range(4)]
    assert decisions == [Allowed()] * 3 + [Refused(reasons.RUN_OVER)]
    gate.close()
    gate, run = (
        gate_of(tmp_path, POLICY.replace("min_rows = 50", "min_rows = 50\nrounds_per_day = 2")),
        Requests("r2"),
    )
    begin(gate, run)
    assert [gate.request(ALICE, run.call("measure")) for _ in range(2)] == [Allowed(), TOMORROW]
    gate.close()


def test_a_run_waits_for_the_administrator(tmp_path: Path) -> None:
    gate, run = gate_of(tmp_path, POLICY.replace('"automatic"', '"ask"')), Requests()
    call = run.start()
    assert gate.request(ALICE, call) == Held(1) == gate.request(ALICE, call)
    assert update(gate, run) == Held(1)
    assert [line["decision"] for line in lines(tmp_path)] == ["held"]
    gate.close()


def test_refusals_do_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chimera.federation.policy.gate._MAX_REFUSALS", 3)
    gate, run = gate_of(tmp_path), Requests()
    for _ in range(10):
        gate.request(MALLORY, run.start())
    gate.close()
    assert len(lines(tmp_path)) == 4
    assert "not recorded" in lines(tmp_path)[-1]["reason"]


@pytest.mark.parametrize(
    "requester", [Requester("", "a" * 64), Requester("al\x1b[31mice", "a" * 64), Requester("alice\n", "a" * 64),
     Requester("alice", 3)]
)  # fmt: skip
def test_names_of_requesters_that_are_none(tmp_path: Path, requester: Requester) -> None:
    gate = gate_of(tmp_path, POLICY.replace('"alice"', '"alice", "", "alice\\n", "al\\u001b[31mice"'))
    assert gate.request(requester, Requests().start()) == Refused(reasons.NOT_ALLOWED)
    gate.close()


def test_calls_of_several_threads(tmp_path: Path) -> None:
    gate, run = gate_of(tmp_path), Requests()
    begin(gate, run)
    calls = [run.update() for _ in range(60)]

    def ask(call: Any) -> bool:
        return gate.request(ALICE, call) == Allowed() and gate.answer(ALICE, call, 10, ENOUGH) == Allowed()

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(ask, calls)) == rounds_within(20.0, 2.0)
    gate.close()
    assert verify(tmp_path).lines == 61


def test_only_the_owner_reads_the_files(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        gate, run = gate_of(tmp_path / "node"), Requests()
        begin(gate, run)
        for path in (tmp_path / "node", *(tmp_path / "node").iterdir()):
            assert path.stat().st_mode & 0o077 == 0
        gate.close()
    finally:
        os.umask(before)


def test_two_processes_do_not_use_one_ledger(tmp_path: Path) -> None:
    gate = gate_of(tmp_path)
    with pytest.raises(ConfigurationError, match="another process uses the ledger"):
        gate_of(tmp_path)
    gate.close()


@pytest.mark.parametrize("nested", [[[]], {"a": {}}])
def test_settings_nested_too_deeply_are_refused(tmp_path: Path, nested: Any) -> None:
    deep = nested
    for _ in range(100_000):
        deep = [deep]
    gate, run = gate_of(tmp_path), Requests()
    settings = {**SETTINGS, "model": {"name": "mlp", "hidden": deep}}
    assert isinstance(gate.request(ALICE, replace(run.start(), settings=settings)), Refused)
    assert isinstance(gate.request(ALICE, replace(run.start(), settings=settings)), Refused)
    gate.close()


KILLED = """
import sys
from pathlib import Path
from federation.policy_kit import ALICE, Requests, gate_of
gate, run = gate_of(Path(sys.argv[1])), Requests()
gate.request(ALICE, run.start())
print("begun", flush=True)
while True:
    call = run.update()
    print(gate.request(ALICE, call), flush=True)
"""


def test_a_killed_process_leaves_its_reservations_spent(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["tests", *sys.path])}
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert process.stdout is not None
    seen = [process.stdout.readline() for _ in range(5)]
    process.send_signal(signal.SIGKILL)
    seen += process.stdout.read().splitlines()
    process.stdout.close()
    process.wait()
    allowed = sum("Allowed" in line for line in seen)
    assert allowed >= 4
    gate, run = gate_of(tmp_path), Requests("r2")
    lost = [line for line in lines(tmp_path) if line["decision"] == "lost"]
    assert len(lost) - allowed in (0, 1)  # one may have been reserved without a word
    begin(gate, run)
    more = sum(update(gate, run) == Allowed() for _ in range(50))
    assert len(lost) + more == rounds_within(20.0, 2.0)
    gate.close()
    assert verify(tmp_path).unwritten == 0


def test_an_actor_begins_with_the_declared_model(tmp_path: Path) -> None:
    gate, run = gate_of(tmp_path), Requests()
    for model, decision in (
        ({"name": "mlp", "hidden": 16}, Refused(reasons.NOT_ALLOWED)),
        ({"name": "os:system"}, Refused(reasons.NOT_ALLOWED)),
        (SETTINGS["model"], Allowed()),
    ):
        schema = SimpleNamespace(request=SimpleNamespace(model=model))
        call = run.start()
        assert gate.request(ALICE, replace(call, given=(0, schema, None, OwnOrder(8, 0)))) == decision
    assert gate.request(ALICE, replace(run.start(), given=())) == Refused(reasons.NOT_ALLOWED)
    gate.close()


@pytest.mark.parametrize(
    "order", [None, OwnOrder(8, 0, test_share=0.99), OwnOrder(0, 0), OwnOrder(True, 0), {"batch_size": 8, "seed": 0}, [1, 2, 3]]
)  # fmt: skip
def test_a_requester_does_not_choose_the_rows(tmp_path: Path, order: Any) -> None:
    gate, run = gate_of(tmp_path), Requests()
    call = run.start()
    assert gate.request(ALICE, replace(call, given=(*call.given[:3], order))) == Refused(reasons.NOT_ALLOWED)
    begin(gate, run)
    assert gate.request(ALICE, run.call("follow", order, 3)) == Refused(reasons.NOT_ALLOWED)
    assert gate.request(ALICE, run.call("follow", OwnOrder(8, 1), 3)) == Allowed()
    gate.close()


def test_later_calls_need_no_settings_also_of_another_process(tmp_path: Path) -> None:
    gate, run = gate_of(tmp_path), Requests()
    assert gate.request(ALICE, replace(run.start(), settings=None)) == Refused(reasons.NOT_ALLOWED)
    begin(gate, run)
    for _ in range(2):
        call = replace(run.update(), settings=None)
        assert gate.request(ALICE, call) == Allowed()
        gate.close()
        gate = gate_of(tmp_path)
    assert gate.request(ALICE, call) == Refused(reasons.LOST)
    gate.close()


def test_a_describer_answers_one_call(tmp_path: Path) -> None:
    gate, run = gate_of(tmp_path), Requests()
    described = [replace(run.call(method), kind=DESCRIBER) for method in ("__init__", "describe", "delta", "__class__")]
    assert [gate.request(ALICE, call) for call in described] == [Allowed()] * 2 + [Refused(reasons.NOT_ALLOWED)] * 2
    gate.close()


def test_calls_are_read_from_bodies_of_drivers(tmp_path: Path) -> None:
    gate, run, reader = gate_of(tmp_path), Requests(), CallReader()
    start = run.start()
    privacy, settings = start.named["privacy"], msgspec.to_builtins(SETTINGS)
    began = {"kind": PRIVATE, "call": [[0, None, None, OwnOrder(8, 0)], {"privacy": privacy}], "settings": settings}
    body = wire.pack(began)
    call = reader.read("r1", 1, "k.worker", "", body)
    assert replace(start, actor="k.worker", size=len(body)) == call
    assert gate.request(ALICE, call) == Allowed()
    asked = wire.pack({"call": [[], {"steps": 5}], "places": {}, "names": {}, "returns": 1})
    assert gate.request(ALICE, reader.read("r1", 2, "k.worker", "delta", asked)) == Allowed()
    for actor, method, data in (
        ("k.other", "delta", asked), ("k.worker", "delta", b"{}"), ("k.worker", "", wire.pack({"call": 3})),
        ("k.worker", "", wire.pack([])), ("k.worker", "", wire.pack({**began, "settings": "x"})),
        ("k.worker", "", wire.pack({**began, "kind": ["x"]})), ("k.worker", "delta", wire.pack({"returns": -1})),
    ):  # fmt: skip
        assert gate.request(ALICE, reader.read("r1", 3, actor, method, data)) == Refused(reasons.NOT_ALLOWED)
    gate.close()


class Careless:
    """An actor whose errors quote its data."""

    def __init__(self, *_: Any) -> None:
        self.row = "diagnosis-of-patient-7"

    def delta(self, fails: bool) -> int:
        work(samples=70)
        if fails:
            raise DataError(f"row 7 has {self.row!r}")
        return 3

    def evaluate(self) -> dict[str, float]:
        work(samples=60)
        return {"loss": 1.0, "accuracy": 0.5}

    def step(self) -> None:
        raise PrivacyError("a client masks once")

    def share(self) -> None:
        raise KeyError(self.row)


def replied(host: Host, method: str, *given: Any) -> Any:
    """Return the reply of an actor."""
    replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
    host.call("k.a", method, wire.pack({"call": [list(given), {}]}), replies.put)
    return replies.get(timeout=30)


def answered(host: Host, method: str, *given: Any) -> bytes:
    """Return the body of an answer of an actor."""
    body: bytes = replied(host, method, *given).body
    return body


def test_a_reply_and_its_body_state_the_same_cost() -> None:
    """A node takes the cost from the reply, and reads a body only if it can be a failure or have figures."""
    host, made = Host({"careless": Careless}), queue.SimpleQueue[Any]()
    host.create("k.a", wire.pack({"kind": "careless", "call": [[], {}]}), made.put)
    assert made.get(timeout=30).status == 200
    for method, given in (("delta", [False]), ("evaluate", []), ("delta", [True]), ("share", [])):
        reply = replied(host, method, *given)
        left, spent = leaving(method, reply)
        assert (left.body, spent) == read_answer(method, reply.body)
        assert (reply.samples is None) == spent.failed
    host.close()


def test_errors_leave_without_texts_that_could_quote_data(caplog: pytest.LogCaptureFixture) -> None:
    host, made = Host({"careless": Careless}), queue.SimpleQueue[Any]()
    host.create("k.a", wire.pack({"kind": "careless", "call": [[], {}]}), made.put)
    assert made.get(timeout=30).status == 200
    body, spent = read_answer("delta", answered(host, "delta", False), "file")
    assert spent == Spending(rows=70, stored="file")
    assert wire.unpack(body)["values"] == [3]
    assert read_answer("evaluate", answered(host, "evaluate")).spent == Spending(60, ("loss", "accuracy"))
    for method, given, said in (
        ("delta", [True], "DataError in delta; the text is only in the log of the node"),
        ("share", [], "KeyError in share; the text is only in the log of the node"),
        ("step", [], "a client masks once"),
    ):
        raw = answered(host, method, *given)
        assert b"Traceback" in raw
        body, spent = read_answer(method, raw)
        assert spent.failed
        assert b"patient" not in body
        assert b"Traceback" not in body
        failed = revived(wire.unpack(body)["failure"], "worker", method, "")
        assert said in str(failed.exception())
    assert "diagnosis-of-patient-7" in caplog.text
    host.close()
    for body in (wire.pack({}), wire.pack([]), b"", wire.pack({"cost": {}, "values": [3]})):
        with pytest.raises(DataError):
            read_answer("evaluate", body)


def test_a_node_serves_more_actors_than_it_remembers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chimera.federation.policy.shares._MAX_RUNS", 2)
    gate, run = gate_of(tmp_path), Requests()
    begin(gate, run)
    actors = [f"worker{number}" for number in range(4)]

    def ask(call: Any, actor: str) -> Any:
        return gate.request(ALICE, replace(call, actor=actor))

    assert ask(run.call("take_part", 3), actors[0]) == Allowed()
    for actor in actors[1:]:
        assert ask(run.call("take_part", 1), actor) == Allowed()
    assert [ask(run.update(), actor) for actor in (actors[0], actors[3], "new")] == [Allowed()] * 3
    noises = gate._ledger.read(lambda db: dict(db.execute("SELECT noise, updates FROM spent").fetchall()))
    # The first actor has a third of the noise. It counts as one of the four nodes that the run declares, as later actors do.
    assert noises == {4.0 * 0.25**0.5 / 2: 3}
    gate.close()


def test_masks_need_a_list_of_participants_again_if_the_node_has_forgotten_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chimera.federation.policy.shares._MAX_RUNS", 1)
    gate = gate_of(tmp_path, MASKED, participants=count_keys)
    run = Requests(settings=MASKED_SETTINGS)
    assert gate.request(ALICE, run.start()) == Allowed()
    for actor in ("a", "b"):
        assert gate.request(ALICE, replace(run.call("share_secrets", [1] * 4), actor=actor)) == Allowed()
    assert gate.request(ALICE, replace(run.update(), actor="a")) == Refused(reasons.NOT_ALLOWED)
    assert gate.request(ALICE, replace(run.update(), actor="b")) == Allowed()
    gate.close()


def test_the_reader_knows_the_kind_of_the_most_recent_actors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chimera.federation.policy.reading._MAX_ACTORS", 2)
    reader = CallReader()
    for actor in ("a", "b"):
        reader.read("r1", 1, actor, "", wire.pack({"kind": LEARNER, "call": [[], {}]}))
    assert reader.read("r1", 2, "a", "samples", wire.pack({"call": [[], {}]})).kind == LEARNER
    reader.read("r1", 3, "c", "", wire.pack({"kind": LEARNER, "call": [[], {}]}))
    kinds = [reader.read("r1", 4, actor, "samples", wire.pack({"call": [[], {}]})).kind for actor in "abc"]
    assert kinds == [LEARNER, "", LEARNER]
