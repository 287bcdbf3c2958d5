"""Requests of engine http with several calls: when they are used, and that each call behaves as in a request of its own."""

from __future__ import annotations

import itertools
import queue
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi")

from chimera.core.errors import ActorLost, ConfigurationError, DataError
from chimera.engines.http import HttpEngine, wire
from chimera.engines.http.hosting.host import Host
from chimera.engines.http.hosting.hosted_actor import Reply
from chimera.engines.http.joined import MAX_CALLS, calls_in, calls_of, pack_replies, read_replies
from conformance.actors import BriefCounter
from conformance.node import NodeProcess, start_node

LIMIT_S = 30.0


class Gate:
    """An actor of the driver whose call waits."""

    hosted = False
    opened = threading.Event()

    def number(self, number: int) -> int:
        assert self.opened.wait(LIMIT_S)
        return number


@pytest.fixture
def node() -> Iterator[NodeProcess]:
    started = start_node()
    started.url()
    yield started
    started.stop()


class Asked:
    """An engine, and the methods of each of its requests."""

    def __init__(self, node: NodeProcess) -> None:
        self.methods: list[str] = []
        Gate.opened.clear()
        self.engine = HttpEngine(nodes=[node.url()], on_answer=self._note)
        self.counter, self.gate = self.engine.spawn(BriefCounter), self.engine.spawn(Gate)
        self.engine.get(self.counter.history(), LIMIT_S)

    def _note(self, url: str, _: float) -> None:
        self.methods.append(url.rpartition("/")[2])

    def get(self, refs: Any) -> Any:
        """Return values of calls that have waited for the gate."""
        self.methods.clear()
        Gate.opened.set()
        values = self.engine.get(refs, LIMIT_S)
        self.engine.get(self.counter.history(), LIMIT_S)  # by then, earlier answers are reported
        return values


@pytest.fixture
def asked(node: NodeProcess) -> Iterator[Asked]:
    made = Asked(node)
    with made.engine:
        yield made


def test_brief_calls_share_the_request_of_the_call_before_them(asked: Asked) -> None:
    counter = asked.counter
    refs = [counter.add(asked.gate.number(1)), counter.add(2), counter.history(), counter.add(4)]
    assert asked.get(refs) == [1, 3, [0, 1, 2], 7]
    assert asked.methods[0] == "add,add,history,add"


def test_a_request_has_at_most_16_calls(asked: Asked) -> None:
    refs = [asked.counter.add(asked.gate.number(1)), *(asked.counter.add(1) for _ in range(MAX_CALLS))]
    assert asked.get(refs) == list(range(1, MAX_CALLS + 2))
    assert asked.methods[:2] == [",".join(["add"] * MAX_CALLS), "add"]


def test_a_failed_call_does_not_prevent_the_next_one(asked: Asked) -> None:
    first, failed, last = asked.counter.add(asked.gate.number(1)), asked.counter.fail(), asked.counter.history()
    assert asked.get([first, last]) == [1, [0, 1]]
    assert asked.methods[0] == "add,fail,history"
    with pytest.raises(ValueError, match="it fails"):
        asked.engine.get(failed)


def test_calls_with_refs_or_large_arguments_have_requests_of_their_own(asked: Asked) -> None:
    counter, gate = asked.counter, asked.gate
    large = np.ones(100_000)
    first, second, third = counter.add(gate.number(1)), counter.add(gate.number(2)), counter.add(large)
    assert asked.get([first, second]) == [1, 3]
    assert asked.engine.get(third, LIMIT_S).shape == large.shape
    assert asked.methods[:2] == ["add", "add"]


def test_each_call_has_a_row_of_the_trace(asked: Asked) -> None:
    asked.engine.trace()
    asked.get([asked.counter.add(asked.gate.number(1)), asked.counter.history(), asked.counter.add(2)])
    rows = [row for row in asked.engine.trace() if row.actor == asked.counter.name][:3]
    assert [row.call for row in rows] == ["add", "history", "add"]
    assert [row.bytes_out for row in rows] == [8, 16, 8]
    assert all(row.start_s <= row.end_s for row in rows)
    assert all(before.end_s <= after.start_s for before, after in itertools.pairwise(rows))


def test_an_older_node_gets_a_request_for_each_call(asked: Asked) -> None:
    (node,) = asked.engine._nodes
    node.kinds()
    node._joins = False  # as a node of an earlier version reports
    assert asked.get([asked.counter.add(asked.gate.number(1)), asked.counter.add(2)]) == [1, 3]
    assert asked.methods[:2] == ["add", "add"]


def test_all_calls_of_a_request_are_lost_with_their_node(asked: Asked, node: NodeProcess) -> None:
    refs = [asked.counter.add(asked.gate.number(1)), asked.counter.add(2)]
    node.process.send_signal(signal.SIGKILL)
    node.process.wait()
    Gate.opened.set()
    for ref in refs:
        with pytest.raises(ActorLost, match=node.url()):
            asked.engine.get(ref, LIMIT_S)


