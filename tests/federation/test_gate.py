"""The gate of a node sees each call before it runs, and each answer before it leaves."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("websockets")

from chimera.core.errors import ActorError, ActorLost
from chimera.federation.policy.requests import Allowed, Call, Decision, Held, Refused, Requester, Spending
from conformance.actors import Counter
from federation.federation_kit import LIMIT_S, federation

SETTINGS = {"strategy": {"name": "fed-avg", "local_steps": 2}, "model": {"name": "mlp"}, "rounds": 3, "nodes": 1}


class Recorder:
    """Decides by functions, and records what it was asked."""

    def __init__(self, of_request: Any = None, of_answer: Any = None) -> None:
        self.of_request, self.of_answer = of_request, of_answer
        self.requests: list[tuple[Requester, Call]] = []
        self.answers: list[tuple[str, int, Spending]] = []

    def request(self, requester: Requester, call: Call) -> Decision:
        self.requests.append((requester, call))
        return self.of_request(call) if self.of_request else Allowed()

    def answer(self, requester: Requester, call: Call, answer_bytes: int, spent: Spending) -> Decision:
        self.answers.append((call.method, answer_bytes, spent))
        return self.of_answer(call) if self.of_answer else Allowed()


def test_it_sees_requester_kind_arguments_and_settings(tmp_path: Path) -> None:
    gate = Recorder()
    with federation(tmp_path) as place:
        place.node("node-0", gate)
        with place.engine() as engine:
            engine.declare(SETTINGS)
            counter = engine.spawn(Counter, 40)
            assert engine.get(counter.add(2), LIMIT_S) == 42
    (requester, made), (_, called) = gate.requests
    assert (requester.name, len(requester.fingerprint)) == ("alice", 64)
    assert (made.kind, made.method, made.given) == ("conformance.actors.Counter", "__init__", (40,))
    assert made.settings == SETTINGS
    assert (called.kind, called.method, called.given) == (made.kind, "add", (2,))
    assert (called.run, called.actor) == (engine.key, made.actor)
    assert called.number > made.number
    assert [method for method, _, _ in gate.answers] == ["__init__", "add"]
    assert all(size > 0 for _, size, _ in gate.answers)


def test_a_refused_call_does_not_run_and_a_refused_answer_does_not_leave(tmp_path: Path) -> None:
    ran: list[Any] = []

    class Watched(Counter):
        def add(self, number: int) -> int:
            ran.append(number)
            return super().add(number)

    gate = Recorder(
        lambda call: Refused("not this one") if call.given == (1,) else Allowed(),
        lambda call: Refused("it stays here") if call.given == (2,) else Allowed(),
    )
    with federation(tmp_path) as place:
        place.node("node-0", gate, {"conformance.actors.Counter": Watched})
        with place.engine() as engine:
            counter = engine.spawn(Counter)
            with pytest.raises(ActorError, match="not this one"):
                engine.get(counter.add(1), LIMIT_S)
            with pytest.raises(ActorError, match="it stays here"):
                engine.get(counter.add(2), LIMIT_S)
            assert engine.get(counter.add(3), LIMIT_S) == 5
    assert ran == [2, 3]


def test_it_is_not_asked_about_actors_that_are_not_there(tmp_path: Path) -> None:
    gate = Recorder()
    with federation(tmp_path) as place:
        credentials = place.join("node", "node-0")
        running = place.node(credentials, gate)
        with place.engine() as engine:
            counter = engine.spawn(Counter)
            engine.get(counter.add(1), LIMIT_S)
            running.stop()
            place.node(credentials, gate)  # a new host, as after a restart
            asked = len(gate.requests)
            with pytest.raises(ActorLost, match="does not know it"):
                engine.get(counter.add(2), LIMIT_S)
            assert len(gate.requests) == asked


def test_a_held_run_waits_for_the_administrator(tmp_path: Path) -> None:
    approved = threading.Event()
    gate = Recorder(lambda call: Allowed() if approved.is_set() else Held(17))
    with federation(tmp_path) as place:
        place.node("node-0", gate)
        with place.engine() as engine:
            ref = engine.spawn(Counter, 40).add(2)
            assert engine.wait([ref], timeout_s=0.2) == ([], [ref])
            approved.set()
            assert engine.get(ref, LIMIT_S) == 42


@pytest.mark.long
def test_the_time_of_the_administrator_is_not_that_of_the_call(tmp_path: Path) -> None:
    gate, said = Recorder(lambda call: Held(17)), []
    with federation(tmp_path) as place:
        place.node("node-0", gate)
        with place.engine(timeout_s=0.2) as engine:
            engine.declare(SETTINGS, said.append)
            ref = engine.spawn(Counter, 40).add(2)
            assert engine.wait([ref], timeout_s=1.0) == ([], [ref])
            assert said == ["the administrator of node-0, who decides about run 17 there: chimera node approve 17"]
        asked = len(gate.requests)
        threading.Event().wait(1.5)  # a held call is decided again each second, if its driver waits
        assert len(gate.requests) <= asked + 1
