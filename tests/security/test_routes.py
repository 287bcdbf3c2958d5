"""Attacks on every route of every server; the applications list their routes."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chimera.engines.http import wire
from chimera.web.logs import close_logs
from chimera.web.middleware import OPEN_PATHS
from nodes.served import LIMIT_S
from security.attacker import BEARER, Attacker
from security.servers import SERVERS, Route, Server, served

WRONG = ("Authorization", "Bearer wrong")
FOREIGN = {"host": "evil.example", "origin": "http://evil.example"}
PLACES = [
    "os:system", "1", "..", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "..%5c..", "%00", "%0d%0aX: y", "%ff%fe", "-1", "~",
    "9" * 400, "a" * 5000, "%F0%9F%92%A3", "con", "{}", "' OR 1=1 --".replace(" ", "%20"),
]  # fmt: skip
QUERIES = [
    "first=-1", "first=99999999999999999999", "first=x", "log=-1&watch=-1", "log=1e9", f"watch={'9' * 300}", "now=&log=%00",
    "engine=" + "k" * 5000, "engine=os:system", "&&&=;=%ff", "first=0&first=1", "engine=%00",
]  # fmt: skip
DEEP = 100_000
JSON = "application/json"
BODIES = [
    (JSON, b""), (JSON, b"{"), (JSON, b"[]"), (JSON, b"null"), (JSON, b'"' + b"\xff" * 9 + b'"'), (JSON, b"{}"),
    (JSON, b'{"a":' * DEEP + b"1" + b"}" * DEEP), (JSON, b"[" * DEEP), (JSON, b'{"queries":[NaN,Infinity,-Infinity]}'),
    (JSON, b'{"weights":' + b"9" * 5000 + b"}"), (JSON, b'{"key":1,"key":[],"key":{}}'), (JSON, b'{"\\ud800":"\\udfff"}'),
    ("text/plain", b"a=1"), ("application/x-www-form-urlencoded", b"a=1"), ("multipart/form-data", b"--x"),
    (wire.CONTENT_TYPE, b""), (wire.CONTENT_TYPE, b"\xff" * 64), (wire.CONTENT_TYPE, b"\xff\xff\xff\xff\xff\xff\xff\x7f{}"),
    (wire.CONTENT_TYPE, wire.pack({})), (wire.CONTENT_TYPE, wire.pack([])), (wire.CONTENT_TYPE, wire.pack({"a": 1})[:-1]),
]  # fmt: skip
HOSTILE: list[Any] = [
    None,
    -1,
    1 << 70,
    1e308,
    "",
    "os:system",
    "../../etc/passwd",
    [],
    {},
    [[[]]],
    {"a": "b"},
    True,
    "x" * 9999,
]
REFUSED = {400, 404, 405, 409, 411, 413, 415, 422}
NOT_NOW = {503, 504}  # a worker that is not there, a model that is not computed


@pytest.fixture(scope="module", autouse=True)
def _logs() -> Iterator[None]:
    yield
    close_logs()


@pytest.fixture(scope="module")
def canary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[str], Path]]:
    """Names by path of a function that must not be imported, and the file that its import creates."""
    folder = tmp_path_factory.mktemp("canary")
    file, mark = folder / "canary_of_routes.py", folder / "sang"
    file.write_text(f"import pathlib\npathlib.Path({str(mark)!r}).touch()\ndef sing(*args, **options): pass\n")
    sys.path.insert(0, str(folder))
    yield ["canary_of_routes:sing", f"{file}:sing"], mark
    sys.path.remove(str(folder))


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(request.param, tmp_path_factory.mktemp("server")) as running:
        yield running


class Client(Attacker):
    """Keeps a connection, as far as the server does."""

    _kept: socket.socket | None = None

    def status(
        self, method: str, target: str, *headers: tuple[str, str], host: str = "", body: bytes | None = None
    ) -> int:
        """Return the status of the answer to a request, whose body is read; 0 if the server hangs up without one."""
        sized = () if body is None else (("Content-Length", str(len(body))),)
        lines = [f"{name}: {value}" for name, value in (("Host", host or self.own), *headers, *sized)]
        head = "\r\n".join([f"{method} {target} HTTP/1.1", *lines, "Connection: close", "", ""]).encode("latin-1")
        with self.connected() as client, contextlib.suppress(ConnectionError):
            with contextlib.suppress(ConnectionError):  # an early refusal, which stands in the answer
                client.sendall(head + (body or b""))
            with client.makefile("rb") as stream:
                first = stream.readline()
                self.head = first + b"".join(iter(lambda: stream.readline().strip(), b""))
                return int(first.split()[1]) if first else 0
        return 0


def filled(route: Route, place: str = "1") -> str:
    return re.sub(r"{\w+(:\w+)?}", place, route.path)


def bodies(value: Any, by: Any) -> Iterator[Any]:
    """Yield the value with each of its parts replaced, one at a time."""
    yield by
    if isinstance(value, dict):
        for key, part in value.items():
            yield from ({**value, key: other} for other in bodies(part, by))
            yield {k: v for k, v in value.items() if k != key}
    elif isinstance(value, list) and value:
        yield from ([other, *value[1:]] for other in bodies(value[0], by))


def harmless(routes: list[Route]) -> list[Route]:
    """Return the routes but the one that ends the server, which needs its token."""
    return [route for route in routes if not route.path.endswith("/stop")]


def test_applications_list_their_routes(server: Server) -> None:
    paths = {route.path for route in server.routes}
    assert {"/health", "/metrics", "/docs", "/openapi.json"} < paths
    assert any(path.startswith("/v1/") for path in paths)
    pages = set(server.app.openapi()["paths"])
    assert pages <= paths


def test_without_the_token_no_route_answers(server: Server) -> None:
    client = Client(server.url)
    body = json.dumps({"model": {"kind": "os:system"}}).encode()
    for route in server.routes:
        opened = route.path in OPEN_PATHS
        for headers in ((), (WRONG,), (BEARER, BEARER), (("Authorization", BEARER[1].replace("Bearer", "Basic")),)):
            for place in ("1", "os:system", "..%2f..%2fetc%2fpasswd"):
                target = filled(route, place)
                status = client.status(route.method, target, *headers, ("Content-Type", JSON), body=body)
                assert status in ({200, 204} if opened else {401}), (route, headers)
        assert client.status(route.method, filled(route), host=FOREIGN["host"]) in {401, 403}, route
        assert client.status(route.method, filled(route), ("Origin", FOREIGN["origin"])) in {401, 403}, route


def test_open_routes_reveal_nothing(server: Server) -> None:
    opened = {route.path for route in server.routes} & OPEN_PATHS
    assert opened - {"/health", "/docs", "/"} == set()
    for path in opened:
        _, headers, told = Client(server.url).ask(path)
        if path == "/health":
            allowed = {"status", "chimera", "binary", "instance", "name", "kind", "type", "task", "fitted", "epoch"}
            assert set(told) <= allowed
        else:
            assert headers["content-type"].startswith("text/html")


@pytest.mark.parametrize(
    "method", ["HEAD", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "get", "PATCH", "POST", "PUT", "DELETE"]
)
def test_other_methods_are_rejected(server: Server, method: str) -> None:
    client = Client(server.url)
    own = {(route.method, route.path) for route in server.routes}
    for path in {route.path for route in server.routes}:
        if (method, path) in own:
            continue
        target = filled(Route(method, path, {}))
        assert client.status(method, target) in ({200, 400, 404, 405} if path in OPEN_PATHS else {400, 401}), path
        assert client.status(method, target, BEARER) in REFUSED, path


def test_oversized_requests_are_rejected_before_reading(server: Server) -> None:
    client = Client(server.url)
    for route in harmless(server.routes):
        target = filled(route)
        for headers in ((), (BEARER,)):
            assert client.status(route.method, target, *headers, *[("X", "y")] * 200) == 431, route
            assert client.status(route.method, target, *headers, ("X", "y" * 70_000)) == 431, route
            assert client.status(route.method, target + "?" + "q" * 20_000, *headers) == 414, route
        announced = ("Content-Length", "9" * 17)
        assert client.status(route.method, target, BEARER, announced) == 413, route
        for length in ("-1", "1, 1", "0x10", "9" * 30, "+1", ""):
            assert client.status(route.method, target, BEARER, ("Content-Length", length)) in REFUSED | {0}, (
                route,
                length,
            )
        both = (("Content-Length", "5"), ("Transfer-Encoding", "chunked"))
        assert client.status(route.method, target, BEARER, *both) in {400}, route


@pytest.mark.sampled(4)
def test_invalid_bodies_paths_and_queries_break_nothing(server: Server, canary: tuple[list[str], Path]) -> None:
    client = Client(server.url)
    names, mark = canary
    for route in harmless(server.routes):
        if route.path in OPEN_PATHS:
            continue
        said: dict[Any, int] = {}
        targets = [filled(route, place) for place in (PLACES if "{" in route.path else [])]
        for target in [*targets, *(f"{filled(route)}?{query}" for query in QUERIES)]:
            said[target[:80]] = client.status(route.method, target, BEARER, body=None if route.method == "GET" else b"")
        if route.method in {"POST", "PUT", "PATCH"}:
            target = filled(route, f"by-{route.method}")  # so that no query waits for a model that another route serves
            for kind, body in BODIES:
                said[kind, body[:40]] = client.status(route.method, target, BEARER, ("Content-Type", kind), body=body)
            for by in [*HOSTILE, *names] if route.example else []:
                for value in bodies(route.example, by):
                    for kind, body in (
                        (JSON, _encoded(value)),
                        (wire.CONTENT_TYPE, wire.pack(value) if by != 1 << 70 else b""),
                    ):
                        said[kind, body[:200]] = client.status(
                            route.method, target, BEARER, ("Content-Type", kind), body=body
                        )
        bad = {what: status for what, status in said.items() if status not in REFUSED | NOT_NOW | {200}}
        assert not bad, route
    assert not mark.exists()


def _encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


def test_all_routes_were_reached_and_valid_requests_still_work(server: Server) -> None:
    client = Client(server.url)
    for route in harmless(server.routes):
        assert client.status(route.method, filled(route), BEARER, body=None if route.method == "GET" else b"") != 401
    assert client.ask("/health")[0] == 200
    status, _, page = client.ask("/metrics", BEARER)
    assert status == 200
    reached = {tuple(pair) for pair in re.findall(rb'chimera_requests_total{method="(\w+)",route="([^"]+)"', page)}
    missing = [
        route for route in harmless(server.routes)
        if (route.method.encode(), route.path.encode()) not in reached and route.path != "/metrics"
    ]  # fmt: skip
    assert not missing


@pytest.mark.long
def test_incomplete_request_heads_time_out_on_every_server(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        slow: dict[Any, socket.socket] = {}
        running = [stack.enter_context(served(name, tmp_path / name)) for name in ("sgd worker", "jobs", "inference")]
        for one in running:
            for route in one.routes:
                client = slow[one.name, route] = stack.enter_context(Attacker(one.url).connected())
                client.sendall(f"{route.method} {filled(route)} HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ".encode())
        assert all(Client(one.url).ask("/health")[0] == 200 for one in running)
        deadline_s = time.monotonic() + LIMIT_S
        for where, client in slow.items():
            client.settimeout(max(0.01, deadline_s - time.monotonic()))
            assert client.recv(12) == b"HTTP/1.1 408", where
