"""Connections break, hubs and nodes are killed: each call is run once, and its answer is delivered once."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("websockets")

from chimera.core.errors import ActorError, ActorLost
from chimera.engines.federation import FederationEngine
from chimera.federation.audit.verify import verify
from chimera.federation.hub.invite import invite
from chimera.federation.identity.join import join
from chimera.federation.policy.requests import Call, Decision, Held, Refused, Requester
from federation.federation_kit import LIMIT_S, AllowAll, Federation, federation, until
from federation.processes import Cutter, Process, Summer, hub_process, node_process, summer


class Direct:
    """The same actors in this process, as the truth."""

    def __init__(self, log: Path, count: int) -> None:
        kind = summer(log)[f"{Summer.__module__}.{Summer.__name__}"]
        self._actors = [kind(seed, f"{seed}") for seed in range(count)]

    def round(self, number: int, vector: Any) -> list[Any]:
        return [actor.step(vector, f"{place}.{number}") for place, actor in enumerate(self._actors)]


def rounds(step: Any, first: int, last: int, vector: Any) -> Any:
    """Run rounds of averaging."""
    for number in range(first, last):
        vector = np.mean(step(number, vector), axis=0)
    return vector


class Driver:
    """Actors on the nodes of an engine."""

    def __init__(self, engine: FederationEngine, count: int) -> None:
        self._engine = engine
        self.actors = [engine.spawn(Summer, seed, f"{seed}") for seed in range(count)]

    def round(self, number: int, vector: Any) -> list[Any]:
        refs = [actor.step(vector, f"{place}.{number}") for place, actor in enumerate(self.actors)]
        return self._engine.get(refs, LIMIT_S)


def logged(*logs: Path) -> Counter[str]:
    return Counter(line for log in logs for line in log.read_text().splitlines())


def expected(count: int, last: int) -> Counter[str]:
    return Counter([f"{i}" for i in range(count)] + [f"{i}.{n}" for i in range(count) for n in range(last)])


@pytest.mark.parametrize(
    ("size", "max_bytes", "cuts", "last"),
    [
        pytest.param(1_000, 20_000, 12, 15, id="small calls"),
        pytest.param(400_000, 6_000_000, 8, 4, id="bodies of several chunks"),
        pytest.param(1_000, 20_000, 300, 400, id="many cuts", marks=pytest.mark.long),
        pytest.param(2_000_000, 30_000_000, 60, 30, id="many cuts of large bodies", marks=pytest.mark.long),
    ],
)
def test_cuts_at_random_bytes_change_no_bit_and_repeat_no_call(
    tmp_path: Path, size: int, max_bytes: int, cuts: int, last: int
) -> None:
    vector = np.random.default_rng(1).normal(size=size)
    truth = rounds(Direct(tmp_path / "truth", 2).round, 0, last, vector)
    with federation(tmp_path) as place:
        cutter = Cutter(place.url, 7, cuts, max_bytes)
        try:
            place.join("requester", "alice")
            logs = [tmp_path / f"log{i}" for i in range(2)]
            for i, log in enumerate(logs):
                place.node(at(place.join("node", f"node-{i}"), cutter.url), kinds=summer(log))
            with place.engine(hub=cutter.url, nodes=["node-0", "node-1"], health_every_s=0.2) as engine:
                result = rounds(Driver(engine, 2).round, 0, last, vector)
        finally:
            cutter.stop()
    assert cutter.cuts >= cuts / 2
    assert result.tobytes() == truth.tobytes()
    assert logged(*logs) == expected(2, last)


def at(credentials: Any, url: str) -> Any:
    from dataclasses import replace

    return replace(credentials, hub=url)


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    started: list[Process] = []
    yield started
    for process in started:
        process.kill()


@pytest.mark.takes("it starts a hub and a node as processes, and the hub again")
@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.long)])
def test_a_hub_killed_by_sigkill_loses_no_call(tmp_path: Path, processes: list[Process], kills: int) -> None:
    hub, url = hub_process(tmp_path / "hub")
    processes.append(hub)
    port = int(url.rpartition(":")[2])
    for role, name in (("node", "node-0"), ("requester", "alice")):
        join(*invite(tmp_path / "hub", role, name), tmp_path / name)  # type: ignore[arg-type]
    processes.append(node_process(tmp_path / "node-0", tmp_path / "log"))
    vector = np.random.default_rng(1).normal(size=1000)
    truth = rounds(Direct(tmp_path / "truth", 1).round, 0, 10 * (kills + 1), vector)
    with FederationEngine(identity=str(tmp_path / "alice"), nodes=["node-0"]) as engine:
        driver = Driver(engine, 1)
        result = rounds(driver.round, 0, 10, vector)
        for kill in range(1, kills + 1):
            under_way = driver.actors[0].step(result, f"0.{10 * kill}")
            processes[0].kill()
            processes[0], _ = hub_process(tmp_path / "hub", port)
            result = rounds(driver.round, 10 * kill + 1, 10 * kill + 10, engine.get(under_way, LIMIT_S))
    assert result.tobytes() == truth.tobytes()
    assert logged(tmp_path / "log") == expected(1, 10 * (kills + 1))
    verify(tmp_path / "hub")  # what a killed hub had not written does not break the chain


def test_a_node_killed_in_a_call_does_not_run_it_again_and_takes_new_actors(
    tmp_path: Path, processes: list[Process]
) -> None:
    with federation(tmp_path) as place:
        place.join("node", "node-0")
        log = tmp_path / "log"
        node = node_process(tmp_path / "node-0", log)
        processes.append(node)
        with place.engine(nodes=["node-0"]) as engine:
            first = engine.spawn(Summer, 0, "made", name="worker")
            assert engine.get(first.step(np.ones(4), "1"), LIMIT_S).shape == (4,)
            ref = first.die("2")
            node.process.wait(LIMIT_S)
            processes.append(node_process(tmp_path / "node-0", log))
            with pytest.raises(ActorLost, match="the node does not know it"):
                engine.get(ref, LIMIT_S)
            again = engine.spawn(Summer, 0, "made again", name="worker")
            assert engine.get(again.step(np.ones(4), "3"), LIMIT_S).shape == (4,)
    assert logged(log) == Counter(["made", "1", "2", "made again", "3"])


def test_an_idle_actor_of_a_restarted_node_is_lost_soon(tmp_path: Path, processes: list[Process]) -> None:
    with federation(tmp_path) as place:
        place.join("node", "node-0")
        node = node_process(tmp_path / "node-0", tmp_path / "log")
        processes.append(node)
        with place.engine(nodes=["node-0"], health_every_s=0.1) as engine:
            actor = engine.spawn(Summer, 0, "made")
            engine.get(actor.step(np.ones(4), "1"), LIMIT_S)
            node.process.kill()
            processes.append(node_process(tmp_path / "node-0", tmp_path / "log"))
            until(lambda: actor in engine.lost())
            assert "does not know it" in engine.death_cause(actor)


@pytest.mark.long
def test_a_node_that_stays_away_is_lost_after_a_while_and_one_that_comes_back_is_not(tmp_path: Path) -> None:
    with federation(tmp_path) as place:
        credentials = [place.join("node", f"node-{i}") for i in range(2)]
        running = [place.node(one, kinds=summer(tmp_path / f"log{i}")) for i, one in enumerate(credentials)]
        with place.engine(nodes=["node-0", "node-1"], away_s=0.5) as engine:
            driver = Driver(engine, 2)
            driver.round(0, np.ones(4))
            place.stop_hub()
            place.start_hub()  # at the same port
            driver.round(1, np.ones(4))
            running[1].stop()
            with pytest.raises(ActorLost, match=r"not connected for 0\.5 s"):
                driver.round(2, np.ones(4))
            assert engine.get(driver.actors[0].step(np.ones(4), "0.3"), LIMIT_S).shape == (4,)
            again = engine.spawn(Summer, 1, "1 again", name=driver.actors[1].name)  # its node is still away
            step = again.step(np.ones(4), "1.4")
            assert engine.wait([step], timeout_s=0.2) == ([], [step])
            place.node(credentials[1], kinds=summer(tmp_path / "log1"))
            assert engine.get(step, LIMIT_S).shape == (4,)


def test_answers_are_removed_once_the_driver_has_them(tmp_path: Path) -> None:
    with federation(tmp_path) as place:
        place.node(place.join("node", "node-0"), kinds=summer(tmp_path / "log"))
        answers = tmp_path / "node-0" / "answers"
        with place.engine(nodes=["node-0"]) as engine:
            driver = Driver(engine, 1)
            rounds(driver.round, 0, 3, np.ones(100_000))
            until(lambda: list(answers.iterdir()) == [])


def test_a_run_belongs_to_the_driver_that_began_it(place: Federation, tmp_path: Path) -> None:
    """Another driver that learns the key of a run reaches neither its actors nor its answers."""
    from chimera.engines.federation.connection import TunnelConnection
    from chimera.engines.federation.credentials import Credentials
    from chimera.engines.federation.tunnel import Tunnel

    place.node(place.join("node", "node-0"), kinds=summer(tmp_path / "log"))
    with place.engine("alice", nodes=["node-0"]) as engine:
        Driver(engine, 1)
        key = engine.key
    place.join("requester", "bob")
    tunnel = Tunnel(Credentials.read(tmp_path / "bob", "requester"), key, max_bytes=1 << 20, away_s=LIMIT_S)
    try:
        tunnel.wait_for(bool, LIMIT_S)
        connection = TunnelConnection(tunnel, "node-0")
        answer = connection.request("GET", f"/v1/chimera/actors?engine={key}", timeout_s=LIMIT_S, idempotent=True)
        assert answer.status == 403
    finally:
        tunnel.close()
    other = Tunnel(Credentials.read(tmp_path / "bob", "requester"), "0" * 32, max_bytes=1 << 20, away_s=LIMIT_S)
    try:
        other.wait_for(bool, LIMIT_S)
        connection = TunnelConnection(other, "node-0")
        for verb, path in (("POST", f"/{key}.0/step"), ("DELETE", f"/{key}.0"), ("GET", f"?engine={key}")):
            answer = connection.request(verb, f"/v1/chimera/actors{path}", timeout_s=LIMIT_S, idempotent=True)
            assert answer.status == 403
    finally:
        other.close()


class Sum:
    """An actor in the process of the driver, which needs the values of two nodes."""

    hosted = False

    def of(self, one: Any, other: Any) -> Any:
        return one + other


def test_a_refusal_is_raised_while_another_node_still_waits(place: Federation, tmp_path: Path) -> None:
    class Waiting(AllowAll):
        def request(self, requester: Requester, call: Call) -> Decision:
            return Held(1) if call.method == "step" else super().request(requester, call)

    class Refusing(AllowAll):
        def request(self, requester: Requester, call: Call) -> Decision:
            return Refused("not this one") if call.method == "step" else super().request(requester, call)

    for name, gate in (("node-0", Waiting()), ("node-1", Refusing())):
        place.node(place.join("node", name), gate, kinds=summer(tmp_path / f"log-{name}"))
    with place.engine(nodes=["node-0", "node-1"]) as engine:
        actors = Driver(engine, 2).actors
        steps = [actor.step(np.ones(4), "1") for actor in actors]
        with pytest.raises(ActorError, match="not this one"):
            engine.get(steps, LIMIT_S)
        with pytest.raises(ActorError, match="not this one"):
            engine.get(engine.spawn(Sum).of(*steps), LIMIT_S)
        assert engine.wait(steps, 2, timeout_s=0)[1] == steps[:1]


def test_a_run_does_not_belong_to_a_later_requester_of_the_same_name(place: Federation, tmp_path: Path) -> None:
    """The certificate of alice is revoked, another person joins as alice, and knows the key of the run."""
    from chimera.engines.federation.connection import TunnelConnection
    from chimera.engines.federation.tunnel import Tunnel

    place.node(place.join("node", "node-0"), kinds=summer(tmp_path / "log"))
    first = Tunnel(place.join("requester", "alice"), key := "a" * 32, max_bytes=1 << 20, away_s=LIMIT_S)
    with contextlib.closing(first):
        first.wait_for(bool, LIMIT_S)
        way = TunnelConnection(first, "node-0")
        path = f"/v1/chimera/actors?engine={key}"
        assert way.request("GET", path, timeout_s=LIMIT_S, idempotent=True).status == 200
    place.hub.state.revoke("alice")
    (tmp_path / "alice").rename(tmp_path / "former")
    later = Tunnel(place.join("requester", "alice"), key, max_bytes=1 << 20, away_s=LIMIT_S)
    with contextlib.closing(later):
        later.wait_for(bool, LIMIT_S)
        way = TunnelConnection(later, "node-0")
        for verb, path in (
            ("GET", f"?engine={key}"),
            ("POST", f"/{key}.0"),
            ("POST", f"/{key}.0/step"),
            ("DELETE", f"/{key}.0"),
            ("DELETE", f"?engine={key}"),
        ):
            answer = way.request(verb, f"/v1/chimera/actors{path}", timeout_s=LIMIT_S, idempotent=True)
            assert answer.status == 403, verb
            assert b"another driver" in answer.body


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Federation]:
    with federation(tmp_path) as made:
        yield made
