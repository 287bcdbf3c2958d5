"""Tests of requests that every web server rejects, by raw sockets against a server on loopback."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI, Request

from chimera.core.address import is_loopback
from chimera.core.errors import ConfigurationError
from chimera.nodes.settings import Settings, read_settings
from chimera.web.app import create_app, serve
from chimera.web.logs import close_logs, open_logs
from chimera.web.security import AnonymousAccess, anonymous_access, check_exposure, warn_if_exposed
from nodes.served import serving
from security.attacker import BEARER, TOKEN, Attacker, answer_of


@pytest.fixture(scope="module", autouse=True)
def _own_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with chdir(tmp_path_factory.mktemp("server")):
        yield
        close_logs()


def made(**given: Any) -> tuple[FastAPI, Settings]:
    """Return an app with a route that answers how many bytes it has read, and its settings."""
    router = APIRouter()

    @router.post("/v1/size")
    async def size(request: Request) -> dict[str, int]:
        return {"size": len(await request.body())}

    @router.get("/v1/rows")
    async def rows() -> dict[str, str]:
        return {"rows": "private"}

    settings = read_settings(worker_name="w", **given)
    app = create_app(title="A server", settings=settings, routers=[router], about={"name": "w", "kind": "worker"})
    return app, settings


@pytest.fixture(scope="module")
def open_server() -> Iterator[Attacker]:
    app, settings = made()
    with serving(app, settings) as url:
        yield Attacker(url)


@pytest.fixture(scope="module")
def locked_server() -> Iterator[Attacker]:
    app, settings = made(token=TOKEN)
    with serving(app, settings) as url:
        yield Attacker(url)


PATHS = ["/v1/rows", "/health", "/docs", "/metrics", "/openapi.json", "/", "/nowhere"]
FOREIGN = [
    {"host": "evil.example"}, {"host": "evil.example:{port}"}, {"host": "a.localhost:{port}"}, {"host": "0.0.0.0:{port}"},
    {"host": "127.0.0.1.evil.example"}, {"host": "192.168.1.5"}, {"host": "[::2]:{port}"},
    {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "https://{own}"}, {"Origin": "http://127.0.0.1:1"},
    {"Origin": "http://localhost:{port}"}, {"Origin": "http://[::1"}, {"Sec-Fetch-Site": "cross-site"},
]  # fmt: skip


@pytest.mark.parametrize("foreign", FOREIGN, ids=lambda given: "-".join(map("=".join, given.items())))
def test_without_a_token_foreign_hosts_and_origins_are_rejected(open_server: Attacker, foreign: dict[str, str]) -> None:
    given = {name: value.format(own=open_server.own, port=open_server.port) for name, value in foreign.items()}
    host = given.pop("host", "")
    for path in PATHS:
        status, _, body = open_server.ask(path, *given.items(), host=host)
        assert (status, body["details"]["errorMessage"]) == (403, "ForeignRequestError"), path
    assert open_server.ask("/v1/size", ("Content-Length", "0"), *given.items(), host=host, method="POST")[0] == 403


def test_without_a_token_loopback_names_are_accepted(open_server: Attacker) -> None:
    port = open_server.port
    for host in (
        "127.0.0.1",
        f"127.0.0.1:{port}",
        "127.9.9.9",
        f"localhost:{port}",
        "LOCALHOST",
        f"[::1]:{port}",
        "localhost:",
    ):
        assert open_server.ask(host=host)[0] == 200, host
    for name, value in (
        ("Origin", f"http://{open_server.own}"),
        ("Sec-Fetch-Site", "same-origin"),
        ("Sec-Fetch-Site", "none"),
    ):
        assert open_server.ask("/v1/rows", (name, value))[0] == 200, value


def test_open_paths_reject_foreign_origins(locked_server: Attacker) -> None:
    for path in ("/health", "/docs", "/"):
        assert locked_server.ask(path, host="evil.example")[0] == 403
        assert locked_server.ask(path, ("Origin", "http://evil.example"))[0] == 403
        assert locked_server.ask(path)[0] == (404 if path == "/" else 200)
        assert locked_server.ask(path, BEARER, host="evil.example")[0] != 403


def test_any_host_and_origin_is_accepted_with_the_token_only(locked_server: Attacker) -> None:
    foreign = ("Origin", "http://evil.example")
    assert locked_server.ask("/v1/rows", BEARER, foreign, host="node.example")[0] == 200
    for host in ("", "node.example"):
        for wrong in ([], [("Authorization", "Bearer wrong")], [BEARER, BEARER]):
            assert locked_server.ask("/v1/rows", foreign, *wrong, host=host)[0] == 401


@pytest.mark.parametrize(
    "host",
    ["[", "]", "[::1", "[v1.x]", "a b", "a/b", "x@127.0.0.1", "127.0.0.1:99999", "127.0.0.1:x", "", "\xff", "a" * 400],
)
@pytest.mark.parametrize("token", [None, TOKEN])
def test_a_malformed_host_is_400(host: str, token: str | None, request: pytest.FixtureRequest) -> None:
    server: Attacker = request.getfixturevalue("locked_server" if token else "open_server")
    for path in ("/v1/rows", "/health", "/nowhere"):
        with server.connected() as client:
            client.sendall(
                f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode("latin-1")
            )
            assert answer_of(client)[0] == 400


def test_no_host_and_two_hosts_are_400(open_server: Attacker) -> None:
    assert open_server.ask(host=None)[0] == 400
    assert open_server.ask("/v1/rows", ("Host", "127.0.0.1"), host="evil.example")[0] == 400


def test_every_response_forbids_framing(open_server: Attacker) -> None:
    for path, host in [*((path, "") for path in PATHS), ("/v1/rows", "evil.example"), ("/v1/rows", "[")]:
        _, headers, _ = open_server.ask(path, host=host)
        assert "frame-ancestors 'none'" in headers["content-security-policy"], path
        assert headers["x-content-type-options"] == "nosniff"
        is_page = headers["content-type"].startswith("text/html")
        assert (headers.get("referrer-policy") == "no-referrer") is is_page
        assert (headers.get("cross-origin-resource-policy") == "same-origin") is is_page


BEYOND = ["0.0.0.0", "::", "192.168.10.2", "a-host", "::ffff:10.0.0.1"]


@pytest.mark.parametrize("host", BEYOND)
def test_listening_beyond_loopback_needs_a_token_client_certificates_or_explicit_consent(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app, settings = made()
    with pytest.raises(ConfigurationError, match=r"CHIMERA_TOKEN.*CHIMERA_INSECURE=1") as refused:
        serve(app, host=host, port=0, settings=settings)
    assert "\n" not in str(refused.value)
    for name in ("cert", "key", "ca"):
        (tmp_path / name).touch()
    tls = {"tls_cert": tmp_path / "cert", "tls_key": tmp_path / "key", "tls_client_ca": tmp_path / "ca"}
    for given in ({"token": "secret"}, {"published_on_loopback": True}, tls):
        check_exposure(host, read_settings(**given))
        warn_if_exposed(host, 80, read_settings(**given))
    assert capsys.readouterr().err == ""
    open_logs()
    log = Path("chimera_status.log")
    before = log.read_text().count("WARNING")
    insecure = read_settings(insecure=True)
    check_exposure(host, insecure)
    warn_if_exposed(host, 80, insecure)
    assert f"{host}:80 WITHOUT A TOKEN" in capsys.readouterr().err
    assert log.read_text().count("WARNING") == before + 1


def test_listening_on_loopback_needs_no_token(capsys: pytest.CaptureFixture[str]) -> None:
    for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost", "::ffff:127.0.0.1"):
        assert is_loopback(host)
        check_exposure(host, read_settings())
        warn_if_exposed(host, 80, read_settings())
    assert capsys.readouterr().err == ""


def asked_by(app: FastAPI, client: str, host: str) -> int:
    """Return the status that a request from another address would get."""
    import asyncio

    import httpx

    async def asked() -> int:
        transport = httpx.ASGITransport(app, client=(client, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as session:
            return (await session.get("/v1/rows", headers={"Host": host})).status_code

    return asyncio.run(asked())


def test_an_app_without_a_token_in_another_server_answers_this_machine_only() -> None:
    app, _ = made()
    assert asked_by(app, "127.0.0.1", "127.0.0.1") == asked_by(app, "::1", "localhost") == 200
    assert asked_by(app, "10.0.0.9", "127.0.0.1") == 403


def test_insecure_servers_accept_addresses_and_the_machine_name_only() -> None:
    app, settings = made(insecure=True)
    assert anonymous_access(settings) is AnonymousAccess.INSECURE
    own = socket.gethostname()
    for host in ("10.0.0.1:80", "[fd00::1]:80", "localhost", *([own] if own.isascii() and own[0].isalnum() else [])):
        assert asked_by(app, "10.0.0.9", host) == 200, host
    assert asked_by(app, "10.0.0.9", "evil.example") == 403


def test_containers_accept_loopback_names_from_their_network() -> None:
    app, _ = made(published_on_loopback=True)
    assert asked_by(app, "192.168.10.1", "localhost:5001") == 200
    assert asked_by(app, "192.168.10.1", "evil.example") == asked_by(app, "192.168.10.1", "192.168.10.2") == 403