def test_follow_issues_a_call_only_after_one_that_has_not_ended(asked: Asked) -> None:
    assert asked.engine.follow(asked.counter, "history") is None
    first = asked.counter.add(asked.gate.number(1))
    followed = asked.engine.follow(asked.counter, "history")
    assert asked.get([first, followed]) == [1, [0, 1]]
    assert asked.methods[0] == "add,history"


CALL = {"call": [[], {}]}


@pytest.mark.parametrize(
    ("method", "request_", "error"),
    [
        ("history,", {"calls": [CALL, CALL]}, ConfigurationError),
        ("history,__init__", {"calls": [CALL, CALL]}, ConfigurationError),
        ("history,_seen", {"calls": [CALL, CALL]}, ConfigurationError),
        ("history,history", CALL, DataError),
        ("history,history", {"calls": [CALL]}, DataError),
        ("history,history", {"calls": [CALL, 1]}, DataError),
        ("history,history", {"calls": {"0": CALL, "1": CALL}}, DataError),
        (",".join(["history"] * (MAX_CALLS + 1)), {"calls": [CALL] * (MAX_CALLS + 1)}, DataError),
    ],
)
def test_a_node_refuses_other_requests_with_several_calls(method: str, request_: Any, error: type[Exception]) -> None:
    host, answers = Host({"counter": BriefCounter}), queue.SimpleQueue[Reply]()
    try:
        host.create("a.0", wire.pack({"kind": "counter"}), answers.put)
        assert answers.get(timeout=LIMIT_S).status == 200
        with pytest.raises(error):
            host.call("a.0", method, wire.pack(request_), answers.put)
        assert answers.empty()
    finally:
        host.close()


class Mixed(BriefCounter):
    brief = frozenset({"history"})


def hosted(host: Host, method: str, parts: int) -> Reply:
    """Return the reply of an actor to a request with this number of calls."""
    answers = queue.SimpleQueue[Reply]()
    call = {"call": [[1], {}]}
    body = wire.pack({"calls": [call] * parts} if parts > 1 else call)
    host.call("a.0", method, body, answers.put)
    return answers.get(timeout=LIMIT_S)


class Listed(Mixed):
    """The class of a user who names the short methods in a list."""

    brief = ["history"]  # type: ignore[assignment] # noqa: RUF012 - as a user may write it


@pytest.mark.parametrize("kind", [Mixed, Listed])
def test_only_short_calls_may_follow_in_a_request(kind: type[Mixed]) -> None:
    """A driver could otherwise make a node hold many large answers at once."""
    host, answers = Host({"mixed": kind}), queue.SimpleQueue[Reply]()
    try:
        host.create("a.0", wire.pack({"kind": "mixed"}), answers.put)
        assert answers.get(timeout=LIMIT_S).status == 200
        assert [part.status for part in hosted(host, "add,history", 2).parts] == [200, 500]
        for method in ("history,add", "add,add", "add,none"):
            refused = hosted(host, method, 2)
            assert (refused.status, refused.parts) == (422, ())
            assert b"only short calls" in refused.body
        assert hosted(host, "add", 1).status == 200
    finally:
        host.close()


class Ended:
    """An actor that is dropped while the first call of a request runs."""

    brief = frozenset({"later"})
    host: Host
    ran = False

    def first(self) -> None:
        self.host.kill("a.0")

    def later(self) -> None:
        type(self).ran = True


def test_a_dropped_actor_does_not_continue_its_request() -> None:
    host, answers = Host({"ended": Ended}), queue.SimpleQueue[Reply]()
    Ended.host = host
    try:
        host.create("a.0", wire.pack({"kind": "ended"}), answers.put)
        assert answers.get(timeout=LIMIT_S).status == 200
        call = {"call": [[], {}]}
        host.call("a.0", "first,later", wire.pack({"calls": [call, call]}), answers.put)
        assert [part.status for part in answers.get(timeout=LIMIT_S).parts] == [200, 404]
        assert not Ended.ran
    finally:
        host.close()


def test_replies_of_another_form_are_errors() -> None:
    body = pack_replies([(200, "a", b"x"), (404, "b", b"")])
    assert [(status, kind, bytes(data)) for status, kind, data in read_replies(body, 2)] == [
        (200, "a", b"x"), (404, "b", b"")
    ]  # fmt: skip
    with pytest.raises(DataError, match="2 replies to 3 calls"):
        read_replies(body, 3)
    for other in ({}, {"replies": [1]}, {"replies": [[200, "a", b"x"]]}, {"replies": [], "more": 1}, []):
        with pytest.raises(DataError):
            read_replies(wire.pack(other), 1)


def test_calls_are_counted_by_the_path() -> None:
    assert [calls_in(path) for path in ("/v1/a/b", "/v1/a/b,c", "/v1/a")] == [1, 2, 1]
    assert calls_of(["b"], CALL) == [CALL]
