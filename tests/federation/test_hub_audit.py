"""The audit log of a hub: a line for each call, and for each change of its members."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("websockets")

from chimera.cli.main import app
from chimera.core.errors import NoSpaceError
from chimera.engines.federation.wire.frames import Answer, CallRequest, Done
from chimera.federation.audit import log
from chimera.federation.audit.verify import verify
from chimera.federation.hub import traffic
from chimera.federation.hub.invite import invite
from chimera.federation.hub.traffic import Traffic
from chimera.federation.identity.authority import fingerprint_of
from chimera.federation.identity.join import join
from conformance.actors import Counter, Holder
from federation.federation_kit import LIMIT_S, federation

RUN = "0" * 32


def entries(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line)["entry"] for line in (folder / log.FILE_NAME).read_text().splitlines()]


def test_each_call_has_a_line_with_its_requester_and_its_bytes(tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    array = np.zeros(1_000_000, np.float32)  # several chunks
    with federation(tmp_path, "a", "b") as place:
        with place.engine(nodes=["a", "b"]) as engine:
            counters = [engine.spawn(Counter), engine.spawn(Holder, array)]
            assert engine.get([counters[0].add(2), counters[0].add(3)], LIMIT_S) == [2, 5]
            assert len(engine.get(counters[1].value(), LIMIT_S)) == len(array)
        place.stop_hub()
        alice = fingerprint_of((tmp_path / "alice" / "certificate.pem").read_bytes()).hex()
        assert verify(hub).unwritten == 0
        relayed = [entry for entry in entries(hub) if entry["decision"] == "relayed"]
        assert {(entry["requester"], entry["fingerprint"]) for entry in relayed} == {("alice", alice)}
        assert [entry["method"] for entry in relayed if entry["method"] != "create"].count("add") == 2
        (create,) = (entry for entry in relayed if entry["method"] == "create" and entry["bytes_in"] > array.nbytes)
        (value,) = (entry for entry in relayed if entry["method"] == "value")
        assert value["bytes_out"] > array.nbytes > value["bytes_in"]
        assert create["node"] == value["node"]
        assert len({(entry["run"], entry["node"], entry["number"]) for entry in relayed}) == len(relayed) >= 5


def test_invitations_joins_and_revocations_have_lines(tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    with federation(tmp_path) as place:
        url, code = invite(hub, "node", "hospital-a")
        member = join(url, code, tmp_path / "a")
        assert CliRunner().invoke(app, ["hub", "revoke", "hospital-a", "--folder", str(hub)]).exit_code == 0
        place.stop_hub()
    said = sorted(entries(hub), key=lambda entry: ["invited", "joined", "revoked"].index(entry["decision"]))
    assert [(entry["decision"], entry["kind"], entry["node"]) for entry in said] == [
        (decision, "node", "hospital-a") for decision in ("invited", "joined", "revoked")
    ]
    own = fingerprint_of((member.folder / "certificate.pem").read_bytes()).hex()
    assert [entry["fingerprint"] for entry in said] == ["", own, own]
    assert code not in (hub / log.FILE_NAME).read_text()
    assert verify(hub).lines == 3


@pytest.mark.long
def test_a_hub_ends_when_its_audit_log_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with federation(tmp_path, "a") as place:
        with place.engine(nodes=["a"]) as engine:
            counter = engine.spawn(Counter)
            engine.get(counter.add(1), LIMIT_S)

            def full(*_: object) -> int:
                raise OSError(28, "No space left on device")

            monkeypatch.setattr(log.os, "write", full)
            counter.add(2)
            assert isinstance(place.running_hub.ended(), NoSpaceError)
            monkeypatch.undo()
            place.start_hub()
            assert engine.get(counter.add(3), LIMIT_S) == 6
        place.stop_hub()
    verify(tmp_path / "hub")


def ask(number: int, run: str = RUN) -> CallRequest:
    return CallRequest(run, number, "a", "POST", "/v1/chimera/actors/x/step", "t", 10, 0, "alice", "f")


def test_each_call_of_a_request_has_a_line() -> None:
    said: list[tuple[Any, ...]] = []
    keys = "number", "method", "bytes_in", "bytes_out"
    passes = Traffic(lambda decision, **entry: said.append((decision, *(entry[key] for key in keys))))
    for number, methods in ((1, "step,tally"), (3, ",".join(["step"] * 17))):
        request = CallRequest(RUN, number, "a", "POST", f"/v1/chimera/actors/x/{methods}", "t", 10, 0, "alice", "f")
        passes.passed(request, 10)
        passes.passed(Answer(RUN, number, "a", 200, "t", 7, 0), 7)
    assert said[:2] == [("relayed", 1, "step", 10, 7), ("relayed", 2, "tally", 0, 0)]
    assert said[2:] == [("relayed", 3, ",".join(["step"] * 17)[:100], 10, 7)]  # nodes refuse so many
    assert passes.runs[RUN].calls == 3


def test_calls_without_an_answer_have_lines_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "_MAX_OPEN", 3)
    monkeypatch.setattr(traffic, "_MAX_DISCONNECTED_RUNS", 2)
    said: list[tuple[str, int]] = []
    passes = Traffic(lambda decision, **entry: said.append((decision, entry["number"])))
    for number in range(5):
        passes.passed(ask(number), 10)
    assert said == [("unanswered", 0), ("unanswered", 1)]
    passes.passed(Answer(RUN, 3, "a", 200, "t", 7, 0), 7)
    passes.passed(Done(RUN, "a", 4, [2, 3]), 0)
    assert said[2:] == [("relayed", 3), ("unanswered", 2)]
    run = passes.runs[RUN]
    assert (run.calls, run.bytes_in, run.bytes_out) == (1, 40, 7)
    for other in range(1, 5):
        passes.passed(ask(9, f"{other:032x}"), 10)
    passes.drop_disconnected_runs({RUN}, 1.0)
    assert len(passes.runs) == 3
    passes.drop_disconnected_runs({RUN}, 1000.0)
    assert list(passes.runs) == [RUN]
    passes.passed(ask(7), 10)
    passes.close()
    assert said[-1] == ("unanswered", 7)
