"""Nodes that come late, leave and come back, and limits of policies that pass: a run waits and continues by itself."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("websockets")

import chimera
from chimera.core.errors import ConfigurationError, TooFewWorkersError
from chimera.engines.federation.credentials import Credentials
from chimera.federation.data.disclosure import Disclosure
from chimera.federation.data.learner import node_actors
from chimera.federation.policy.gate import Gate
from chimera.federation.policy.requests import Call, Decision, Held, Later, Refused, Requester
from chimera.federation.policy.rules import LEARNER, START
from chimera.training.progress.callback import Callback
from federation.data_kit import MLP, NAMES, table, thirds, written
from federation.federation_kit import AllowAll, Federation, Running
from federation.federation_kit import federation as federation_of
from federation.policy_kit import BARE, gate_of

POLICY = BARE.replace("[models.mlp]", "[models.mlp]\nhidden = 'any'\n[release]\nmetrics = ['loss', 'accuracy']")
POLICY = POLICY.replace("[strategies.fed-avg]", "[strategies.fed-avg]\nlocal_steps = 'any'")

pytestmark = [pytest.mark.usefixtures("own_folder"), pytest.mark.takes("it trains on nodes behind a hub")]


class Nodes:
    """A hub and three nodes with data, which tests start and stop."""

    def __init__(self, place: Federation, folder: Path) -> None:
        self.place = place
        data = written(folder, thirds(table()))
        self.kinds = {own.node: node_actors(own, Disclosure()) for own in data}
        self.credentials: dict[str, Credentials] = {name: place.join("node", name) for name in NAMES}
        self.running: dict[str, Running] = {}
        place.join("requester", "alice")

    def gate(self, name: str, text: str = "", **options: Any) -> Gate:
        """Return the gate of a node, with a policy that allows the runs of these tests."""
        gate = gate_of(self.place.folder / name, POLICY + text, **options)
        self.place.stack.callback(gate.close)
        return gate

    def start(self, *names: str, gate: Any = None) -> None:
        for name in names:
            self.running[name] = self.place.node(self.credentials[name], gate, self.kinds[name])

    def stop(self, *names: str) -> None:
        for name in names:
            self.running[name].stop()

    def engine(self, **options: Any) -> dict[str, Any]:
        given = {
            "nodes": list(NAMES),
            "away_s": 0.3,
            "hub": self.place.url,
            "identity": str(self.place.folder / "alice"),
        }
        return {"name": "federation", **given, **options}


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with federation_of(tmp_path) as place:
        yield Nodes(place, tmp_path)


class Closed(AllowAll):
    """A gate that makes calls of a method wait for its hours, while it is closed; it may open at a request of its own."""

    def __init__(
        self,
        method: str,
        *,
        closed: bool = True,
        decision: Decision = Later("hours", 1),  # noqa: B008
        opens_at: int = 0,
    ) -> None:
        self.closed, self._method, self._decision, self._left = closed, method, decision, opens_at

    def request(self, requester: Requester, call: Call) -> Decision:
        if not self.closed or call.method != self._method:
            return super().request(requester, call)
        self._left -= 1
        self.closed = self._left != 0
        return self._decision if self.closed else super().request(requester, call)

    def open(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


class When(Callback):
    """Does something once after some rounds, and when an event or a notice with some words comes; records both."""

    def __init__(
        self, rounds: dict[int, Callable[[], None]], words: dict[str, Callable[[], None]] | None = None
    ) -> None:
        self._rounds, self._words = dict(rounds), dict(words or {})
        self.told: list[str] = []

    def on_progress(self, progress: Any) -> None:
        for number in [number for number in self._rounds if progress.rounds >= number]:
            self._rounds.pop(number)()

    def on_event(self, event: Any) -> None:
        self.on_notice(f"{event.event} {event.actor}: {event.detail}")

    def on_notice(self, notice: str) -> None:
        self.told.append(notice)
        for words in [words for words in self._words if words in notice]:
            threading.Thread(target=self._words.pop(words)).start()


def train(engine: dict[str, Any], *callbacks: Callback, **options: Any) -> Any:
    given = {
        "workers": 3,
        "strategy": {"name": "fed-avg", "local_steps": 2},
        "optimizer": {"name": "sgd", "lr": 0.1},
        "batch_size": 20,
        "log_every": 1,
        "out": Path("run"),
        "progress": False,
        **options,
    }
    return chimera.train(MLP, engine=engine, callbacks=list(callbacks), **given)


def joined(run: Any) -> list[str]:
    return [f"{event.event} {event.actor}" for event in run.events]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("named", [True, False])
def test_a_run_starts_with_enough_nodes_and_a_later_node_joins(nodes: Nodes, named: bool) -> None:
    nodes.start("north", "west")
    seen: list[int] = []
    when = When({3: lambda: nodes.start("south")})
    when.on_model = lambda *_: seen.append(1)  # type: ignore[method-assign]
    engine = nodes.engine(min_nodes=2, **({} if named else {"nodes": "all"}))
    run = train(engine, when, rounds=60)
    assert joined(run) == [f"worker joined worker {1 if named else 2}"]
    assert run.cost.rounds == 60
    assert run.metrics["accuracy"] > 0.9


def test_a_run_waits_for_its_first_nodes_and_says_for_which(nodes: Nodes) -> None:
    nodes.start("north")
    when = When({}, {"waits for 1 more node; not connected: south, west": lambda: nodes.start("west")})
    run = train(nodes.engine(min_nodes=2), when, rounds=3)
    assert run.cost.rounds == 3
    assert sum("waits for" in text for text in when.told) == 1


def test_a_run_with_too_few_nodes_pauses_and_goes_on(nodes: Nodes) -> None:
    nodes.start(*NAMES)
    when = When(
        {3: lambda: nodes.stop("south"), 6: lambda: nodes.stop("west")},
        {"waits for 1 more node": lambda: nodes.start("west")},
    )
    run = train(nodes.engine(min_nodes=2), when, rounds=40, max_restarts=0)
    assert joined(run) == [
        "worker lost worker 1",
        "worker lost worker 2",
        "paused ",
        "worker respawned worker 2",
        "resumed ",
    ]
    assert "waits for 1 more node; not connected: south, west" in when.told
    assert run.cost.rounds == 40


class Leaves(AllowAll):
    """A gate that counts updates. At one of them, and not at its repetition, it calls a function, and the update waits."""

    def __init__(self, method: str = "delta", at: int = 0, leave: Callable[[], None] = lambda: None) -> None:
        self.updates, self._method, self._at, self._leave = 0, method, at, leave

    def request(self, requester: Requester, call: Call) -> Decision:
        if call.method != self._method:
            return super().request(requester, call)
        self.updates += 1
        if self.updates == self._at:
            threading.Thread(target=self._leave).start()
        return Later("hours", 1) if self._at and self.updates >= self._at else super().request(requester, call)


@pytest.mark.parametrize(
    ("strategy", "method", "options"),
    [
        ({"name": "fed-avg", "local_steps": 2}, "delta", {}),
        ({"name": "fed-avg", "local_steps": 2}, "delta", {"privacy": {"clip": 1.0, "noise": 1.0}}),
        ({"name": "parameter-server"}, "gradient", {}),
    ],
)
def test_a_round_ends_without_a_node_that_leaves_during_it(
    nodes: Nodes, strategy: Any, method: str, options: Any
) -> None:
    north = Leaves(method)
    nodes.start("north", gate=north)
    nodes.start("west")
    nodes.start("south", gate=Leaves(method, 4, lambda: nodes.stop("south")))
    run = train(nodes.engine(min_nodes=2), strategy=strategy, rounds=8, max_restarts=0, **options)
    assert joined(run) == ["worker lost worker 1"]
    assert (run.cost.rounds, run.cost.lost_rounds, north.updates) == (8, 0, 8)


def test_a_round_that_too_few_nodes_end_is_repeated(nodes: Nodes) -> None:
    north = Leaves()
    nodes.start("north", gate=north)
    nodes.start("south", gate=Leaves("delta", 4, lambda: nodes.stop("south")))
    when = When({}, {"waits for 1 more node": lambda: nodes.start("west")})
    run = train(nodes.engine(min_nodes=2), when, rounds=8, max_restarts=0)
    assert "worker joined worker 2" in joined(run)
    assert (run.cost.rounds, run.cost.lost_rounds, north.updates) == (8, 1, 9)


def test_a_run_that_does_not_replace_nodes_names_the_option_that_it_misses(nodes: Nodes) -> None:
    nodes.start(*NAMES)
    when = When({2: lambda: nodes.stop("south")})
    with pytest.raises(TooFewWorkersError, match="2 workers left, fewer than min_nodes = 3"):
        train(nodes.engine(min_nodes=3), when, rounds=40, on_worker_loss="drop")


@pytest.mark.long
def test_a_run_that_is_resumed_with_other_nodes_goes_on(nodes: Nodes) -> None:
    nodes.start("north", "south")
    train(nodes.engine(min_nodes=2), rounds=4)
    nodes.stop("south")
    nodes.start("west")
    when = When({6: lambda: nodes.start("south")})
    run = train(nodes.engine(min_nodes=2), when, rounds=40, resume=True)
    assert joined(run) == ["worker joined worker 1"]
    assert run.cost.rounds == 40
    assert any("a resumed run is another run" in text for text in when.told)


def test_a_run_without_a_checkpoint_may_be_resumed_and_nodes_may_leave_during_its_start(nodes: Nodes) -> None:
    class Leaving(AllowAll):
        def request(self, requester: Requester, call: Call) -> Decision:
            threading.Thread(target=nodes.stop, args=("south",)).start()
            return Held(1)

    nodes.start("north", "west")
    nodes.start("south", gate=Leaving())
    when = When({})
    run = train(nodes.engine(min_nodes=2), when, rounds=3, resume=True)
    assert run.cost.rounds == 3
    assert "there is no run to resume here: a new run begins" in when.told


@pytest.mark.long
def test_a_later_node_that_refuses_is_left_out(nodes: Nodes) -> None:
    nodes.start("north", "west")
    gate = Closed(START, decision=Refused("not this one"))
    run = train(
        nodes.engine(min_nodes=2), When({3: lambda: nodes.start("south", gate=gate)}), rounds=100, max_restarts=1
    )
    assert run.cost.rounds == 100
    assert joined(run) == ["worker lost worker 1", "worker lost worker 1", "worker dropped worker 1"]
    assert "not this one" in run.events[0].detail


@pytest.mark.long
def test_ctrl_c_ends_a_run_that_waits(nodes: Nodes) -> None:
    nodes.start("north", "south")
    interrupt = {"waits for 1 more node": lambda: os.kill(os.getpid(), signal.SIGINT)}
    with pytest.raises(KeyboardInterrupt):
        train(
            nodes.engine(min_nodes=2),
            When({3: lambda: nodes.stop("south")}, interrupt),
            rounds=10**6,
            checkpoint_every=1,
        )
    nodes.start("south")
    assert train(nodes.engine(min_nodes=2), rounds=10, resume=True).cost.rounds == 10


@pytest.mark.parametrize("given", [0, 4])
def test_min_nodes_must_fit_the_nodes_and_the_workers(nodes: Nodes, given: int) -> None:
    with pytest.raises(ConfigurationError, match="option 'min_nodes': must be at least 1, and at most"):
        train(nodes.engine(min_nodes=given), rounds=1)
    with pytest.raises(ConfigurationError, match="option 'min_nodes': is 3, but there are 2 workers"):
        train(nodes.engine(min_nodes=3), rounds=1, workers=2)


def test_a_worker_that_is_lost_before_its_first_step_is_made_again(nodes: Nodes) -> None:
    blocked, made = threading.Event(), nodes.kinds["south"][LEARNER]

    def slow_at_first(*given: Any, **options: Any) -> Any:
        learner = made(*given, **options)
        if not blocked.is_set():
            blocked.set()
            threading.Event().wait(1.0)
        return learner

    nodes.kinds["south"] = {**nodes.kinds["south"], LEARNER: slow_at_first}
    for name in NAMES:
        nodes.start(name, gate=nodes.gate(name))
    run = train(nodes.engine(timeout_s=0.5), rounds=5)
    assert joined(run) == ["worker lost worker 1", "worker respawned worker 1"]
    entries = [
        json.loads(line)["entry"] for line in (nodes.place.folder / "south" / "audit.jsonl").read_text().splitlines()
    ]
    assert "refused" not in {entry["decision"] for entry in entries}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("method", [START, "delta"])
def test_a_run_waits_for_the_hours_of_a_policy(nodes: Nodes, method: str) -> None:
    gate = Closed(method)
    nodes.start("north")
    nodes.start("south", gate=gate)
    text = "waits for the hours of the policy of south, which allows requests again in 0 h 1 min"
    when = When({}, {text: gate.open})
    run = train(nodes.engine(nodes=["north", "south"]), when, workers=2, rounds=3)
    assert joined(run) == []
    assert when.told.count(text) == 1


@pytest.mark.long
def test_a_run_need_not_wait_for_the_hours_of_a_policy(nodes: Nodes) -> None:
    gate = Closed("delta", closed=False)
    nodes.start("north")
    nodes.start("south", gate=gate)
    when = When({2: gate.close}, {"worker lost": gate.open})
    engine = nodes.engine(nodes=["north", "south"], min_nodes=1, policy_wait_s=0.3)
    run = train(engine, when, workers=2, rounds=10, max_restarts=0)
    assert joined(run) == ["worker lost worker 1", "worker respawned worker 1"]


@pytest.mark.long
@pytest.mark.parametrize("decision", [Held(1), Later("day", 1)])
def test_a_waiting_call_is_not_silent(nodes: Nodes, decision: Decision, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chimera.training.cluster.heartbeat._MAX_TIMEOUTS", 1)
    nodes.start("north", gate=Closed("delta", decision=decision, opens_at=4))  # a call asks each second
    engine = nodes.engine(nodes=["north"], health_every_s=60.0)
    run = train(engine, When({}), workers=1, rounds=2, worker_timeout_s=1.5)
    assert joined(run) == []
