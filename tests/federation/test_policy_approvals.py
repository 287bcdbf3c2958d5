"""Runs that wait for the administrator, and the commands with which the administrator decides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from chimera.cli.main import _Program
from chimera.cli.node_policy import add_to
from chimera.core.errors import ConfigurationError, ConflictError
from chimera.federation.audit.verify import verify
from chimera.federation.policy import requests as reasons
from chimera.federation.policy.approvals import decide, runs_of
from chimera.federation.policy.requests import Allowed, Held, Refused, Spending
from chimera.privacy.accountant import Accountant
from federation.policy_kit import ALICE, BARE, BARE_SETTINGS, BOB, POLICY, SETTINGS, Requests, gate_of

ASK = POLICY.replace('"automatic"', '"ask"')


def run(*words: object) -> Result:
    app = typer.Typer(cls=_Program)
    add_to(app)
    return CliRunner().invoke(app, list(map(str, words)))


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """Return the folder of a node at which two requesters wait."""
    gate = gate_of(tmp_path, ASK)
    settings = {**SETTINGS, "rounds": 2, "metrics": ["loss"]}
    assert gate.request(ALICE, Requests("a", settings).start()) == Held(1)
    assert gate.request(BOB, Requests("b").start()) == Held(2)
    gate.close()
    return tmp_path


def test_the_description_of_a_run(node: Path) -> None:
    done = run("runs", "--folder", node)
    assert done.exit_code == 0
    first = done.stdout.split("\n\n")[0]
    after = Accountant([[4 / 2 / 2, 1.0, 2]]).epsilon(1e-5, sampled=False)  # of rows; one of four updates in a round
    for words in (
        "run 1: held",
        "alice, since 20",
        "mlp (hidden = 32)",
        "fed-avg (local_steps = 5)",
        "at most 2 updates of this node, in rounds of at most 4 nodes; 0 until now",
        "one vector of the size of the model",
        "cut to the length 1",
        "metrics of this node's test rows: loss, accuracy",
        "no masks: the requester reads each update of this node",
        f"of alice: 0 now, {after:.3g} after the run, budget 20",
        "chimera node approve 1",
    ):
        assert words in first
    assert "the budget ends before the last round" in done.stdout.split("\n\n")[1]


def test_an_approved_run_begins_and_a_declined_one_does_not(node: Path) -> None:
    assert run("approve", 1, "--folder", node).stdout == "run 1 of alice is approved\n"
    assert run("refuse", 2, "--folder", node).stdout == "run 2 of bob is declined\n"
    assert run("runs", "--folder", node).stdout == "no run waits for a decision\n"
    assert run("runs", "--all", "--folder", node).stdout.count("\nrun ") == 1
    gate = gate_of(node, ASK)
    settings = {**SETTINGS, "rounds": 2, "metrics": ["loss"]}
    started = Requests("a", settings)
    assert gate.request(ALICE, started.start()) == Allowed()
    started.settings = {**settings, "rounds": 3}
    assert gate.request(ALICE, started.start()) == Refused(reasons.CHANGED)
    assert gate.request(BOB, Requests("b").start()) == Refused(reasons.DECLINED)
    gate.close()
    decisions = [json.loads(line)["entry"] for line in (node / "audit.jsonl").read_text().splitlines()]
    assert [each["decision"] for each in decisions] == ["held", "held", "approved", "declined", "refused", "refused"]
    assert decisions[2]["reason"].startswith("run 1, by ")
    verify(node)


def test_the_administrator_decides_while_the_node_runs(node: Path) -> None:
    gate, requests = gate_of(node, ASK), Requests("b")
    call = requests.start()
    assert gate.request(BOB, call) == Held(2)
    decide(node, 2, approve=True, by="ada")
    assert gate.request(BOB, call) == Allowed()
    assert gate.answer(BOB, call, 10, Spending()) == Allowed()
    decide(node, 2, approve=False, by="ada")  # an approved run can be ended
    assert gate.request(BOB, requests.update()) == Refused(reasons.DECLINED)
    gate.close()
    verify(node)


def test_a_decision_about_no_run_is_one_line(node: Path, tmp_path: Path) -> None:
    decide(node, 1, approve=False, by="ada")
    with pytest.raises(ConflictError):
        decide(node, 1, approve=True, by="ada")
    with pytest.raises(ConfigurationError):
        runs_of(tmp_path / "no")
    for words, code in ((("approve", 3), 2), (("refuse", 1), 1)):
        done = run(*words, "--folder", node)
        assert (done.exit_code, done.stderr.count("\n")) == (code, 1)
    assert run("runs", "--folder", tmp_path / "no").exit_code == 2


def test_a_run_without_noise_says_so(tmp_path: Path) -> None:
    gate = gate_of(tmp_path, BARE.replace('"automatic"', '"ask"'))
    settings = {**BARE_SETTINGS, "model": {"name": "mlp", "hidden": "\x1b[31m"}}
    assert gate.request(ALICE, Requests("a", settings).start()) == Refused(
        "the option 'hidden' of the model is not allowed here: leave it out"
    )
    assert gate.request(ALICE, Requests("a", BARE_SETTINGS).start()) == Held(1)
    gate.close()
    said = run("runs", "--folder", tmp_path).stdout
    assert "NONE: rows can be reconstructed in part" in said
    assert "0 now, no bound after the run, budget no bound" in said


def test_a_requester_cannot_fill_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chimera.federation.policy.decisions._MAX_HELD_RUNS", 2)
    gate = gate_of(tmp_path, ASK)
    decisions = [gate.request(ALICE, Requests(name).start()) for name in "abc"]
    assert decisions == [Held(1), Held(2), Refused(reasons.TOO_MANY_HELD_RUNS)]
    assert gate.request(BOB, Requests("d").start()) == Held(3)
    gate.close()
