"""Tests of a hostile node: the driver counts it as lost, and the run finishes with the other nodes."""

from __future__ import annotations

import contextlib
import math
import select
import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import numpy as np
import pytest

pytest.importorskip("fastapi")

import chimera
from chimera.core.errors import ActorError, ActorLost, ChimeraError, ConfigurationError
from chimera.core.message import Encoded
from chimera.engines.http import HttpEngine, Route, wire
from chimera.engines.http.failure import revived
from security.hostile import Attacker, network, nodes, rows

LIMIT_S = 30.0
ROUNDS = 4


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[str], Attacker]]:
    with nodes(tmp_path_factory.mktemp("nodes"), honest=3) as given:
        yield given


def train(urls: list[str], out: Path, **options: Any) -> Any:
    given = {
        "workers": len(urls),
        "rounds": ROUNDS,
        "batch_size": 10,
        "optimizer": {"name": "sgd", "lr": 0.1},
        "on_worker_loss": "drop",
        **options,
    }
    return chimera.train(network, (rows(9), rows(9)), engine={"name": "http", "nodes": urls}, out=out, **given)


def leaves(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield way
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from leaves(part, (*way, key))


ANSWER = {"cost": {"bytes_in": 0, "bytes_out": [0], "samples": 0, "lasted_s": 0.1}, "values": [None]}
HOSTILE = [[1], None, math.inf, -math.inf, math.nan, -1, 1 << 80, 1e300, "1", {"a": 1}, True, b"\xff", np.zeros(3), ()]


def put(told: Any, way: tuple[Any, ...], value: Any) -> Any:
    """Change one leaf."""
    if not way:
        return value
    for key in way[:-1]:
        told = told[key]
    told[way[-1]] = value
    return None


@pytest.mark.parametrize("way", list(leaves(ANSWER)), ids=str)
def test_no_value_in_an_answer_blocks_the_driver(
    way: tuple[Any, ...], hostile: tuple[list[str], Attacker], tmp_path: Path
) -> None:
    urls, attacker = hostile
    for value in HOSTILE:
        attacker.mangle = lambda _, told, value=value: put(told, way, value)  # type: ignore[misc]
        with HttpEngine(nodes=urls[-1:]) as engine:
            from chimera.training.worker.learner import Learner

            ref = engine.spawn(Learner, 0).samples()  # the constructor's arguments are missing: an answer all the same
            with pytest.raises((ActorError, ActorLost, TypeError)):
                engine.get(ref, LIMIT_S)
        attacker.mangle = None


FAILURE = {"kind": "ValueError", "module": "builtins", "summary": "no", "traceback": "", "content": {"args": ["no"]}}
MANGLED: dict[str, Any] = {
    "lasted_s is a list": lambda told: told["cost"].update(lasted_s=[1]),
    "samples are infinite": lambda told: told["cost"].update(samples=math.inf),
    "lasted_s is NaN": lambda told: told["cost"].update(lasted_s=math.nan),
    "bytes are negative": lambda told: told["cost"].update(bytes_in=-1),
    "too many values": lambda told: told.setdefault("values", []).append(wire.Packed(wire.pack(1))),
    "a damaged value": lambda told: told.update(values=[wire.Packed(b"\xff" * 40) for _ in told["values"]]),
    "a value not packed": lambda told: told.update(values=[1 for _ in told["values"]]),
    "no values": lambda told: told.pop("values"),
    "an exception": lambda told: (told.pop("values"), told.update(failure=FAILURE))[1],
    "no body": lambda _: b"",
    "noise": lambda _: b"\x00" * 1000,
    "a nested body": lambda _: _nested(),
}


def _nested() -> bytes:
    value = wire.pack(1)
    for _ in range(20):
        value = wire.pack([wire.Packed(value)])
    return value


@pytest.mark.parametrize("how", MANGLED)
def test_an_undecodable_answer_during_a_run_is_a_node_loss(
    how: str, hostile: tuple[list[str], Attacker], tmp_path: Path
) -> None:
    urls, attacker = hostile
    seen: list[str] = []

    def amid(method: str, told: dict[str, Any]) -> Any:
        seen.append(method)
        return MANGLED[how](told) if len(seen) > 5 else None

    attacker.mangle = amid
    try:
        run = train(urls, tmp_path / "run")
    finally:
        attacker.mangle = None
    assert run.cost.rounds == ROUNDS
    (lost,) = (event for event in run.events if event.event == "worker lost")
    assert lost.actor == "worker 3"
    assert np.isfinite(run.trained.parameters()).all()


def failed(**given: Any) -> BaseException:
    told = {"kind": "ValueError", "module": "builtins", "summary": "", "traceback": "", "content": None, **given}
    return revived(told, "worker 3", "samples", "chimera.training.worker.learner").exception()


def test_a_node_failure_cannot_name_an_arbitrary_class() -> None:
    content = {"args": ["x"], "state": {}}
    assert type(failed(content=content)) is ValueError
    for kind, module in [
        ("StopIteration", "builtins"),
        ("SystemExit", "builtins"),
        ("KeyboardInterrupt", "builtins"),
        ("eval", "builtins"),
        ("Learner", "chimera.training.worker.learner"),
        ("ActorLost", "chimera.core.errors"),
        ("CalledProcessError", "subprocess"),
        ("__class__", "builtins"),
    ]:
        assert type(failed(kind=kind, module=module, content=content)) is ActorError


def test_a_node_failure_writes_no_control_characters_to_the_terminal() -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\u202e\x9b2J"
    for error in (
        failed(summary=evil, traceback=evil, kind="X"),
        failed(content={"args": [evil, [evil]], "state": {"__notes__": [evil], "note": evil}}),
    ):
        assert not set(evil) & set("\x1b\x07\u202e\x9b") & set(str(error) + str(error.__cause__ or ""))
        assert not getattr(error, "__notes__", [])
    assert len(str(failed(summary="x" * 10**7, traceback="y" * 10**7))) < 50_000


def test_a_failure_that_cannot_be_recreated_is_sent_as_text() -> None:
    for content in ({"args": 5, "state": {}}, {"args": [], "state": 7}, {"args": {"a": 1}}, {"state": [1]}):
        assert isinstance(failed(content=content, kind="UnicodeDecodeError"), Exception)
        str(failed(content=content, kind="UnicodeDecodeError"))


def test_an_unreachable_address_is_rejected_at_start(hostile: tuple[list[str], Attacker], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        dead = f"http://127.0.0.1:{taken.getsockname()[1]}"
    for policy in ("respawn", "drop"):
        with pytest.raises(ChimeraError, match=dead) as caught:
            train([hostile[0][0], dead], tmp_path / policy, on_worker_loss=policy)
        assert "\n" not in str(caught.value)


def test_more_workers_than_nodes_are_rejected(hostile: tuple[list[str], Attacker], tmp_path: Path) -> None:
    with pytest.raises(ChimeraError, match=r"worker 2 .*2 nodes") as caught:
        train(hostile[0][:2], tmp_path / "run", workers=3)
    assert "\n" not in str(caught.value)


def test_one_node_with_two_addresses_is_rejected(hostile: tuple[list[str], Attacker], tmp_path: Path) -> None:
    url = hostile[0][0]
    for other in (url, url + "/", url.replace("127.0.0.1", "localhost"), url.replace("http", "HTTP")):
        with pytest.raises(ChimeraError, match="same node") as caught:
            train([url, other], tmp_path / "run")
        assert "\n" not in str(caught.value)


@contextlib.contextmanager
def forwarded(url: str) -> Iterator[str]:
    """Give a node a second address, as a router does."""
    to = urlsplit(url)

    class Forwarder(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection((to.hostname or "", to.port or 0)) as node:
                ways = {self.request: node, node: self.request}
                while True:
                    for side in select.select(list(ways), [], [])[0]:
                        if not (data := side.recv(1 << 16)):
                            return
                        ways[side].sendall(data)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Forwarder) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_one_node_with_two_addresses_that_differ_is_rejected(
    hostile: tuple[list[str], Attacker], tmp_path: Path
) -> None:
    url = hostile[0][0]
    with forwarded(url) as other, pytest.raises(ConfigurationError) as caught:
        train([url, other], tmp_path / "run")
    assert (
        str(caught.value) == f"engine 'http', option 'nodes': {url!r} and {other!r} are the same node: give each once"
    )


class Asked:
    """An actor behind a route of all nodes."""

    routes: ClassVar = {"told": Route(verb="GET", path="/health", encode=lambda _: None, decode=lambda _, body: body)}


def test_two_addresses_of_one_node_are_no_two_actors_behind_routes(hostile: tuple[list[str], Attacker]) -> None:
    url = hostile[0][0]
    with forwarded(url) as other, HttpEngine(nodes=[url, other]) as engine:
        first = engine.spawn(Asked)
        assert engine.get(first.told(), LIMIT_S)["status"] == "ok"
        with pytest.raises(ConfigurationError, match=f"{url}.*{other}.* are the same node"):
            engine.spawn(Asked)


def _other_size(told: dict[str, Any]) -> None:
    piece = told["values"][0].open()
    told["values"][0] = wire.Packed(wire.pack(Encoded("identity", 3, (np.zeros(3, np.float32),))))
    assert isinstance(piece, Encoded)


@pytest.mark.parametrize("aggregation", ["median", {"name": "trimmed-mean", "share": 0.25}])
@pytest.mark.parametrize("strategy", ["parameter-server", "fed-avg"])
def test_messages_of_another_size_do_not_end_the_run(
    strategy: str, aggregation: Any, hostile: tuple[list[str], Attacker], tmp_path: Path
) -> None:
    urls, attacker = hostile

    def resize(_: str, told: dict[str, Any]) -> None:
        values = told.get("values") or [None]
        if type(values[0]) is wire.Packed and isinstance(values[0].open(), Encoded):
            _other_size(told)

    attacker.mangle = resize
    try:
        run = train(urls, tmp_path / "run", strategy={"name": strategy, "aggregation": aggregation})
    finally:
        attacker.mangle = None
    assert run.cost.rounds == ROUNDS
    assert any("cannot be read" in event.detail for event in run.events)
    assert np.isfinite(run.trained.parameters()).all()


@pytest.mark.parametrize("rows_told", [-1, 1 << 60, 2.5, math.inf, None, "many"])
def test_a_node_with_an_impossible_number_of_rows_is_lost_at_the_start(
    rows_told: Any, hostile: tuple[list[str], Attacker], tmp_path: Path
) -> None:
    urls, attacker = hostile

    def boast(method: str, told: dict[str, Any]) -> None:
        if method == "samples":
            told["values"] = [wire.Packed(wire.pack(rows_told))]

    attacker.mangle = boast
    try:
        run = train(urls, tmp_path / "run")
    finally:
        attacker.mangle = None
    assert run.cost.rounds == ROUNDS
    assert [event.actor for event in run.events if event.event == "worker lost"] == ["worker 3"]
    assert "rows" in next(event.detail for event in run.events if event.event == "worker lost")
