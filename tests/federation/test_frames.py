"""Frames of hostile members: none is read as something else, none reaches another member under a false name."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("websockets")

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from chimera.core.errors import DataError
from chimera.engines.federation.credentials import Credentials
from chimera.engines.federation.wire import frames, port
from chimera.engines.federation.wire.frames import (
    Acknowledged,
    Answer,
    BodyChunk,
    Budget,
    CallRequest,
    ConnectedNodes,
    Done,
    Heartbeat,
    Hello,
    Progress,
    Refused,
    Renew,
    Renewed,
    Revoked,
)
from chimera.engines.federation.wire.streams import Receiving, Sending
from chimera.engines.http import wire
from chimera.federation.policy.requests import Call, Decision, Requester
from chimera.federation.policy.requests import Refused as Rejected
from conformance.actors import Counter
from federation.federation_kit import LIMIT_S, AllowAll, Federation, federation, until

RUN, OTHER = "0" * 32, "1" * 32
ASK = CallRequest(RUN, 1, "node-0", "POST", "/v1/chimera/actors/x", "t", 0)
ANSWER = Answer(RUN, 1, "node-0", 200, "t", 0, 0)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_a_frame_or_a_data_error(data: bytes) -> None:
    with contextlib.suppress(DataError):
        frames.unpack(data)


@given(st.lists(st.one_of(st.none(), st.integers(), st.text(), st.binary(), st.lists(st.integers())), max_size=9))
def test_arbitrary_headers_are_a_frame_or_a_data_error(fields: list[Any]) -> None:
    with contextlib.suppress(OverflowError, UnicodeEncodeError):
        head = msgspec.msgpack.encode(fields)
        with contextlib.suppress(DataError):
            frames.unpack(len(head).to_bytes(2, "big") + head)


@pytest.mark.parametrize(
    "header",
    [
        Hello(1, "b", "v"), Hello(1, "b", "v", RUN), ConnectedNodes({"node-0": "b"}, ["node-1"]), Heartbeat(), ASK,
        BodyChunk(RUN, 1, "n", 3), Acknowledged(RUN, 1, "n", 3), ANSWER, Done(RUN, "n", 3, [5, 6]), Refused("no"),
        Revoked([b"x" * 32]), Progress(RUN, "fed-avg", "mlp", 3, 0.5), Renew(), Renewed("no"),
        Budget(1.5, None, 1e-5, "rows"),
    ],
    ids=lambda header: type(header).__name__,
)  # fmt: skip
def test_each_frame_is_read_as_it_was_written(header: Any) -> None:
    read, payload = frames.unpack(frames.pack(header, b"payload"))
    assert (read, bytes(payload)) == (header, b"payload")


@pytest.mark.parametrize("spent", [-1.0, float("nan"), float("inf"), "1"])
def test_an_epsilon_that_is_no_number_is_refused(spent: Any) -> None:
    with pytest.raises(DataError):
        frames.unpack(frames.pack(Budget(spent, 8.0, 1e-5, "rows")))


def test_a_later_version_may_append_fields() -> None:
    head = msgspec.msgpack.encode([5, RUN, 1, "n", 3, "a new field"])
    assert frames.unpack(len(head).to_bytes(2, "big") + head)[0] == BodyChunk(RUN, 1, "n", 3)


def test_a_frame_of_more_than_a_chunk_is_refused() -> None:
    frames.unpack(frames.pack(ASK, bytes(frames.CHUNK)))
    for wrong in (
        frames.pack(ASK, bytes(frames.CHUNK + 1)),
        frames.pack(ASK)[:10],
        b"",
        b"\0\0",
        b"\xff\xff" + bytes(9),
    ):
        with pytest.raises(DataError):
            frames.unpack(wrong)


@given(st.integers(0, 20 << 20), st.data())
def test_a_body_arrives_whatever_is_cut_and_repeated(size: int, data: Any) -> None:
    """The receiver confirms, the sender starts again from confirmations, and some of them are lost."""
    sending, got = Sending(size), 0
    for _ in range(40):
        for begin, end in sending.due():
            assert end - begin <= frames.CHUNK
            assert begin - got <= frames.WINDOW * frames.CHUNK
            if begin == got:
                got = end
        if data.draw(st.integers(0, 3)) == 0:
            sending = Sending(size)  # after a break
        sending.took(got)
    assert got == size


def test_a_body_takes_no_chunk_twice_and_none_out_of_order() -> None:
    body = Receiving(6)
    chunk = memoryview(b"abc")
    assert [body.take(3, chunk), body.take(0, chunk), body.take(0, chunk), body.take(4, chunk)] == [
        False,
        True,
        False,
        False,
    ]
    assert body.take(3, memoryview(b"defg")) is False
    assert body.take(3, memoryview(b"def"))
    assert bytes(body.body()) == b"abcdef"


class Hostile:
    """A member that sends any frames."""

    def __init__(self, place: Federation, credentials: Credentials, run: str = "") -> None:
        opened = connect(credentials.websocket(), ssl=credentials.tls(), close_timeout=0.1, max_size=1 << 22)
        self.connection = place.stack.enter_context(opened)
        self.send(Hello(frames.PROTOCOL, "hostile", "v", run))
        self.first = self.receive()

    def send(self, header: Any, payload: bytes = b"") -> None:
        self.connection.send(frames.pack(header, payload))

    def receive(self) -> Any:
        return frames.unpack(self.connection.recv(LIMIT_S))[0]  # type: ignore[arg-type]

    def end(self) -> str:
        """Return why the hub closes the connection."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                if isinstance(header := self.receive(), Refused):
                    return header.reason
        return ""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Federation]:
    with federation(tmp_path, "node-0") as made:
        made.join("node", "mallory")
        made.join("requester", "eve")
        yield made


