"""Tests of limits on connections, by raw sockets against a server with small limits."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import StreamingResponse

from chimera.nodes.health import health_problem
from chimera.nodes.settings import Settings, read_settings
from chimera.web.app import create_app
from chimera.web.connection import Limits
from chimera.web.logs import close_logs
from nodes.served import LIMIT_S, serving
from nodes.test_app import certificate
from security.attacker import BEARER, TOKEN, Attacker, answer_of

LIMITS = Limits(
    head_bytes=2048, headers=10, url_bytes=256, head_s=1.0, window_s=0.3, window_bytes=100, drain_bytes=4096, drain_s=1.0,
    pipelined=4, connections=8, handshake_s=1.0,
)  # fmt: skip
LARGE = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def _own_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with chdir(tmp_path_factory.mktemp("server")):
        yield
        close_logs()


class Received:
    """What the routes of the app have seen."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.headers: list[dict[str, str]] = []
        self.dropped = threading.Event()


def made(received: Received, **given: Any) -> tuple[FastAPI, Settings]:
    router = APIRouter()

    @router.post("/v1/size")
    async def size(request: Request) -> dict[str, int]:
        received.sizes.append(len(await request.body()))
        received.headers.append(dict(request.headers))
        return {"size": received.sizes[-1]}

    @router.get("/v1/rows")
    async def rows() -> dict[str, int]:
        return {"rows": 1}

    @router.get("/v1/endless")
    async def endless() -> StreamingResponse:
        async def told() -> AsyncIterator[bytes]:
            try:
                while True:
                    yield b"x" * 65_536
                    await asyncio.sleep(0)
            finally:
                received.dropped.set()

        return StreamingResponse(told())

    settings = read_settings(worker_name="w", max_body_bytes=1 << 20, **given)
    return create_app(title="S", settings=settings, routers=[router], about={"name": "w", "kind": "worker"}), settings


@pytest.fixture(scope="module")
def received() -> Received:
    return Received()


@pytest.fixture(scope="module")
def server(received: Received) -> Iterator[Attacker]:
    app, settings = made(received, token=TOKEN)
    with serving(app, settings, limits=LIMITS) as url:
        yield Attacker(url)


def is_closed(client: socket.socket) -> bool:
    """Read the remaining bytes; return whether the server has closed the connection."""
    try:
        while client.recv(65_536):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def sent(client: socket.socket, *parts: bytes) -> None:
    """Send as much as the other side takes."""
    with contextlib.suppress(ConnectionError):
        for part in parts:
            client.sendall(part)


HEAD = f"Host: localhost\r\nAuthorization: Bearer {TOKEN}\r\n".encode()
GET = b"GET /v1/rows HTTP/1.1\r\n" + HEAD
POST = b"POST /v1/size HTTP/1.1\r\n" + HEAD


def test_a_missing_request_head_is_408(server: Attacker) -> None:
    begun = (b"", b"\r\n", b"GE", GET, GET + b"X-Slow: a", POST + b"Content-Length: 10")
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(server.connected()) for _ in begun]
        for client, part in zip(clients, begun, strict=True):
            client.sendall(part)
        for client in clients:
            assert answer_of(client)[0] == 408
            assert is_closed(client)


def test_a_slow_request_head_has_the_same_deadline(server: Attacker) -> None:
    with server.connected() as client:
        client.sendall(GET + b"X-Slow: ")
        answers = select.poll()  # unlike select(), it takes descriptors above 1023
        answers.register(client, select.POLLIN)
        while not answers.poll(10):
            client.sendall(b"a")
        assert answer_of(client)[0] == 408


