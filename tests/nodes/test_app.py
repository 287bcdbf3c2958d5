"""Common behaviour of all nodes: form of errors, token, limits, health, metrics, pages, server."""

from __future__ import annotations

import datetime
import ipaddress
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from fastapi import APIRouter, FastAPI
from pydantic import BaseModel

import chimera
from chimera.core import errors as core
from chimera.core.errors import ConfigurationError, DataError
from chimera.engines.http import wire
from chimera.nodes.settings import read_settings
from chimera.utils import parse_times_file
from chimera.web import errors
from chimera.web.app import create_app, serve
from chimera.web.logs import open_logs
from nodes.served import LIMIT_S, ask, error_of, free_port, serving

RAISED: dict[str, Exception] = {
    "data": DataError("row 3\nis odd"),
    "not-fitted": errors.NotFittedError("fit first"),
    "busy": errors.BusyError("wait"),
    "all-failed": errors.AllWorkersFailed("a: refused; b: refused"),
    "too-few": core.TooFewWorkersError("two are left"),
    "lost": core.ActorLost("gone"),
    "late": core.TimeLimitError("too late"),
    "not-finite": core.NonFiniteError("NaN"),
    "configuration": ConfigurationError("no such thing"),
    "run": core.RunError("cannot continue"),
    "unexpected": ZeroDivisionError("an internal secret"),
}


class Named(BaseModel):
    name: str
    size: int


def app_with_routes(kind: str = "worker", **given: Any) -> FastAPI:
    router = APIRouter()

    @router.get("/v1/raise/{what}")
    async def raises(what: str) -> None:
        raise RAISED[what]

    @router.post("/v1/named")
    async def named(body: Named) -> Named:
        return body

    @router.post("/v1/named-in-a-thread")
    def threaded(body: Named) -> Named:
        return body

    settings = read_settings(worker_name="w", **given)
    return create_app(title="A node", settings=settings, routers=[router], about={"name": "w", "kind": kind})


@pytest.mark.parametrize(
    ("what", "status"),
    [
        ("data", 422), ("not-fitted", 409), ("busy", 409), ("all-failed", 503), ("too-few", 503), ("lost", 503),
        ("late", 504), ("not-finite", 422), ("configuration", 422), ("run", 500),
    ],
)  # fmt: skip
def test_errors_have_a_status_and_their_message(what: str, status: int) -> None:
    answer = ask(app_with_routes(), "GET", f"/v1/raise/{what}")
    assert error_of(answer) == (status, type(RAISED[what]).__name__, str(RAISED[what]).replace("\n", " "))


def test_an_unexpected_error_shows_only_its_class_and_the_log_has_the_traceback() -> None:
    open_logs()
    answer = ask(app_with_routes(), "GET", "/v1/raise/unexpected")
    status, name, message = error_of(answer)
    assert (status, name) == (500, "ZeroDivisionError")
    assert "secret" not in message
    log = Path("chimera_status.log").read_text()
    assert "Traceback" in log
    assert "an internal secret" in log


def test_unknown_paths_and_methods_and_invalid_bodies_have_the_common_error_form() -> None:
    app = app_with_routes()
    assert error_of(ask(app, "GET", "/nowhere"))[0] == 404
    refused = ask(app, "DELETE", "/v1/named")
    assert (error_of(refused)[0], refused.headers["allow"]) == (405, "POST")
    assert ask(app, "PUT", "/health").headers["allow"] == "GET"
    for path in ("/v1/named", "/v1/named-in-a-thread"):
        assert error_of(ask(app, "POST", path, json={"name": "a"}))[:2] == (422, "RequestValidationError")
        assert error_of(ask(app, "POST", path, content=b"{", headers={"Content-Type": "application/json"}))[0] == 422
    assert "body.size: Field required" in ask(app, "POST", "/v1/named", json={"name": "a"}).json()["message"]