def works(place: Federation) -> bool:
    with place.engine(nodes=["node-0"]) as engine:
        return bool(engine.get(engine.spawn(Counter, 40).add(2), LIMIT_S) == 42)


def test_frames_that_a_role_may_not_send_end_its_connection(place: Federation, tmp_path: Path) -> None:
    node, driver = (
        Credentials.read(tmp_path / name, role) for name, role in (("mallory", "node"), ("eve", "requester"))
    )
    for wrong in (
        ASK,
        ANSWER,
        Acknowledged(RUN, 1, "node-0", 1),
        Done(RUN, "mallory", 1),
        Hello(1, "b", "v"),
        ConnectedNodes({}),
        Refused("x"),
        Revoked([b"x" * 32]),
        Renewed(),
        Progress(RUN, "fed-avg", "mlp", 3),
    ):
        hostile = Hostile(place, node)
        hostile.send(wrong)
        assert "not allowed" in hostile.end(), wrong
    for wrong in (
        ANSWER,
        msgspec.structs.replace(ASK, run=OTHER),
        Done(OTHER, "node-0", 1),
        ConnectedNodes({}),
        Hello(1, "b", "v", RUN),
        Revoked([b"x" * 32]),
        Progress(OTHER, "fed-avg", "mlp", 3),
        Budget(1.0, 8.0, 1e-5, "rows"),
    ):
        hostile = Hostile(place, driver, RUN)
        hostile.send(wrong)
        assert "not allowed" in hostile.end(), wrong
    for garbage in (b"", os.urandom(50), b"\xff" * 100):
        hostile = Hostile(place, driver, RUN)
        hostile.connection.send(garbage)
        assert "not allowed" in hostile.end()
    assert works(place)