def test_connections_may_idle_between_requests_only(server: Attacker) -> None:
    with server.connected() as idle, server.connected() as slow:
        for client in (idle, slow):
            client.sendall(GET + b"\r\n")
            assert answer_of(client)[0] == 200
        slow.sendall(b"\r\n")
        assert answer_of(slow)[0] == 408  # after as long as a head may take
        idle.sendall(GET + b"\r\n")
        assert answer_of(idle)[0] == 200


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (GET + b"X-Long: " + b"a" * LARGE, 431),
        (GET + b"".join(b"X-%d: a\r\n" % number for number in range(LARGE // 10)), 431),
        (GET + b"a:\r\n" * 10, 431),
        (GET + b"a" * LARGE, 431),
        (b"GET /" + b"a" * 300 + b" HTTP/1.1\r\n" + HEAD + b"\r\n", 414),
        (b"GET /" + b"a" * LARGE, 414),
        (b"GET " + b" " * LARGE, 400),
        (b"X" * LARGE, 400),
    ],
    ids=["header", "headers", "count", "name", "url", "endless-url", "spaces", "no-method"],
)  # fmt: skip
def test_an_oversized_head_is_rejected_before_buffering(server: Attacker, request_: bytes, status: int) -> None:
    with server.connected() as client:
        sent(client, request_)
        assert answer_of(client)[0] in (status, 431)
        assert is_closed(client)


def test_a_head_may_be_as_large_as_the_limit(server: Attacker) -> None:
    with server.connected() as client:
        client.sendall(GET + b"X: " + b"a" * (LIMITS.head_bytes - len(GET) - 7) + b"\r\n\r\n")
        assert answer_of(client)[0] == 200
        client.sendall(POST + b"Content-Length: 9000\r\n\r\n" + b"a" * 9000)  # of which the body is no part
        assert answer_of(client)[::2] == (200, {"size": 9000})


@pytest.mark.parametrize(
    "request_",
    [
        POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
        POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        POST + b"Content-Length: +3\r\n\r\nabc",
        POST + b"Content-Length: 99999999999999999999999\r\n\r\nabc",
        POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        POST + b"X: a\r\n b\r\n\x00: c\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET http://[ HTTP/1.1\r\n" + HEAD + b"\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\n" + HEAD + b"\r\n",
        b"CONNECT localhost:80 HTTP/1.1\r\n" + HEAD + b"\r\n",
        b"GET /v1/rows\r\n" + HEAD + b"\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_ambiguous_requests_are_400(server: Attacker, received: Received, request_: bytes) -> None:
    before = len(received.sizes)
    with server.connected() as client:
        client.sendall(request_)
        assert answer_of(client)[0] in (400, 405)
    assert len(received.sizes) == before


def test_trailers_are_not_headers(server: Attacker, received: Received) -> None:
    with server.connected() as client:
        client.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX-Late: yes\r\n\r\n" + GET + b"\r\n")
        assert answer_of(client)[0] == 200
    assert "x-late" not in received.headers[-1]
    with server.connected() as client:
        sent(client, POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX: ", *[b"a" * 65_536] * 64)
        assert is_closed(client)


@pytest.mark.long
def test_without_the_token_the_body_is_not_awaited(server: Attacker, received: Received) -> None:
    before = len(received.sizes)
    unlocked = b"POST /v1/size HTTP/1.1\r\nHost: localhost\r\n"
    for head in (b"Content-Length: 1000000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"):
        with server.connected() as client:
            client.sendall(unlocked + head)
            assert answer_of(client)[0] == 401
            assert is_closed(client)  # the rest did not come in time
        with server.connected() as client:
            client.sendall(unlocked + head)
            sent(client, b"ffff\r\n", *[b"a" * 65_536] * 1000)
            assert is_closed(client)
    with server.connected() as client:
        client.sendall(unlocked + b"Content-Length: 4\r\n\r\n")
        assert answer_of(client)[0] == 401
        client.sendall(b"late" + GET + b"\r\n")  # few enough bytes to read
        assert answer_of(client)[0] == 200
    assert len(received.sizes) == before


@pytest.mark.long
def test_an_oversized_body_is_rejected_by_its_length_or_while_reading(server: Attacker) -> None:
    with server.connected() as client:
        client.sendall(POST + b"Content-Length: 99999999\r\n\r\n")
        assert answer_of(client)[0] == 413
        assert is_closed(client)
    with server.connected() as client:
        sent(client, POST + b"Transfer-Encoding: chunked\r\n\r\n", *[b"10000\r\n" + b"a" * 65_536 + b"\r\n"] * 17)
        assert answer_of(client)[0] == 413
        assert is_closed(client)


@pytest.mark.parametrize("head", [b"Content-Length: 1000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n1\r\n"])
def test_a_missing_body_is_408(server: Attacker, received: Received, head: bytes) -> None:
    before = len(received.sizes)
    with server.connected() as client:
        client.sendall(POST + head + b"a")
        assert answer_of(client)[0] == 408
        assert is_closed(client)
    assert len(received.sizes) == before


def test_pipelined_requests_are_bounded(server: Attacker, received: Received) -> None:
    with server.connected() as client:
        client.sendall((POST + b"Content-Length: 0\r\n\r\n") * 3)
        for _ in range(3):
            assert answer_of(client)[0] == 200
        before = len(received.sizes)
        sent(client, (POST + b"Content-Length: 0\r\n\r\n") * 1000)
        assert is_closed(client)
    assert len(received.sizes) - before <= LIMITS.pipelined + 1


def test_a_client_that_does_not_read_is_dropped(server: Attacker, received: Received) -> None:
    with server.connected() as client:
        client.sendall(b"GET /v1/endless HTTP/1.1\r\n" + HEAD + b"\r\n")
        assert client.recv(15) == b"HTTP/1.1 200 OK"
        assert received.dropped.wait(LIMIT_S)


def test_unauthenticated_connections_do_not_block_clients(server: Attacker) -> None:
    with contextlib.ExitStack() as stack:
        known = stack.enter_context(server.connected())
        known.sendall(GET + b"\r\n")
        assert answer_of(known)[0] == 200
        strangers = [stack.enter_context(server.connected()) for _ in range(LIMITS.connections + 4)]
        assert server.ask("/v1/rows", BEARER)[0] == 200
        known.sendall(GET + b"\r\n")
        assert answer_of(known)[0] == 200
        assert is_closed(strangers[0])


@pytest.mark.parametrize("path", ["/health", "/docs", "/none"])
def test_unauthenticated_connections_with_answered_requests_do_not_block_clients(server: Attacker, path: str) -> None:
    with contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(server.connected()) for _ in range(LIMITS.connections)]
        for stranger in strangers:
            stranger.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            answer_of(stranger)
        assert server.ask("/v1/rows", BEARER)[0] == 200
        assert is_closed(strangers[0])


def test_too_many_clients_get_503(server: Attacker) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(LIMITS.connections):
            known = stack.enter_context(server.connected())
            known.sendall(GET + b"\r\n")
            assert answer_of(known)[0] == 200
        with server.connected() as client:
            assert answer_of(client)[0] == 503


def test_unfinished_tls_handshakes_do_not_use_up_the_files_of_the_process(tmp_path: Path, received: Received) -> None:
    """Each needs a descriptor. Without a free one, the server accepts no client, and the process cannot open its own files."""
    cert, key = certificate(tmp_path)
    app, settings = made(received, tls_cert=cert, tls_key=key, tls_client_ca=cert)
    limits = replace(LIMITS, handshakes=4, handshake_s=LIMIT_S)
    with serving(app, settings, limits=limits) as url, contextlib.ExitStack() as stack:
        server = Attacker(url)
        strangers = [stack.enter_context(server.connected()) for _ in range(limits.handshakes + 3)]
        assert [is_closed(each) for each in strangers[:3]] == [True] * 3
        assert health_problem(url, tls_cert=cert, tls_key=key, timeout_s=LIMIT_S) == ""  # replaces the fourth
        assert is_closed(strangers[3])
        for each in strangers[4:]:
            each.settimeout(0.01)
            assert not is_closed(each)


def test_connections_after_their_handshake_do_not_count_as_unfinished(tmp_path: Path, received: Received) -> None:
    cert, key = certificate(tmp_path)
    app, settings = made(received, tls_cert=cert, tls_key=key, token=TOKEN)
    trust = ssl.create_default_context(cafile=str(cert))
    limits = replace(LIMITS, handshakes=1)
    with serving(app, settings, limits=limits) as url, contextlib.ExitStack() as stack:
        server = Attacker(url)
        clients = []
        for _ in range(4):
            plain = stack.enter_context(server.connected())
            clients.append(stack.enter_context(trust.wrap_socket(plain, server_hostname="127.0.0.1")))
        for client in clients:
            client.sendall(GET + b"\r\n")
            assert answer_of(client)[0] == 200


def test_tls_handshakes_time_out_and_require_the_client_certificate(tmp_path: Path, received: Received) -> None:
    cert, key = certificate(tmp_path)
    (tmp_path / "other").mkdir()
    other = certificate(tmp_path / "other")
    app, settings = made(received, tls_cert=cert, tls_key=key, tls_client_ca=cert)
    with serving(app, settings, limits=LIMITS) as url:
        server = Attacker(url)
        with server.connected() as client:
            assert is_closed(client)
        assert health_problem(url, tls_cert=cert, tls_key=key, timeout_s=LIMIT_S) == ""
        assert health_problem(url, tls_cert=cert, timeout_s=LIMIT_S)
        for own, answered in ((None, False), (other, False), ((cert, key), True)):
            trust = ssl.create_default_context(cafile=str(cert))
            if own:
                trust.load_cert_chain(*own)
            found = b""
            with (
                contextlib.suppress(ssl.SSLError, ConnectionError),
                server.connected() as plain,
                trust.wrap_socket(plain, server_hostname="127.0.0.1") as client,
            ):
                client.sendall(b"GET /v1/rows HTTP/1.1\r\nHost: node.example\r\n\r\n")
                found = client.recv(15)
            assert found == (b"HTTP/1.1 200 OK" if answered else b"")