def test_every_route_except_health_and_docs_requires_the_token() -> None:
    app = app_with_routes(token="right")
    paths = ["/v1/named", "/metrics", "/openapi.json", "/nowhere"]
    wrong = [
        {}, {"Authorization": "right"}, {"Authorization": "Bearer"}, {"Authorization": "Bearer wrong"},
        {"Authorization": "Basic right"}, {"Authorization": "Bearer rightx"}, {"Authorization": b"Bearer r\xffght"},
    ]  # fmt: skip
    for path in paths:
        for headers in wrong:
            answer = ask(app, "GET", path, headers=headers)
            assert error_of(answer)[:2] == (401, "UnauthorizedError")
            assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert ask(app, "GET", path, headers={"Authorization": "bearer right"}).status_code != 401
    twice = [("Authorization", "Bearer right"), ("Authorization", "Bearer wrong")]
    assert ask(app, "GET", "/metrics", headers=twice).status_code == 401
    assert ask(app, "GET", "/health").status_code == ask(app, "GET", "/docs").status_code == 200
    assert "HTTPBearer" in ask(app, "GET", "/openapi.json", headers={"Authorization": "Bearer right"}).text


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("path", ["/v1/named", "/v1/named-in-a-thread"])
def test_the_length_of_a_body_is_limited(path: str, chunked: bool) -> None:
    app = app_with_routes(max_body_bytes=1024)
    begin, end = b'{"size": 1, "name": "', b'"}'
    for extra, status in ((0, 200), (1, 413)):
        body = begin + b"x" * (1024 - len(begin) - len(end) + extra) + end

        async def pieces(body: bytes = body) -> Any:
            for at in range(0, len(body), 100):
                yield body[at : at + 100]

        answer = ask(
            app, "POST", path, content=pieces() if chunked else body, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == status
        if status == 413:
            assert error_of(answer)[1:] == (
                "BodyTooLargeError",
                "the body is longer than the 1024 bytes that CHIMERA_MAX_BODY_BYTES allows",
            )


def test_a_server_does_not_read_a_body_beyond_the_limit() -> None:
    settings = read_settings(worker_name="w", max_body_bytes=1024)
    with serving(app_with_routes(max_body_bytes=1024), settings) as url:
        port = int(url.rsplit(":", 1)[1])
        with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as client:
            head = b"POST /v1/named HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            client.sendall(head + b"Content-Length: 99999999999\r\n\r\n")  # without any byte of the body
            assert client.recv(100).startswith(b"HTTP/1.1 413 ")
        with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as client:
            client.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n" + b"400\r\n" + b"x" * 1024 + b"\r\n1\r\nx\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 413 ")  # before the end of the body
        assert httpx.get(f"{url}/health").json()["status"] == "ok"


def test_health_returns_name_kind_and_version() -> None:
    expected = {"status": "ok", "name": "w", "kind": "worker", "chimera": chimera.__version__, "binary": True}
    app = app_with_routes()
    told, again = (ask(each, "GET", "/health").json() for each in (app, app_with_routes()))
    instance = told.pop("instance")
    assert told == expected
    assert ask(app, "GET", "/health").json()["instance"] == instance != again["instance"]


def test_metrics_count_requests_by_declared_route_and_status() -> None:
    app = app_with_routes()
    for path in ("/v1/raise/data", "/v1/raise/busy", "/strange/1", "/strange/2"):
        ask(app, "GET", path)
    page = ask(app, "GET", "/metrics")
    assert page.headers["Content-Type"].startswith("text/plain")
    assert 'chimera_requests_total{method="GET",route="/v1/raise/{what}",status="422"} 1.0' in page.text
    assert 'chimera_requests_total{method="GET",route="/v1/raise/{what}",status="409"} 1.0' in page.text
    assert 'chimera_requests_total{method="GET",route="none",status="404"} 2.0' in page.text
    assert 'chimera_request_seconds_count{route="/v1/raise/{what}"} 2.0' in page.text
    assert "strange" not in page.text
    assert (
        "chimera_requests_total{" not in ask(app_with_routes(), "GET", "/metrics").text
    )  # another app has its own metrics


def test_the_time_log_has_requests_of_masters_but_not_of_workers() -> None:
    open_logs()
    for kind in ("worker", "master"):
        app = app_with_routes(kind)
        ask(app, "POST", "/v1/named", json={"name": "a", "size": 1})
        ask(app, "GET", "/health")
        ask(app, "GET", "/v1/raise%0A/data")
    times = parse_times_file("chimera_time.log")
    assert times["worker"] == {}
    assert [re.sub(r":\d+", "", url) for url in times["master"]] == ["http://localhost/v1/named"]


def test_the_pages_load_nothing_from_other_machines() -> None:
    page = ask(app_with_routes(), "GET", "/docs")
    assert page.headers["Content-Type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//|@import|url\(", page.text)
    api = ask(app_with_routes(), "GET", "/openapi.json").json()
    assert set(api["paths"]) == {"/v1/raise/{what}", "/v1/named", "/v1/named-in-a-thread", "/metrics", "/health"}


def test_a_port_in_use_is_an_error_of_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"port {port} of 127.0.0.1: it is in use: stop the"):
            serve(app_with_routes(), host="127.0.0.1", port=port, settings=read_settings(worker_name="w"))


def test_an_address_of_another_machine_is_refused() -> None:
    for host in ("192.0.2.1", "no-such-host.invalid"):
        with pytest.raises(ConfigurationError, match="cannot listen on"):
            serve(app_with_routes(), host=host, port=0, settings=read_settings(worker_name="w", token="right"))


