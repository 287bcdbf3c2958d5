"""Attacks on the server of the live page: tokens, other sites, other files, malformed and slow requests."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from chimera.web.live import server as live
from chimera.web.live.pieces import PIECE_BYTES
from chimera.web.live.server import ROUTES, LivePage
from nodes.served import LIMIT_S
from security.attacker import Attacker
from web.live_kit import page_of, write_run

TARGETS = {"/v1/live/run": "/v1/live/run?run=0", "/v1/live/rows": "/v1/live/rows?run=0&file=trace"}
DATA = [TARGETS.get(route, route) for route in ROUTES if route != "/"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run")


@pytest.fixture
def page(run: Path) -> Iterator[LivePage]:
    with page_of(run) as served:
        yield served


def client(page: LivePage) -> Attacker:
    return Attacker(page.address.rstrip("/"))


def bearer(page: LivePage) -> tuple[str, str]:
    return "Authorization", f"Bearer {page.token}"


def test_all_routes_are_known_and_data_needs_the_token(page: LivePage) -> None:
    assert set(ROUTES) == {"/", "/v1/live/state", "/v1/live/run", "/v1/live/rows"}
    own = bearer(page)
    for target in DATA:
        assert client(page).ask(target, own)[0] == 200
        for headers in ([], [("Authorization", "Bearer wrong")], [own, own], [("Authorization", page.token)]):
            status, _, answer = client(page).ask(target, *headers)
            assert (status, answer) == (401, {"error": "the token is missing or wrong"}), (target, headers)
        assert client(page).ask(f"{target}&token={page.token}")[0] == 401


def test_the_page_itself_has_no_data_and_a_strict_policy(page: LivePage, run: Path) -> None:
    status, headers, content = client(page).ask("/")
    assert status == 200
    assert page.token.encode() not in content
    assert str(run).encode() not in content
    policy = headers["content-security-policy"]
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert not re.search(rb"(src|href)=\"(?!data:,)", content)  # it loads nothing


@pytest.mark.parametrize("target", ["/", *DATA])
def test_other_sites_are_refused(page: LivePage, target: str) -> None:
    own = bearer(page)
    assert client(page).ask(target, own, host="evil.example")[0] == 403  # DNS rebinding
    assert client(page).ask(target, own, ("Origin", "http://evil.example"))[0] == 403
    assert client(page).ask(target, own, ("Sec-Fetch-Site", "cross-site"))[0] == 403
    assert client(page).ask(target, own, host=None)[0] == 400
    assert client(page).ask(target, own, ("Host", "127.0.0.1"), host="127.0.0.1")[0] == 400


@pytest.mark.parametrize(
    "target",
    [
        "/../run/experiment.toml", "/v1/live/rows?run=0&file=../secret", "/v1/live/rows?run=0&file=experiment.toml", "/v1",
        "/v1/live/rows?run=0&file=%2e%2e%2fsecret", "/v1/live/run?run=-1", "/v1/live/run?run=1", "/v1/live/run?run=%C2%B2",
        "/v1/live/rows?run=0&file=trace&at=-1", "/v1/live/rows?run=0&file=trace&last=1e9", "/v1/live/run?run=" + "9" * 400,
        "/v1/live/rows?" + "&".join(f"a{i}=1" for i in range(50)), "/v1/live/run?run=" + "0" * 3000, "//evil.example/", "*",
    ],
)  # fmt: skip
def test_other_paths_files_and_numbers_are_refused(page: LivePage, target: str) -> None:
    assert client(page).ask(target, bearer(page))[0] in {400, 404, 414}
    assert client(page).ask("/v1/live/state", bearer(page))[0] == 200


def test_links_out_of_the_folder_are_not_followed(page: LivePage, run: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text('{"secret": 1}\n')
    for name in ("trace.jsonl", "experiment.toml", "summary.json"):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(tmp_path / "secret")
    assert client(page).ask(TARGETS["/v1/live/rows"], bearer(page))[0] == 400
    _, _, told = client(page).ask(TARGETS["/v1/live/run"], bearer(page))
    assert told["experiment"] == told["summary"] == {}
    assert told["notes"] == ["experiment.toml could not be read.", "summary.json could not be read."]


def test_a_named_pipe_in_the_folder_does_not_block_the_page(page: LivePage, run: Path) -> None:
    for name in ("trace.jsonl", "summary.json"):
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)
    assert client(page).ask(TARGETS["/v1/live/rows"], bearer(page))[0] == 400
    _, _, found = client(page).ask(TARGETS["/v1/live/run"], bearer(page))
    assert found["notes"] == ["summary.json could not be read."]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("experiment.toml", b"a = " + b"[" * 5000), ("experiment.toml", b"\xff\xfe"), ("summary.json", b"[" * 100_000),
        ("summary.json", b'"text"'), ("summary.json", b"9" * (2 << 20)), ("experiment.toml", b'strategy = "os:system"'),
        ("experiment.toml", b'[train]\nworkers = 1e9\n[strategy]\nname = 3'),
        ("experiment.toml", b'[train]\nworkers = 8\n[strategy]\nname = "d-psgd"\ntopology = "os:system"'),
        ("experiment.toml", b"[train]\nworkers = 999999999999"),
    ],
)  # fmt: skip
def test_hostile_files_of_a_run_break_nothing(page: LivePage, run: Path, name: str, content: bytes) -> None:
    (run / name).write_bytes(content)
    assert client(page).ask(TARGETS["/v1/live/run"], bearer(page))[0] == 200


def test_pieces_are_bounded(page: LivePage, run: Path) -> None:
    (run / "trace.jsonl").write_bytes(b'{"actor": "worker 0"}\n' * PIECE_BYTES)
    _, headers, lines = client(page).ask(TARGETS["/v1/live/rows"], bearer(page))
    assert len(lines) <= PIECE_BYTES
    assert int(headers["chimera-at"]) == len(lines)
    (run / "trace.jsonl").write_bytes(b"x" * 3 * PIECE_BYTES)  # one line without an end
    _, headers, lines = client(page).ask(TARGETS["/v1/live/rows"], bearer(page))
    assert (lines, int(headers["chimera-at"])) == (b"", PIECE_BYTES)


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "<b>"])
def test_other_methods_are_refused(page: LivePage, method: str) -> None:
    status, headers, answer = client(page).ask("/v1/live/state", bearer(page), method=method)
    assert status == 501
    assert headers["content-type"] == "application/json"
    assert "<" not in answer["error"]


def test_slow_and_many_connections_end(monkeypatch: pytest.MonkeyPatch, run: Path) -> None:
    monkeypatch.setattr(live, "_REQUEST_S", 0.5)
    monkeypatch.setattr(live, "_MAX_CONNECTIONS", 4)
    with page_of(run) as page, ExitStack() as stack:
        slow = [stack.enter_context(client(page).connected()) for _ in range(6)]
        for each in slow:
            with contextlib.suppress(ConnectionError):
                each.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
        for each in slow:
            each.settimeout(LIMIT_S)
            with contextlib.suppress(ConnectionError):
                assert each.recv(1) == b""
        status = 0
        while status != 200:  # the server may still count the last of them
            with contextlib.suppress(ConnectionError, IndexError):
                status = client(page).ask("/v1/live/state", bearer(page))[0]


def test_it_listens_on_loopback_only(page: LivePage) -> None:
    port = int(page.address.rstrip("/").rpartition(":")[2])
    others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), port, socket.AF_INET)} - {
        "127.0.0.1",
        "127.0.1.1",
    }
    for address in others:
        with pytest.raises(OSError), socket.create_connection((address, port), timeout=2):  # noqa: PT011 - any refusal
            pass
    assert page.address.startswith("http://127.0.0.1:")
