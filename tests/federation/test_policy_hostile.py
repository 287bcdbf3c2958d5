"""Ways by which a requester could get what a policy does not allow: one test for each that was tried."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from chimera.core import errors
from chimera.core.errors import ChimeraError, ConfigurationError, DataError
from chimera.data.order import OwnOrder
from chimera.engines.http import wire
from chimera.engines.http.failure import described
from chimera.federation.policy import requests as reasons
from chimera.federation.policy.answers import read_answer
from chimera.federation.policy.approvals import decide
from chimera.federation.policy.declared import Declared
from chimera.federation.policy.requests import Allowed, Held, Later, Refused, Requester, Spending
from chimera.federation.policy.rules import DESCRIBER, START
from federation.policy_kit import (
    ALICE,
    BARE,
    BARE_SETTINGS,
    NOON_S,
    POLICY,
    SETTINGS,
    Requests,
    count_keys,
    gate_of,
)

SECRET = "a row of the node"
OTHER_ALICE = replace(ALICE, fingerprint="d" * 64)
ANY_OPTION = POLICY.replace("hidden = { one_of = [16, 32] }", 'hidden = "any"')


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, 10**400, 1 << 63, b"32", date(2030, 1, 1), {1: 2}, {b"x": 1}, "\ud800", 1j, object()]
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_settings_that_another_run_could_have_as_well_are_refused(tmp_path: Path, value: Any, wrapped: bool) -> None:
    """An administrator approves the settings as text: two settings with one text would be approved together."""
    given = {"name": "mlp", "hidden": [value] if wrapped else value}
    with pytest.raises(ConfigurationError, match="the settings of the run"):
        Declared.of({**SETTINGS, "model": given})
    gate, run = gate_of(tmp_path, ANY_OPTION), Requests(settings={**SETTINGS, "model": given})
    assert isinstance(gate.request(ALICE, run.call(START, 0, None, None, OwnOrder(8, 0))), Refused)
    gate.close()


def test_deeply_nested_settings_are_refused(tmp_path: Path) -> None:
    nested: Any = 1
    for _ in range(5000):
        nested = [nested]
    gate, run = (
        gate_of(tmp_path, ANY_OPTION),
        Requests(settings={**SETTINGS, "model": {"name": "mlp", "hidden": nested}}),
    )
    assert isinstance(gate.request(ALICE, run.call(START, 0, None, None, OwnOrder(8, 0))), Refused)
    gate.close()


def test_an_approved_run_belongs_to_one_certificate(tmp_path: Path) -> None:
    gate, run = gate_of(tmp_path, POLICY.replace('"automatic"', '"ask"')), Requests()
    start = run.start()
    assert gate.request(ALICE, start) == Held(1)
    decide(tmp_path, 1, approve=True, by="ada")
    assert gate.request(OTHER_ALICE, start) == Refused(reasons.NOT_ALLOWED)
    assert gate.request(OTHER_ALICE, run.update()) == Refused(reasons.NOT_ALLOWED)
    assert gate.request(ALICE, start) == Allowed()
    assert gate.answer(OTHER_ALICE, start, 10, Spending()) == Refused(reasons.NOT_ALLOWED)
    gate.close()


def test_two_certificates_of_one_name_share_a_budget(tmp_path: Path) -> None:
    gate, spent = gate_of(tmp_path), 0
    for requester, name in ((ALICE, "a"), (OTHER_ALICE, "b")):
        run = Requests(name)
        assert gate.request(requester, run.start()) == Allowed()
        while gate.request(requester, run.update()) == Allowed():
            spent += 1
        assert gate.request(requester, run.update()) == Refused(reasons.EXHAUSTED)
    alone = gate_of(tmp_path / "alone")
    run = Requests()
    assert alone.request(ALICE, run.start()) == Allowed()
    assert all(alone.request(ALICE, run.update()) == Allowed() for _ in range(spent))
    assert alone.request(ALICE, run.update()) == Refused(reasons.EXHAUSTED)
    gate.close()
    alone.close()


def test_settings_do_not_change_between_calls(tmp_path: Path) -> None:
    gate, run = gate_of(tmp_path), Requests()
    assert gate.request(ALICE, run.start()) == Allowed()
    for change in ({"rounds": 10**6}, {"metrics": ["loss"]}, {"nodes": 3}, {"strategy": {"name": "fed-prox"}}):
        assert gate.request(ALICE, replace(run.update(), settings={**SETTINGS, **change})) == Refused(reasons.CHANGED)
    assert gate.request(ALICE, run.update()) == Allowed()
    gate.close()


def test_hours_follow_the_clock_that_was_in_the_future(tmp_path: Path) -> None:
    time_s = [NOON_S + 3 * 86_400]
    local = Later("hours", 12 * 3600)
    text = POLICY.replace("min_rows = 50", f'min_rows = 50\nhours = "{_around(NOON_S)}"')
    gate, run = gate_of(tmp_path, text, clock=lambda: time_s[0]), Requests()
    assert gate.request(ALICE, run.start()) == Allowed()
    time_s[0] = NOON_S + 13 * 3600
    assert isinstance(gate.request(ALICE, run.call("samples")), type(local))
    time_s[0] = NOON_S + 86_400
    assert gate.request(ALICE, run.call("samples")) == Allowed()
    gate.close()


def _around(now_s: float) -> str:
    """Return an interval of four hours around a time, in local time."""
    from chimera.federation.policy.ledger import minute_of

    ends = [(minute_of(now_s) + minutes) % 1440 for minutes in (-120, 120)]
    return "-".join(f"{end // 60:02}:{end % 60:02}" for end in ends)


@pytest.mark.parametrize(
    "folder", ["../../etc", "/etc/passwd", "mlp", "mlp/../mlp", ".", "", "\0", None, ["mlp"], "x" * 5000]
)
def test_a_folder_of_a_model_is_a_name_in_the_policy(tmp_path: Path, folder: Any) -> None:
    gate, run = gate_of(tmp_path), Requests(settings={**SETTINGS, "model": {"name": "folder", "folder": folder}})
    decision = gate.request(ALICE, run.call(START, 0, None, None, OwnOrder(8, 0)))
    assert isinstance(decision, Refused)
    assert str(tmp_path) not in decision.reason
    gate.close()


@pytest.mark.parametrize("run", ["../x", "a/b", "", "r\n1", "r\u0130", "r" * 201, 1, None, b"r1"])
@pytest.mark.parametrize("field", ["run", "actor"])
def test_names_that_are_no_plain_text(tmp_path: Path, run: Any, field: str) -> None:
    gate = gate_of(tmp_path / "node")
    before = sorted(path.name for path in (tmp_path / "node").iterdir())
    decision = gate.request(ALICE, replace(Requests().start(), **{field: run}))
    plain = isinstance(run, str) and run.isascii() and run.isprintable() and len(run) <= 200
    assert decision == (Allowed() if plain and (run or field == "actor") else Refused(reasons.NOT_ALLOWED))
    assert sorted(path.name for path in (tmp_path / "node").iterdir()) == before  # a name is a value in the ledger only
    gate.close()


@pytest.mark.parametrize("steps", [0, -1, 10**30, math.nan, math.inf, True, "5", None, [5]])
@pytest.mark.parametrize("weight", [1.0, math.nan])
def test_steps_and_weights_that_are_no_numbers(tmp_path: Path, steps: Any, weight: float) -> None:
    gate, run = gate_of(tmp_path), Requests()
    assert gate.request(ALICE, run.start()) == Allowed()
    assert gate.request(ALICE, run.update(steps=steps, weight=weight)) == Refused(reasons.NOT_ALLOWED)
    gate.close()


@pytest.mark.parametrize("named", ["rows", "loss\n", "LOSS", "\u0131oss", "loss_mean_of_nodes", ""])
def test_metrics_that_a_requester_names(tmp_path: Path, named: str) -> None:
    gate, run = gate_of(tmp_path), Requests()
    assert gate.request(ALICE, run.start()) == Allowed()
    call = run.call("measure")
    assert gate.request(ALICE, call) == Allowed()
    assert gate.answer(ALICE, call, 10, Spending(500, ("loss", named))) == Refused(reasons.NOT_ALLOWED)
    declared = Requests("r2", {**SETTINGS, "metrics": [named]})
    assert isinstance(gate.request(ALICE, declared.start()), Refused)
    gate.close()


def test_an_answer_that_is_split_into_several_is_no_evaluation() -> None:
    for values in ([], ["loss"], [["loss", 1.0]], [1.0, {"loss": 1.0}]):
        packed = [wire.Packed(wire.pack(value)) for value in values]
        with pytest.raises(DataError):
            read_answer("measure", wire.pack({"cost": {}, "values": packed}))


def _errors() -> list[type[ChimeraError]]:
    found = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ChimeraError)]
    return [
        *found,
        type("ConfigurationError", (Exception,), {"__module__": "elsewhere"}),
        ValueError,
        KeyError,
        SystemExit,
    ]


@pytest.mark.parametrize("kind", _errors(), ids=lambda kind: kind.__name__)
def test_texts_of_errors_that_can_quote_data_stay(kind: type[Exception]) -> None:
    """An error of the protocol or the settings leaves as it is; its notes, its cause and its traceback do not."""
    try:
        try:
            raise KeyError(SECRET)
        except KeyError as cause:
            text = "the setting is wrong" if kind.__name__ in OPEN and kind.__module__ == errors.__name__ else SECRET
            error = kind(text)
            error.add_note(SECRET)
            raise error from cause
    except (Exception, SystemExit) as raised:
        body = wire.pack({"cost": {"samples": 3}, "failure": described(raised, "delta")})
    assert SECRET.encode() not in read_answer("delta", body).body


OPEN = (
    "ActorLost", "CodeRefusedError", "ConfigurationError", "MissingExtraError", "PrivacyError", "TimeLimitError",
    "UnknownNameError",
)  # fmt: skip


def test_statistics_leave_with_release_only(tmp_path: Path) -> None:
    gate, run = gate_of(tmp_path), Requests()
    assert gate.request(ALICE, run.start()) == Allowed()
    call = replace(run.call("describe"), kind=DESCRIBER)
    assert gate.request(ALICE, call) == Allowed()
    assert gate.answer(ALICE, call, 10, Spending(500, statistics=True)) == Refused(reasons.NOT_ALLOWED)
    gate.close()
    gate = gate_of(tmp_path / "open", POLICY.replace("[release]", "[release]\nstatistics = true"))
    assert gate.request(ALICE, run.start()) == Allowed()
    for rows, decision in ((500, Allowed()), (49, Refused(reasons.NOT_ALLOWED))):
        call = replace(run.call("describe"), kind=DESCRIBER)
        assert gate.request(ALICE, call) == Allowed()
        assert gate.answer(ALICE, call, 10, Spending(rows, statistics=True)) == decision
    gate.close()


@pytest.mark.parametrize("rows", [0, 1, 49])
def test_metrics_of_few_rows_stay(tmp_path: Path, rows: int) -> None:
    gate, run = gate_of(tmp_path), Requests()
    assert gate.request(ALICE, run.start()) == Allowed()
    for _ in range(3):  # a repetition does not add rows up
        call = run.call("measure")
        assert gate.request(ALICE, call) == Allowed()
        assert gate.answer(ALICE, call, 10, Spending(rows, ("loss",))) == Refused(reasons.NOT_ALLOWED)
    gate.close()


@pytest.mark.parametrize("named", [{"first": 0}, {"rows": [1]}, {"__class__": 1}, {"steps": 5}])
@pytest.mark.parametrize("method", ["gradient", "measure", "evaluate", "samples", "tally"])
def test_calls_without_named_arguments_take_none(tmp_path: Path, method: str, named: Mapping[str, Any]) -> None:
    gate, run = gate_of(tmp_path, BARE), Requests(settings={**BARE_SETTINGS, "strategy": {"name": "parameter-server"}})
    assert gate.request(ALICE, run.start()) == Allowed()
    assert gate.request(ALICE, run.call(method, b"weights", **named)) == Refused(reasons.NOT_ALLOWED)
    gate.close()


@pytest.mark.parametrize("asked", [0, -1, 5, 10**30, 1.0, True, math.nan, None, "2", [2]])
def test_numbers_of_nodes_that_would_make_noise_small(tmp_path: Path, asked: Any) -> None:
    gate, run = gate_of(tmp_path, participants=count_keys), Requests()
    assert gate.request(ALICE, run.start()) == Allowed()
    assert gate.request(ALICE, run.call("take_part", asked)) == Refused(reasons.NOT_ALLOWED)
    gate.close()


def test_a_requester_that_no_policy_names_learns_nothing_of_the_rows(tmp_path: Path) -> None:
    stranger = Requester("eve", "e" * 64)
    seen = set()
    for number, rows in enumerate((0, 49, 500)):
        gate = gate_of(tmp_path / str(number), rows=lambda rows=rows: rows)
        seen |= {gate.request(stranger, call) for call in (Requests().start(), Requests().update())}
        gate.close()
    assert seen == {Refused(reasons.NOT_ALLOWED)}


@pytest.mark.parametrize(
    "method", ["wanted", "weights", "state", "coded", "train", "attack", "restore", "_load", "__class__"]
)
@pytest.mark.parametrize("private", [True, False])
def test_calls_that_would_show_rows_or_replicas(tmp_path: Path, method: str, private: bool) -> None:
    """The call ``wanted`` of sparse models names the rows of an embedding table that the node's next batches contain."""
    gate = gate_of(tmp_path, POLICY if private else BARE)
    run = Requests(settings=SETTINGS if private else BARE_SETTINGS)
    assert gate.request(ALICE, run.start()) == Allowed()
    assert gate.request(ALICE, run.call(method, 1)) == Refused(reasons.NOT_ALLOWED)
    gate.close()