NODE = """
import sys, threading
from fastapi import APIRouter
from chimera.web.app import create_app, serve
from chimera.nodes.settings import read_settings

router = APIRouter()
held = threading.Event()

@router.get("/held")
async def held():
    import asyncio
    print("holding", flush=True)
    await asyncio.sleep(3600)

settings = read_settings(worker_name="w")
app = create_app(title="A node", settings=settings, routers=[router], about={"name": "w", "kind": "worker"})
serve(app, host="127.0.0.1", port=int(sys.argv[1]), settings=settings, on_started=lambda: print("started", flush=True))
print("cleaned up", flush=True)
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    port = free_port()
    (tmp_path / "node.py").write_text(NODE)
    command = [sys.executable, str(tmp_path / "node.py"), str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        yield process, port
        process.kill()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("busy", [False, True])
def test_a_signal_stops_the_server_but_not_the_program(
    node: tuple[subprocess.Popen[str], int], number: signal.Signals, busy: bool
) -> None:
    process, port = node
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    answers: list[httpx.Response] = []
    asked = threading.Thread(target=lambda: answers.append(httpx.get(f"http://127.0.0.1:{port}/held", timeout=LIMIT_S)))
    if busy:
        asked.start()
        assert process.stdout.readline() == "holding\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=10)  # a request that never ends is cut off after some seconds
    assert (process.returncode, out) == (0, "cleaned up\n"), err
    assert "Traceback" not in err
    if busy:
        asked.join(LIMIT_S)
        assert error_of(answers[0]) == (503, "NodeStopped", "this node is being stopped")


def certificate(folder: Path) -> tuple[Path, Path]:
    """Write a self-signed certificate for 127.0.0.1, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a node")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    cert_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = serialization.PrivateFormat.PKCS8
    key_file.write_bytes(key.private_bytes(serialization.Encoding.PEM, private, serialization.NoEncryption()))
    return cert_file, key_file


def test_with_a_certificate_a_node_serves_https_only(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    settings = read_settings(worker_name="w", tls_cert=cert, tls_key=key, token="right")
    with serving(app_with_routes(token="right"), settings) as url:
        trust = ssl.create_default_context(cafile=str(cert))
        headers = {"Authorization": "Bearer right"}
        with httpx.Client(verify=trust, timeout=LIMIT_S) as client:
            body = {"name": "a", "size": 1}
            assert client.post(f"{url}/v1/named", json=body, headers=headers).json() == body
            assert client.post(f"{url}/v1/named", json=body).status_code == 401
        with pytest.raises(httpx.TransportError):
            httpx.get(url.replace("https", "http") + "/health", timeout=LIMIT_S)
        with pytest.raises(httpx.ConnectError, match=r"(?i)certificate"):
            httpx.get(f"{url}/health", timeout=LIMIT_S)


def test_an_invalid_certificate_is_an_error_of_one_line(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    key.write_text("not a key")
    settings = read_settings(worker_name="w", tls_cert=cert, tls_key=key)
    with pytest.raises(ConfigurationError, match=r"CHIMERA_TLS_CERT '.*' cannot be used: SSLError") as caught:
        serve(app_with_routes(), host="127.0.0.1", port=0, settings=settings)
    assert "\n" not in str(caught.value)


def test_answers_are_binary_only_if_the_client_accepts_it(tmp_path: Path) -> None:
    from chimera.web.body import answer, read_object
    from chimera.web.routing import plain_router

    router = plain_router()

    @router.post("/echo")
    async def echo(request: Any) -> Any:
        return answer(request, await read_object(request))

    app = create_app(title="A node", settings=read_settings(worker_name="w"), routers=[router], about={})
    packed, binary = wire.pack({"a": [1.5]}), {"Content-Type": wire.CONTENT_TYPE}
    cases = [
        (packed, binary, True),
        (packed, binary | {"Accept": "application/json"}, False),
        (b'{"a": [1.5]}', {"Accept": wire.CONTENT_TYPE}, True),
        (b'{"a": [1.5]}', {}, False),
        (b'{"a": [1.5]}', {"Content-Type": "text/plain", "Accept": "*/*"}, False),
    ]
    for body, headers, expected in cases:
        got = ask(app, "POST", "/echo", content=body, headers=headers)
        assert (got.headers["Content-Type"] == wire.CONTENT_TYPE) is expected
        assert (wire.unpack(got.content) if expected else got.json()) == {"a": [1.5]}
    for body, headers in ((packed[:-3], binary), (b"", binary), (b"[1]", {}), (b"{", {}), (b"", {}), (b"\xff", {})):
        assert error_of(ask(app, "POST", "/echo", content=body, headers=headers))[:2] == (422, "DataError")