def test_a_request_for_a_certificate_that_cannot_be_read_is_answered(place: Federation, tmp_path: Path) -> None:
    place.hub.state._clock = lambda: time.time() + 250 * 86_400.0
    for payload in (b"", b"\xff" * 1000, b"x" * frames.CHUNK):
        hostile = Hostile(place, Credentials.read(tmp_path / "mallory", "node"))
        for reason in ("a request for a certificate|cannot be read", "a moment ago"):
            hostile.send(Renew(), payload)
            answer = hostile.receive()
            assert isinstance(answer, Renewed)
            assert re.search(reason, answer.reason), answer
    assert works(place)


@pytest.mark.parametrize("ask", [Heartbeat(), Renew()])
def test_a_member_that_reads_no_answer_does_not_fill_the_memory_of_the_hub(
    ask: Any, place: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port, "MAX_QUEUED_BYTES", 1 << 20)
    place.join("node", "node-1")
    node, other = (Hostile(place, Credentials.read(tmp_path / name, "node")) for name in ("mallory", "node-1"))
    driver = Hostile(place, Credentials.read(tmp_path / "eve", "requester"), RUN)  # reads nothing after the greeting
    waiting = place.hub._relay.drivers[RUN].port

    def fill() -> None:
        with contextlib.suppress(ConnectionClosed):
            for _ in range(64):
                node.send(msgspec.structs.replace(ANSWER, node="mallory"), bytes(frames.CHUNK))

    threading.Thread(target=fill, daemon=True).start()
    until(lambda: waiting.full)
    for _ in range(100):
        driver.send(ask)
    driver.send(msgspec.structs.replace(ASK, node="node-1"))
    assert isinstance(other.receive(), CallRequest)  # the hub has handled all frames before this one
    assert {type(frames.unpack(frame)[0]) for frame in waiting._frames.copy()} <= {Answer}


def test_the_hub_states_the_requester_whatever_the_driver_claims(place: Federation, tmp_path: Path) -> None:
    place.join("node", "node-1")
    node = Hostile(place, Credentials.read(tmp_path / "node-1", "node"))
    driver = Hostile(place, Credentials.read(tmp_path / "eve", "requester"), RUN)
    driver.send(msgspec.structs.replace(ASK, node="node-1", requester="alice", fingerprint="f" * 64))
    asked = node.receive()
    assert (asked.requester, len(asked.fingerprint), asked.fingerprint == "f" * 64) == ("eve", 64, False)
    assert driver.first.nodes.keys() == {"node-0", "node-1"}


def test_another_driver_cannot_take_over_a_run(place: Federation, tmp_path: Path) -> None:
    with place.engine("alice", nodes=["node-0"]) as engine:
        counter = engine.spawn(Counter, 40)
        engine.get(counter.add(1), LIMIT_S)
        refused = Hostile(place, Credentials.read(tmp_path / "eve", "requester"), engine.key).first
        assert refused == Refused("this run belongs to another driver")
        assert engine.get(counter.add(1), LIMIT_S) == 42


def test_a_driver_reaches_no_actor_of_another_run_whatever_its_path_names(place: Federation, tmp_path: Path) -> None:
    """The query of a path names the driver's own run, and the path an actor of another one."""
    with place.engine("alice", nodes=["node-0"]) as engine:
        counter = engine.spawn(Counter, 40)
        engine.get(counter.add(1), LIMIT_S)
        driver = Hostile(place, Credentials.read(tmp_path / "eve", "requester"), RUN)
        name = f"/v1/chimera/actors/{engine.key}.0"
        asks = [
            (verb, f"{path}{query}")
            for query in (f"?engine={RUN}", f"?engine={RUN}&engine={engine.key}", f"?x=%2f&engine={RUN}")
            for verb, path in (("POST", f"{name}/add"), ("POST", name), ("GET", name), ("DELETE", name))
        ]
        body = wire.pack({"call": [[1], {}], "kind": "conformance.actors.Counter"})
        answers = {}
        for number, (verb, path) in enumerate(asks, 1):
            driver.send(CallRequest(RUN, number, "node-0", verb, path, wire.CONTENT_TYPE, len(body)), body)  # type: ignore[arg-type]
            while not isinstance(header := driver.receive(), Answer):
                pass
            answers[verb, path] = header.status
        assert answers == dict.fromkeys(answers, 403)
        assert engine.get(counter.add(1), LIMIT_S) == 42


