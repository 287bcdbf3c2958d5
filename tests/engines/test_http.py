"""Promises of the http engine beyond the kit: nodes that die, hang or send invalid answers, and cleanup."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("fastapi")

from chimera.core.address import Address
from chimera.core.engine import Disturbance
from chimera.core.errors import ActorError, ActorLost, ConfigurationError, RunError, TimeLimitError
from chimera.engines.http import HttpEngine, Route, wire
from chimera.engines.http.channels.hosted_channel import HostedChannel
from chimera.engines.http.connection import JSON, Connection
from chimera.engines.http.failure import Refusal
from chimera.engines.http.hosting.host import Host
from chimera.engines.http.hosting.hosted_actor import Reply
from conformance.actors import Counter, Holder, Member, Relay
from conformance.node import NodeProcess, start_node
from nodes.cluster import foreign_worker

LIMIT_S, KNOWN_WITHIN_S = 30.0, 3.0


@pytest.fixture(scope="module")
def node() -> Iterator[NodeProcess]:
    started = start_node()
    started.url()
    yield started
    started.stop()


@pytest.fixture
def killed_node() -> Iterator[NodeProcess]:
    """Start a node for one test, which kills it."""
    started = start_node()
    started.url()
    yield started
    started.stop()


def actors_on(url: str, engine: str) -> dict[str, Any]:
    connection = Connection(Address.of(url), None, None, 1 << 20)
    path = f"/v1/chimera/actors?engine={engine}"
    answer = connection.request("GET", path, timeout_s=LIMIT_S, idempotent=True)
    connection.close()
    import msgspec

    return dict(msgspec.json.decode(answer.body)["actors"])


def test_actors_go_to_the_node_that_has_fewest(node: NodeProcess, killed_node: NodeProcess) -> None:
    with HttpEngine(nodes=[node.url(), killed_node.url()]) as engine:
        pids = engine.get([engine.spawn(Relay).pid() for _ in range(4)], LIMIT_S)
        assert pids == [node.process.pid, killed_node.process.pid] * 2


def test_the_death_of_a_node_is_known_soon_also_to_the_idle(killed_node: NodeProcess, node: NodeProcess) -> None:
    with HttpEngine(nodes=[killed_node.url(), node.url()]) as engine:
        busy, other, idle = (engine.spawn(Relay, name=name) for name in ("busy", "other", "idle"))
        engine.get([busy.echo(1), other.echo(1), idle.echo(1)], LIMIT_S)
        hung = busy.wait_for_ever(0)
        dependent = other.echo(hung)
        killed_node.process.kill()
        for ref in (hung, dependent):
            with pytest.raises(ActorLost, match=f"busy at {killed_node.url()}"):
                engine.get(ref, KNOWN_WITHIN_S)
        until_s = time.monotonic() + KNOWN_WITHIN_S
        while len(engine.lost()) < 2 and time.monotonic() < until_s:
            engine.wait([other.wait_for_ever(0)] if not engine.lost() else [hung], timeout_s=0.05)
        assert sorted(actor.name for actor in engine.lost()) == ["busy", "idle"]
        assert killed_node.url() in engine.death_cause(idle)
        assert engine.get(engine.spawn(Counter).add(2), LIMIT_S) == 2  # on the living node


def test_a_node_that_has_forgotten_an_actor_has_lost_it(node: NodeProcess) -> None:
    with HttpEngine(nodes=[node.url()], health_every_s=0.1) as engine:
        called, idle = engine.spawn(Relay), engine.spawn(Relay)
        engine.get([called.echo(1), idle.echo(1)], LIMIT_S)
        connection = Connection(Address.of(node.url()), None, None, 1 << 20)
        connection.request("DELETE", f"/v1/chimera/actors?engine={engine.key}", timeout_s=LIMIT_S, idempotent=True)
        connection.close()
        with pytest.raises(ActorLost, match="does not know it"):
            engine.get(called.echo(2), LIMIT_S)
        until_s = time.monotonic() + KNOWN_WITHIN_S
        while idle not in engine.lost() and time.monotonic() < until_s:
            threading.Event().wait(0.02)
        assert idle in engine.lost()


def test_closing_and_killing_leaves_no_actor_on_the_node(node: NodeProcess) -> None:
    with HttpEngine(nodes=[node.url()]) as engine:
        first, second = engine.spawn(Holder), engine.spawn(Holder)
        engine.get([first.value(), second.value()], LIMIT_S)
        assert len(actors_on(node.url(), engine.key)) == 2
        engine.kill(first)
        until_s = time.monotonic() + LIMIT_S
        while len(actors_on(node.url(), engine.key)) > 1 and time.monotonic() < until_s:
            pass
        assert len(actors_on(node.url(), engine.key)) == 1
    assert actors_on(node.url(), engine.key) == {}


def test_closing_leaves_no_thread_and_no_socket(node: NodeProcess) -> None:
    def now() -> tuple[set[str], int]:
        threads = {thread.name for thread in threading.enumerate()}
        return threads, len([1 for entry in Path("/proc/self/fd").iterdir()])

    def run() -> None:
        with HttpEngine(nodes=[node.url()]) as engine:
            relays = [engine.spawn(Relay) for _ in range(3)]
            engine.get([relay.plus(np.zeros(1000)) for relay in relays], LIMIT_S)
            relays[0].wait_for_ever(0)
            engine.kill(relays[1])

    run()
    before = now()
    run()
    assert now() == before


def test_ctrl_c_ends_the_driver_and_its_actors(node: NodeProcess, tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from chimera.engines.http import HttpEngine\n"
        "from conformance.actors import Relay\n"
        "with HttpEngine(nodes=[sys.argv[1]]) as engine:\n"
        "    relay = engine.spawn(Relay)\n"
        "    engine.get(relay.echo(1))\n"
        "    print(engine.key, flush=True)\n"
        "    engine.get(relay.wait_for_ever(0))\n"
    )
    paths = [str(Path(__file__).parents[1]), *sys.path]
    driver = subprocess.Popen(
        [sys.executable, "-c", script, node.url()],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    key = driver.stdout.readline().strip()
    assert len(actors_on(node.url(), key)) == 1
    driver.send_signal(signal.SIGINT)
    _, errors = driver.communicate(timeout=LIMIT_S)
    assert "KeyboardInterrupt" in errors
    assert actors_on(node.url(), key) == {}


def replied(ask: Any) -> Reply:
    came: list[Reply] = []
    there = threading.Event()

    def done(reply: Reply) -> None:
        came.append(reply)
        there.set()

    ask(done)
    assert there.wait(LIMIT_S)
    return came[0]


def test_a_node_forgets_the_actors_of_a_driver_that_is_gone() -> None:
    with contextlib.closing(Host({"counter": Counter}, forget_after_s=0.2)) as host:
        for name in ("gone.0", "there.0"):
            replied(lambda done, name=name: host.create(name, wire.pack({"kind": "counter"}), done))
        until_s = time.monotonic() + LIMIT_S
        while host.actors("there") and host.actors_of_all() > 1 and time.monotonic() < until_s:
            threading.Event().wait(0.01)
        assert (host.actors("gone"), list(host.actors("there"))) == ({}, ["there.0"])


def test_a_call_that_arrives_after_the_end_of_its_actor_is_answered() -> None:
    with contextlib.closing(Host({"counter": Counter})) as host:
        made = threading.Event()
        host.create("e.0", wire.pack({"kind": "counter"}), lambda _: made.set())
        assert made.wait(LIMIT_S)
        hosted = host._actors["e.0"]
        host.kill("e.0")
        replies: list[Any] = []
        hosted.ask("add", {}, replies.append)  # as by a thread that found the actor just before
        assert [reply.status for reply in replies] == [404]


def test_calls_of_unknown_actors_leave_nothing_in_a_node() -> None:
    with contextlib.closing(Host({"counter": Counter})) as host:
        for number in range(100):
            with pytest.raises(ActorLost):
                host.call(f"engine{number}-0", "count", wire.pack({"args": [], "kwargs": {}}), lambda _: None)
        assert host._last_received_s == {}


def test_only_the_classes_on_the_list_and_their_public_methods_are_for_strangers() -> None:
    with contextlib.closing(Host({"counter": Counter}, max_actors=1)) as host:
        for kind in ("builtins.eval", None, 7):
            with pytest.raises(ConfigurationError, match="counter"):
                host.create("e.0", wire.pack({"kind": kind}), print)
        for name in ("", "../e", "e/0", "e" * 300):
            with pytest.raises(ConfigurationError, match="name"):
                host.create(name, wire.pack({"kind": "counter"}), print)
        assert replied(lambda done: host.create("e.0", wire.pack({"kind": "counter"}), done)).status == 200
        with pytest.raises(ConfigurationError, match="taken"):
            host.create("e.0", wire.pack({"kind": "counter"}), print)
        with pytest.raises(ConfigurationError, match="1 already"):
            host.create("e.1", wire.pack({"kind": "counter"}), print)
        for method in ("__init__", "_private", "a.b", "__class__"):
            with pytest.raises(ConfigurationError, match="from outside"):
                host.call("e.0", method, wire.pack({}), print)
        with pytest.raises(ActorLost):
            host.call("e.7", "add", wire.pack({}), print)


class Tempting:
    """An actor that holds functions; a driver may call neither of them."""

    system = os.system

    def __init__(self) -> None:
        self.hook = Tempting

    def tell(self) -> int:
        return 1


def test_what_an_actor_holds_is_no_method_of_it() -> None:
    with contextlib.closing(Host({"tempting": Tempting})) as host:
        replied(lambda done: host.create("e.0", wire.pack({"kind": "tempting"}), done))
        for method in ("hook", "system", "mro"):
            reply = replied(lambda done, method=method: host.call("e.0", method, wire.pack({}), done))
            assert wire.unpack(reply.body)["failure"]["kind"] == "AttributeError"
        assert replied(lambda done: host.call("e.0", "tell", wire.pack({}), done)).status == 200


def test_a_node_answers_others_while_it_reads_a_large_body(node: NodeProcess) -> None:
    structure = "[" + "[]," * 490_000 + '{"?":0}]'  # half a second to read, and invalid at its very end
    header = json.dumps({"__metadata__": {"value": structure}}).encode()
    body = len(header).to_bytes(8, "little") + header
    address = ("127.0.0.1", int(node.url().rsplit(":", 1)[1]))
    head = f"Host: x\r\nContent-Type: {wire.CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    light = HTTPConnection(*address, timeout=LIMIT_S)
    with socket.create_connection(address, LIMIT_S) as heavy, contextlib.closing(light):

        def answers(most: int) -> int:
            """Return the number of requests that are answered in turn before the large one is."""
            for answered in range(most):
                light.request("GET", "/v1/chimera/actors")
                assert light.getresponse().read()
                if select.select([heavy], [], [], 0)[0]:
                    return answered
            return most

        heavy.sendall(b"POST /v1/chimera/actors/e.0/add HTTP/1.1\r\n" + head + body[:-1])
        assert answers(20) == 20  # by then the node has accepted what was sent
        heavy.sendall(body[-1:])
        assert answers(5) == 5
        assert heavy.recv(100).startswith((b"HTTP/1.1 4", b"HTTP/1.1 5"))


@pytest.mark.parametrize("body", [{"call": 5}, {"call": [[], {}], "places": {"9": 1}}, {"returns": "x"}, {"places": 3}])
def test_a_call_of_another_form_is_the_callers_mistake(body: Any) -> None:
    with contextlib.closing(Host({"counter": Counter})) as host:
        replied(lambda done: host.create("e.0", wire.pack({"kind": "counter"}), done))
        reply = replied(lambda done: host.call("e.0", "add", wire.pack(body), done))
        assert reply.status == 500
        assert wire.unpack(reply.body)["failure"]["kind"] in ("DataError", "TypeError")


def test_groups_and_travelling_handles_are_refused_in_one_line(node: NodeProcess) -> None:
    with HttpEngine(nodes=[node.url()]) as engine:
        member, relay = engine.spawn(Member, 0), engine.spawn(Relay)
        with pytest.raises(ConfigurationError, match="no groups"):
            engine.group([member])
        with pytest.raises(ConfigurationError, match="cannot travel"):
            relay.echo(member)


def test_an_exception_of_unknown_class_arrives_as_text(node: NodeProcess) -> None:
    with HttpEngine(nodes=[node.url()]) as engine, pytest.raises(ActorError, match="UFuncTypeError"):
        engine.get(engine.spawn(Relay).plus(np.array(["text"])), LIMIT_S)


def test_a_class_that_must_be_hosted_never_runs_in_the_driver() -> None:
    class Guest:
        hosted = True

    with HttpEngine(nodes=["http://127.0.0.1:9"]) as engine, pytest.raises(RunError, match=r"127\.0\.0\.1:9"):
        engine.spawn(Guest)


class Undeclared:
    """A class that may run in a node or in the driver."""


def test_a_class_never_runs_in_the_driver_because_its_node_answers_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chimera.engines.http.node._PATIENCE_S", 0.05)
    asked, again = itertools.count(), threading.Event()

    def late(*_: Any) -> Any:
        if next(asked):
            again.set()
        return again.wait(LIMIT_S) and {"kinds": [f"{Undeclared.__module__}.Undeclared"]}

    with (
        foreign_worker({("GET", "/v1/chimera/actors"): late}) as port,
        HttpEngine(nodes=[f"http://127.0.0.1:{port}"], timeout_s=LIMIT_S) as engine,
    ):
        assert isinstance(engine.spawn(Undeclared)._channel, HostedChannel)


def test_a_node_that_does_not_report_its_classes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chimera.engines.http.node._PATIENCE_S", 0.05)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        HttpEngine(nodes=[url := f"http://127.0.0.1:{silent.getsockname()[1]}"], timeout_s=0.2) as engine,
        pytest.raises(RunError, match=f"does not report whether it hosts '.*Undeclared': {url}: GET .* took longer"),
    ):
        engine.spawn(Undeclared)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"nodes": []}, "at least one"),
        ({"nodes": ["ftp://x"]}, "ftp://x"),
        ({"nodes": ["http://h:99999"]}, "99999"),
        ({"nodes": ["http://user:secret@h"]}, "token"),
        ({"nodes": ["http://h"], "timeout_s": 0}, "timeout_s"),
        ({"nodes": ["http://h"], "retries": -1}, "retries"),
        ({"nodes": ["http://h"], "token": "a\nb"}, "token"),
        ({"nodes": ["https://h"], "tls_ca": "/no/such/file"}, "/no/such/file"),
    ],
)
def test_options_that_cannot_be_used_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        HttpEngine(**options)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


class Doubler:
    """A routed actor: the node computes ``double``, and ``half`` is computed here."""

    def __init__(self, unit: str = "") -> None:
        self.unit = unit

    def half(self, number: float) -> str:
        return f"{number / 2}{self.unit}"

    routes: ClassVar[dict[str, Route]] = {
        "double": Route(
            verb="POST",
            path="/double",
            encode=lambda self, array: {"numbers": array},
            decode=lambda self, document: np.array(document["doubled"]) + 0.0,
        )
    }


@contextlib.contextmanager
def answering(
    *answers: bytes | None, tls: ssl.SSLContext | None = None, bound: socket.socket | None = None
) -> Iterator[tuple[str, list[bytes]]]:
    """Run a server that sends one raw answer per request, the last one repeatedly; None closes the connection instead.

    It does not know ``/health``. It listens on ``bound``, or on a free port. Yields its URL, and the requests as they arrive.
    """
    came: list[bytes] = []
    left = list(answers)
    opened: list[socket.socket] = []

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            data = b""
            while piece := connection.recv(1 << 16):
                data += piece
                head, found, rest = data.partition(b"\r\n\r\n")
                if not found:
                    continue
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
                if len(rest) < length:
                    continue
                data = rest[length:]
                if b" /health " in head:
                    connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                    continue
                came.append(head + found + rest[:length])
                answer = left.pop(0) if len(left) > 1 else left[0]
                if answer is None:
                    return
                connection.sendall(answer)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                if tls is not None:
                    try:
                        connection = tls.wrap_socket(connection, server_side=True)
                    except OSError:  # the client did not trust the server
                        connection.close()
                        continue
                opened.append(connection)
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with bound or socket.create_server(("127.0.0.1", 0)) as listener:
        listener.listen()
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"{'https' if tls else 'http'}://127.0.0.1:{listener.getsockname()[1]}", came
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()
    for connection in opened:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def http(body: bytes, status: str = "200 OK", kind: str = JSON, more: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


GOOD = http(b'{"doubled": [2, 4]}')
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'5\r\n{"dou\r\ne\r\nbled": [2, 4]}\r\n0\r\n\r\n'
)


def test_a_routed_actor_speaks_json_to_those_who_know_no_other() -> None:
    with answering(GOOD) as (url, came), HttpEngine(nodes=[url], token="abc") as engine:
        doubler = engine.spawn(Doubler, unit=" m")
        np.testing.assert_array_equal(engine.get(doubler.double(np.array([1.0, 2.0])), LIMIT_S), [2, 4])
        assert engine.get(doubler.half(3.0), LIMIT_S) == "1.5 m"
        row = next(row for row in engine.trace() if row.call == "double")
    assert came[0].endswith(b'{"numbers":[1.0,2.0]}')
    assert b"Authorization: Bearer abc\r\n" in came[0]
    assert row.bytes_in == row.bytes_out == 16


@pytest.mark.parametrize(
    "answer",
    [
        CHUNKED,
        b"HTTP/1.1 100 Continue\r\n\r\n" + GOOD,
        http(wire.pack({"doubled": np.array([2, 4])}), kind=wire.CONTENT_TYPE),
        http(b'{"doubled": [2, 4]}', kind="application/json; charset=utf-8", more="Connection: close\r\n"),
    ],
    ids=["chunked", "continue", "binary", "charset"],
)
def test_answers_of_any_lawful_form_are_understood(answer: bytes) -> None:
    with answering(answer) as (url, _), HttpEngine(nodes=[url]) as engine:
        doubler = engine.spawn(Doubler)
        for _ in range(2):
            np.testing.assert_array_equal(engine.get(doubler.double(np.ones(2)), LIMIT_S), [2, 4])


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"\x16\x03\x01 what\r\n\r\n", "answer is not HTTP"),
        (http(b"<html>", kind="text/html"), "text/html"),
        (http(b"{"), "cannot be read"),
        (http(b"[1]"), "no JSON object"),
        (http(b'{"other": 1}'), "cannot be used"),
        (http(b"\x00" * 20, kind=wire.CONTENT_TYPE), "cannot be read"),
        (GOOD[:-3], "took longer"),
        (http(b"x" * 2000), "1000 are allowed"),
        (http(b"", "500 Internal Server Error", "text/plain"), "text/plain"),
    ],
)
def test_garbage_loses_the_actor_and_says_what_came(answer: bytes, said: str) -> None:
    options: dict[str, Any] = {"timeout_s": 0.5, "max_bytes": 1000}
    with answering(answer) as (url, _), HttpEngine(nodes=[url], **options) as engine:
        doubler = engine.spawn(Doubler, name="doubler")
        kind = TimeLimitError if said == "took longer" else ActorLost
        with pytest.raises(kind, match=said) as caught:
            engine.get(doubler.double(np.ones(2)), LIMIT_S)
        assert url in str(caught.value)
        assert "\n" not in str(caught.value)
        assert (engine.lost() == [doubler]) == (kind is ActorLost)


def test_what_a_worker_refuses_is_its_error_and_no_loss() -> None:
    body = b'{"message": "no such\\ncolumn", "details": {"errorCode": 422, "errorMessage": "DataError"}}'
    with answering(http(body, "422 Unprocessable"), GOOD) as (url, _), HttpEngine(nodes=[url]) as engine:
        doubler = engine.spawn(Doubler)
        with pytest.raises(Refusal, match=r"422 \(DataError\): no such column") as caught:
            engine.get(doubler.double(np.ones(2)), LIMIT_S)
        assert (caught.value.status, caught.value.name) == (422, "DataError")
        np.testing.assert_array_equal(engine.get(doubler.double(np.ones(2)), LIMIT_S), [2, 4])


BROKEN = http(b'{"message": "later"}', "503 Unavailable")


@pytest.mark.parametrize("bad", [None, BROKEN, b"nonsense\r\n\r\n"], ids=["closed", "503", "garbage"])
@pytest.mark.parametrize("retries", [0, 2])
def test_a_call_is_sent_again_only_as_often_as_allowed(bad: bytes | None, retries: int) -> None:
    with answering(GOOD, bad, bad, GOOD) as (url, came), HttpEngine(nodes=[url], retries=retries) as engine:
        doubler = engine.spawn(Doubler)
        engine.get(doubler.double(np.ones(1)), LIMIT_S)  # the connection is kept from now on
        again = doubler.double(np.ones(2))
        if retries:
            np.testing.assert_array_equal(engine.get(again, LIMIT_S), [2, 4])
        else:
            with pytest.raises(RunError):
                engine.get(again, LIMIT_S)
        assert len(came) == 2 + retries


def test_a_health_check_between_two_attempts_does_not_lose_the_actor() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # connections are refused until it listens
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        with HttpEngine(nodes=[url], retries=20, health_every_s=0.01) as engine:
            doubler = engine.spawn(Doubler)
            result, attempts, deadline_s = doubler.double(np.ones(2)), set(), time.monotonic() + LIMIT_S
            while len(attempts) < 4:
                attempts.add(doubler._channel.heartbeat_s)
                assert time.monotonic() < deadline_s
                assert engine.lost() == []
            with answering(GOOD, bound=bound):
                np.testing.assert_array_equal(engine.get(result, LIMIT_S), [2, 4])


def test_a_connection_that_the_node_closed_meanwhile_is_opened_anew() -> None:
    with answering(GOOD[:-20] + GOOD[-20:], GOOD) as (url, _), HttpEngine(nodes=[url]) as engine:
        doubler = engine.spawn(Doubler)
        engine.get(doubler.double(np.ones(2)), LIMIT_S)
        doubler._channel._connection._socket.shutdown(socket.SHUT_RDWR)
        np.testing.assert_array_equal(engine.get(doubler.double(np.ones(2)), LIMIT_S), [2, 4])


def test_a_call_that_takes_too_long_is_its_own_error(node: NodeProcess) -> None:
    with HttpEngine(nodes=[node.url()], timeout_s=0.3) as engine:
        relay, other = engine.spawn(Relay, name="slow"), engine.spawn(Relay)
        with pytest.raises(TimeLimitError, match=r"slow.*0\.3 s"):
            engine.get(relay.wait_for_ever(0), LIMIT_S)
        assert engine.get(other.echo(1), LIMIT_S) == 1
        assert engine.lost() == []


def test_a_call_whose_argument_takes_too_long_ends_with_it(node: NodeProcess) -> None:
    with HttpEngine(nodes=[node.url()], timeout_s=0.3) as engine:
        slow, other = engine.spawn(Relay, name="slow"), engine.spawn(Relay)
        with pytest.raises(TimeLimitError, match=r"slow.*0\.3 s"):
            engine.get(other.echo(slow.wait_for_ever(0)), LIMIT_S)
        assert engine.get(other.echo(1), LIMIT_S) == 1


def test_an_actor_that_is_killed_while_it_waits_for_an_argument_waits_no_longer(node: NodeProcess) -> None:
    with HttpEngine(nodes=[node.url()], timeout_s=10 * LIMIT_S) as engine:
        slow, other = engine.spawn(Relay), engine.spawn(Relay)
        hung = slow.wait_for_ever(0)
        dependent = other.echo(hung)
        while not hung._callbacks:  # until the thread of the actor waits
            threading.Event().wait(0.01)
        engine.kill(other)
        with pytest.raises(ActorLost):
            engine.get(dependent, LIMIT_S)
        other._channel.thread.join(LIMIT_S)
        assert not other._channel.thread.is_alive()
        assert engine.wait([hung], timeout_s=0.0) == ([], [hung])


def test_a_node_that_is_stopped_is_silent_and_not_lost(killed_node: NodeProcess) -> None:
    with HttpEngine(nodes=[killed_node.url()], health_every_s=0.2) as engine:
        relay = engine.spawn(Relay)
        engine.get(relay.echo(1), LIMIT_S)
        killed_node.process.send_signal(signal.SIGSTOP)
        until_s = time.monotonic() + LIMIT_S
        while not engine.silent(1.0) and time.monotonic() < until_s:
            threading.Event().wait(0.02)
        assert (engine.silent(1.0), engine.lost()) == ([relay], [])
        killed_node.process.send_signal(signal.SIGCONT)
        assert engine.get(relay.echo(2), LIMIT_S) == 2


def test_weights_for_all_workers_are_packed_once(node: NodeProcess) -> None:
    with HttpEngine(nodes=[node.url()]) as engine:
        relays = [engine.spawn(Relay) for _ in range(3)]
        ref = engine.put(np.arange(10_000, dtype=np.float32))
        engine.get([relay.plus(ref) for relay in relays], LIMIT_S)
        packed = ref.outcome.packed()
        engine.get([relay.plus(ref) for relay in relays], LIMIT_S)
        assert ref.outcome.packed() is packed


def test_a_disturbed_routed_actor_answers_late() -> None:
    with answering(GOOD) as (url, _), HttpEngine(nodes=[url]) as engine:
        doubler = engine.spawn(Doubler)
        engine.get(doubler.double(np.ones(2)), LIMIT_S)
        engine.disturb(doubler, Disturbance("cut off", for_s=0.3))
        began_s = time.monotonic()
        engine.get(doubler.double(np.ones(2)), LIMIT_S)
        assert time.monotonic() - began_s > 0.29


def own_certificate(folder: Path, host: str) -> Path:
    """Write a self-signed certificate and its key into one file."""
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, name = (
        ec.generate_private_key(ec.SECP256R1()),
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "node")]),
    )
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(
        name, name, key.public_key(), x509.random_serial_number(), now, now.replace(year=now.year + 1)
    )
    made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    file = folder / "node.pem"
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    file.write_bytes(made.sign(key, hashes.SHA256()).public_bytes(pem) + private)
    return file


def test_a_node_with_its_own_certificate_is_reached_by_those_who_trust_it(tmp_path: Path) -> None:
    file = own_certificate(tmp_path, "somewhere.else")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    with answering(GOOD, tls=context) as (url, came):
        with HttpEngine(nodes=[url], tls_ca=str(file), tls_check_host=False, token="secret") as engine:
            np.testing.assert_array_equal(engine.get(engine.spawn(Doubler).double(np.ones(2)), LIMIT_S), [2, 4])
        for distrust in ({}, {"tls_ca": str(file)}):
            with (
                HttpEngine(nodes=[url], token="secret", **distrust) as engine,
                pytest.raises(ActorLost, match="certificate"),
            ):
                engine.get(engine.spawn(Doubler).double(np.ones(2)), LIMIT_S)
    assert len(came) == 1


def test_an_event_loop_hears_once_when_all_is_done(node: NodeProcess) -> None:
    with HttpEngine(nodes=[node.url()]) as engine:
        relays = [engine.spawn(Relay) for _ in range(3)]
        refs, heard = [relay.echo(1) for relay in relays for _ in range(5)], threading.Semaphore(0)
        engine.when_done(refs, heard.release)
        assert heard.acquire(timeout=LIMIT_S)
        assert engine.wait(refs, count=len(refs), timeout_s=0)[1] == []
        assert not heard.acquire(blocking=False)
        engine.when_done(refs, heard.release)
        assert heard.acquire(timeout=LIMIT_S)
