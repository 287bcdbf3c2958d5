"""Requests with several calls: each call is decided about, run and recorded as one in a request of its own."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("websockets")

from chimera.core.errors import ActorError
from chimera.engines.federation.credentials import Credentials
from chimera.engines.federation.wire import frames
from chimera.engines.federation.wire.frames import Answer, CallPending, CallRequest, Done
from chimera.engines.http import wire
from chimera.engines.http.hosting.host import ReadBody
from chimera.engines.http.hosting.hosted_actor import Reply
from chimera.federation.audit.verify import verify
from chimera.federation.node import service
from chimera.federation.node.gated_request import GatedRequest
from chimera.federation.policy.reading import CallReader
from chimera.federation.policy.requests import Allowed, Call, Decision, Later, Refused, Requester, Spending
from chimera.federation.policy.rules import LEARNER
from conformance.actors import BriefCounter
from federation.federation_kit import LIMIT_S, AllowAll, Federation, federation
from federation.policy_kit import ALICE, BARE, BARE_SETTINGS, Requests, gate_of
from federation.processes import Cutter, Summer, summer
from federation.test_exactly_once import Direct, at, logged
from federation.test_frames import RUN, Hostile


class Waiting:
    """An actor of the driver whose call waits."""

    hosted = False
    opened = threading.Event()

    def number(self, number: int) -> int:
        assert self.opened.wait(LIMIT_S)
        return number


class Noting(AllowAll):
    """A gate that notes calls and answers, and decides otherwise about some numbers once."""

    def __init__(self, **others: Decision) -> None:
        self.calls: list[tuple[str, int]] = []
        self.answers: list[tuple[str, int]] = []
        self.others = others

    def request(self, requester: Requester, call: Call) -> Decision:
        if other := self.others.pop(call.method, None):
            return other
        self.calls.append((call.method, call.number))
        return Allowed()

    def answer(self, requester: Requester, call: Call, answer_bytes: int, spent: Spending) -> Decision:
        self.answers.append((call.method, call.number))
        return Allowed()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Federation]:
    Waiting.opened.clear()
    with federation(tmp_path) as made:
        yield made


def paths_of_three_calls(place: Federation, gate: Noting) -> list[str]:
    """Make three calls that can share a request; return the last parts of the paths of all requests."""
    paths = list[str]()
    place.node(place.join("node", "node-0"), gate)
    with place.engine(nodes=["node-0"], on_answer=lambda url, _: paths.append(url.rpartition("/")[2])) as engine:
        counter, waiting = engine.spawn(BriefCounter), engine.spawn(Waiting)
        refs = [counter.add(waiting.number(1)), counter.history(), counter.add(2)]
        Waiting.opened.set()
        assert engine.get(refs, LIMIT_S) == [1, [0, 1], 3]
        assert engine.get(counter.history(), LIMIT_S) == [0, 1, 2]  # by then, earlier answers are reported
    return paths


def test_each_call_has_a_number_and_a_decision_of_its_own(place: Federation) -> None:
    gate = Noting()
    paths = paths_of_three_calls(place, gate)
    assert "add,history,add" in paths
    numbers = [number for _, number in gate.calls]
    assert [method for method, _ in gate.calls] == ["__init__", "add", "history", "add", "history"]
    assert numbers == sorted(set(numbers))
    assert gate.calls == gate.answers


def test_a_refused_call_does_not_run_and_the_others_do(place: Federation) -> None:
    gate = Noting(add=Refused("not this one"))
    place.node(place.join("node", "node-0"), gate)
    with place.engine(nodes=["node-0"]) as engine:
        counter, waiting = engine.spawn(BriefCounter), engine.spawn(Waiting)
        refused, *others = counter.add(waiting.number(1)), counter.history(), counter.add(2)
        Waiting.opened.set()
        assert engine.get(others, LIMIT_S) == [[0], 2]
        with pytest.raises(ActorError, match="not this one"):
            engine.get(refused)


def test_calls_that_have_to_wait_after_one_that_runs_are_sent_again(place: Federation) -> None:
    """A request that has begun never waits at the node, where nothing but its number would identify it."""
    gate = Noting(history=Later("hours", 1))
    paths = paths_of_three_calls(place, gate)
    assert [method for method, _ in gate.calls] == ["__init__", "add", "history", "add", "history"]
    assert gate.calls == gate.answers
    assert [path for path in paths if "add" in path or "history" in path][:2] == ["add,history,add", "history,add"]


class Driver(Hostile):
    """A driver that sends any requests to ``node-0``."""

    path = "/v1/chimera/actors"

    def ask(self, number: int, path: str, content: Any, verb: Any = "POST") -> tuple[Any, memoryview]:
        """Return the first report or answer to a request: its header and payload."""
        body = wire.pack(content)
        self.send(CallRequest(RUN, number, "node-0", verb, f"{self.path}{path}", wire.CONTENT_TYPE, len(body)), body)
        while True:
            header, payload = frames.unpack(self.connection.recv(LIMIT_S))  # type: ignore[arg-type]
            if isinstance(header, Answer | CallPending) and header.number == number:
                return header, payload


KIND = f"{BriefCounter.__module__}.{BriefCounter.__qualname__}"


def test_no_call_runs_that_the_gate_has_not_read(place: Federation, tmp_path: Path) -> None:
    """A driver gives up a request whose second call waits, and sends other arguments with its number."""
    given: list[Any] = []

    class Reading(Noting):
        def request(self, requester: Requester, call: Call) -> Decision:
            given.extend(call.given)
            return super().request(requester, call)

    place.node(place.join("node", "node-0"), Reading(history=Later("hours", 3600)))
    place.join("requester", "eve")
    driver = Driver(place, Credentials.read(tmp_path / "eve", "requester"), RUN)
    history = {"call": [[], {}]}
    driver.ask(1, f"/{RUN}.0", {"call": [[0], {}], "kind": KIND})
    driver.ask(2, f"/{RUN}.0/add,history", {"calls": [{"call": [[1], {}]}, history]})
    driver.send(Done(RUN, "node-0", 3, [2]))
    driver.ask(2, f"/{RUN}.0/add,history", {"calls": [{"call": [[100], {}]}, history]})
    header, payload = driver.ask(5, f"/{RUN}.0/history", history)
    assert header.status == 200
    assert wire.unpack(payload)["values"] == [given]


def test_requests_that_wait_are_counted_also_if_their_number_is_used_again(
    place: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Closed(AllowAll):
        def request(self, requester: Requester, call: Call) -> Decision:
            return Later("hours", 3600)

    monkeypatch.setattr(service, "_MAX_WAITING", 2)
    place.node(place.join("node", "node-0"), Closed())
    place.join("requester", "eve")
    driver = Driver(place, Credentials.read(tmp_path / "eve", "requester"), RUN)
    reports = []
    for _ in range(3):
        reports.append(driver.ask(1, f"/{RUN}.0", {"call": [[0], {}], "kind": KIND})[0])
        driver.send(Done(RUN, "node-0", 1, [1]))
    assert [type(report) for report in reports] == [CallPending, CallPending, Answer]
    assert reports[-1].status == 503


def test_a_name_with_a_slash_reaches_no_other_actor(place: Federation, tmp_path: Path) -> None:
    """A request without its refused calls is sent to the host by another path."""
    place.node(place.join("node", "node-0"), Noting(history=Refused("not this one")))
    place.join("requester", "eve")
    driver = Driver(place, Credentials.read(tmp_path / "eve", "requester"), RUN)
    driver.ask(1, f"/{RUN}%2Fz/history,add", {"calls": [{"call": [[1], {}], "kind": KIND}] * 2})
    _, payload = driver.ask(2, f"?engine={RUN}", {}, "GET")
    assert json.loads(bytes(payload))["actors"] == {}


def test_the_size_of_a_request_is_that_of_the_first_call_that_is_not_refused() -> None:
    sizes: list[int] = []

    class Sized(Noting):
        def request(self, requester: Requester, call: Call) -> Decision:
            sizes.append(call.size)
            return super().request(requester, call)

    calls = [Call("r", number, LEARNER, method, size=size) for number, method, size in
             ((1, "delta", 90), (2, "weights", 0), (3, "tally", 0), (4, "step", 0))]  # fmt: skip
    GatedRequest(Sized(delta=Refused("no"), weights=Refused("no")), ALICE, calls).decide()
    assert sizes == [90, 90, 90, 0]


def test_cuts_at_random_bytes_repeat_no_call_of_a_request(tmp_path: Path) -> None:
    vector, last = np.random.default_rng(1).normal(size=1000), 40
    direct, paths = Direct(tmp_path / "truth", 1), list[str]()
    truth = [direct.round(number, vector)[0] for number in range(last)]
    with federation(tmp_path) as place:
        cutter = Cutter(place.url, 7, 6, 100_000)
        try:
            place.join("requester", "alice")
            place.node(at(place.join("node", "node-0"), cutter.url), kinds=summer(tmp_path / "log"))
            note = lambda url, _: paths.append(url)  # noqa: E731
            with place.engine(hub=cutter.url, nodes=["node-0"], health_every_s=0.2, on_answer=note) as engine:
                actor = engine.spawn(Summer, 0, "0")
                found = [engine.get([actor.step(vector, f"0.{n + i}") for i in range(4)], LIMIT_S)
                         for n in range(0, last, 4)]  # fmt: skip
        finally:
            cutter.stop()
    assert cutter.cuts >= 3
    assert any(path.endswith("step,step") for path in paths)
    assert np.array_equal(np.concatenate(found), truth)
    assert logged(tmp_path / "log") == logged(tmp_path / "truth")


def reply(rows: int) -> Reply:
    cost = {"bytes_in": 0, "bytes_out": [0], "samples": rows, "lasted_s": 0.0}
    return Reply(200, wire.CONTENT_TYPE, wire.pack({"cost": cost, "values": [wire.Packed(wire.pack(None))]}), rows)


def test_a_policy_counts_and_records_each_call(tmp_path: Path) -> None:
    gate, run = gate_of(tmp_path, BARE), Requests(settings=BARE_SETTINGS)
    calls = [run.start(), run.update(), run.call("tally"), run.call("step")]
    for request in (calls[:1], calls[1:]):
        gated = GatedRequest(gate, ALICE, request)
        assert gated.decide() is None
        left = gated.reply(Reply.joined([reply(rows=160) for _ in request]))
        assert {part.status for part in left.parts or (left,)} == {200}
    gate.close()
    lines = [json.loads(line)["entry"] for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    expected = [("__init__", 1), ("delta", 2), ("tally", 3), ("step", 4)]
    assert [(line["method"], line["number"]) for line in lines] == expected
    assert {line["decision"] for line in lines} == {"released"}
    assert verify(tmp_path).lines == 4


def test_a_call_that_the_policy_does_not_know_leaves_the_others(tmp_path: Path) -> None:
    gate, run = gate_of(tmp_path, BARE), Requests(settings=BARE_SETTINGS)
    begin = GatedRequest(gate, ALICE, [run.start()])
    begin.decide()
    begin.reply(reply(rows=0))
    gated = GatedRequest(gate, ALICE, [run.update(), run.call("weights"), run.call("tally")])
    assert gated.decide() is None
    parts = [{"call": [[], {}], "returns": place} for place in range(3)]
    allowed = gated.allowed("delta,weights,tally", ReadBody({"calls": parts}, 10))
    assert allowed == ("delta,tally", ReadBody({"calls": [parts[0], parts[2]]}, 10))
    left = gated.reply(Reply.joined([reply(rows=160), reply(rows=0)]))
    assert [part.status for part in left.parts] == [200, 403, 200]
    gate.close()


@pytest.mark.parametrize("body", [{"calls": [{}]}, {"calls": [{}, 1]}, {}, {"call": [[], {}]}])
def test_a_request_that_cannot_be_read_is_a_call_of_no_kind(body: Any) -> None:
    reader = CallReader()
    reader.read("r", 1, "r.0", "", wire.pack({"kind": LEARNER, "call": [[], {}]}))
    (call,) = reader.read_all("r", 2, "r.0", "delta,tally", wire.pack(body))
    assert (call.kind, call.method, call.number) == ("", "delta,tally", 2)


def test_sizes_of_a_request_are_counted_once() -> None:
    reader = CallReader()
    reader.read("r", 1, "r.0", "", wire.pack({"kind": LEARNER, "call": [[], {}]}))
    body = wire.pack({"calls": [{"call": [[], {"steps": 1}]}, {"call": [[], {}]}]})
    calls = reader.read_all("r", 7, "r.0", "delta,tally", body)
    assert [(call.kind, call.method, call.number, call.named) for call in calls] == [
        (LEARNER, "delta", 7, {"steps": 1}), (LEARNER, "tally", 8, {})
    ]  # fmt: skip
    assert [call.size for call in calls] == [len(body), 0]