def test_a_node_survives_calls_that_claim_large_bodies(place: Federation, tmp_path: Path) -> None:
    """Memory is used as chunks arrive, and the sum of the claims is bounded."""
    driver = Hostile(place, Credentials.read(tmp_path / "eve", "requester"), RUN)
    for number in range(1, 10):
        driver.send(msgspec.structs.replace(ASK, number=number, size=1 << 30), b"x")
    statuses = []
    while len(statuses) < 7:
        if isinstance(header := driver.receive(), Answer):
            statuses.append(header.status)
    assert statuses == [503] * 7
    driver.send(msgspec.structs.replace(ASK, number=99, size=1 << 52), b"x")
    while not isinstance(header := driver.receive(), Answer):
        pass
    assert header.status == 503
    assert works(place)


def test_refused_calls_leave_nothing_in_the_store_of_a_node(place: Federation, tmp_path: Path) -> None:
    """A requester that the policy does not know could fill the disk: it need not confirm any answer."""

    class Refusing(AllowAll):
        def request(self, requester: Requester, call: Call) -> Decision:
            return Rejected("not this one")

    place.node("node-1", Refusing())
    driver = Hostile(place, Credentials.read(tmp_path / "eve", "requester"), RUN)
    actor = f"/v1/chimera/actors/{RUN}.0"
    for number, path in enumerate((actor, f"{actor}/add"), 1):
        driver.send(CallRequest(RUN, number, "node-1", "POST", path, wire.CONTENT_TYPE, 0))
    statuses = {}
    while len(statuses) < 2:
        if isinstance(header := driver.receive(), Answer):
            statuses[header.number] = header.status
    assert statuses == {1: 403, 2: 404}
    with closing(sqlite3.connect(tmp_path / "node-1" / "answers.sqlite")) as db:
        assert db.execute("SELECT count(*) FROM calls").fetchone() == (0,)


def test_a_node_bounds_the_bodies_that_wait_for_its_policy(place: Federation, tmp_path: Path) -> None:
    """A requester that the policy refuses can send bodies faster than a disk records refusals."""
    decided = threading.Event()

    class Slow(AllowAll):
        def request(self, requester: Requester, call: Call) -> Decision:
            assert decided.wait(LIMIT_S)
            return Rejected("not this one")

    place.node("node-1", Slow())
    driver = Hostile(place, Credentials.read(tmp_path / "eve", "requester"), RUN)
    body = bytes(1 << 17)
    statuses = []
    for number in range(1, 265):
        path = f"/v1/chimera/actors/{RUN}.0"
        driver.send(CallRequest(RUN, number, "node-1", "POST", path, "t", len(body)), body)
    driver.send(CallRequest(RUN, 999, "node-1", "GET", "/health", "t", 0))
    while not isinstance(header := driver.receive(), Answer) or header.number != 999:
        if isinstance(header, Answer):
            statuses.append(header.status)
    decided.set()
    assert statuses == [503] * 8


def test_paths_that_are_no_routes_are_answered(place: Federation, tmp_path: Path) -> None:
    driver = Hostile(place, Credentials.read(tmp_path / "eve", "requester"), RUN)
    paths = [
        "/",
        "/v1/chimera/actors",
        "/v1/chimera/actors/..%2f..",
        f"/v1/chimera/actors/{RUN}.0/__init__",
        "//x",
        "?engine=",
        "x" * 900,
    ]
    for number, path in enumerate(paths, 1):
        driver.send(msgspec.structs.replace(ASK, number=number, path=path))
        while not isinstance(header := driver.receive(), Answer):
            pass
        assert 400 <= header.status < 500, path
    assert works(place)
