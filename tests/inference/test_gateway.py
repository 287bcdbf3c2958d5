"""The fixed address of a cluster leads to the coordinator, also after another one has taken over."""

from __future__ import annotations

import contextlib
import http.client
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from chimera.core.errors import ConfigurationError
from chimera.inference.cluster_folder import client_of
from chimera.inference.gateway import Gateway, check_host, tls_context
from chimera.web.app import listen
from inference.running import cluster, command, signalled, until
from nodes.test_app import certificate

HEAD = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
MIB = 1 << 20


class Coordinator(BaseHTTPRequestHandler):
    """Answers its own port, as often as the path has bytes; never if the path is /hang."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer."""
        if self.path == "/hang":
            self.server.hung.wait()  # type: ignore[attr-defined]
        text = str(self.server.server_address[1]).encode() + b" " * int(self.path[1:] or 0)
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def coordinators(count: int) -> Iterator[list[str]]:
    """Run servers, and yield their addresses."""
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Coordinator))
            server.hung = threading.Event()  # type: ignore[attr-defined]
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            stack.callback(server.shutdown)
            stack.callback(server.hung.set)  # type: ignore[attr-defined]
            found.append(f"http://127.0.0.1:{server.server_address[1]}")
        yield found


@contextlib.contextmanager
def gateway(leader: list[str], **options: object) -> Iterator[int]:
    """Run a gateway to the last address of a list, and yield its port."""
    with listen("127.0.0.1", 0) as listener:
        passing = Gateway(listener, lambda: leader[-1] if leader else None, **options)  # type: ignore[arg-type]
        passing.start()
        try:
            yield listener.getsockname()[1]
        finally:
            passing.close()


def asked(port: int, path: str = "/") -> str:
    """Return the port of the server that answers a request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    with contextlib.closing(connection):
        connection.request("GET", path)
        return connection.getresponse().read().decode()


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 20)


def test_the_address_leads_to_each_leader_and_cuts_what_the_last_one_left_open() -> None:
    with coordinators(2) as (first, second), gateway(leader := [first]) as port:
        assert asked(port) == first.rpartition(":")[2]
        assert len(asked(port, f"/{8 * MIB}")) > 8 * MIB  # more than all buffers on the way
        with connected(port) as hung:
            hung.sendall(HEAD.replace(b"/ ", b"/hang ", 1))
            assert asked(port) == first.rpartition(":")[2]
            leader.append(second)
            with contextlib.suppress(ConnectionResetError):
                assert hung.recv(1) == b""
        assert asked(port) == second.rpartition(":")[2]


def test_a_connection_waits_for_a_leader() -> None:
    with coordinators(1) as (first,), gateway(leader := []) as port, connected(port) as early:
        early.sendall(HEAD)
        with connected(port) as closed:
            closed.sendall(HEAD)
        leader.append(first)
        assert early.recv(15) == b"HTTP/1.1 200 OK"


def test_without_a_leader_the_answer_is_that_of_a_process_that_stands_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chimera.inference.gateway.LEADER_S", 0.1)
    with listen("127.0.0.1", 0) as nothing:
        dead = f"http://127.0.0.1:{nothing.getsockname()[1]}"
    for leader in ([], [dead], ["nonsense"]):
        with gateway(leader) as port:
            answer = connected(port)
            with answer, answer.makefile("rb") as stream:
                answer.sendall(HEAD)
                told = stream.read()
            assert told.startswith(b"HTTP/1.1 503 ")
            assert b'"errorMessage": "NotCoordinator"' in told


def test_silent_connections_keep_no_client_out() -> None:
    with coordinators(1) as leader, gateway(leader, connections=4) as port, contextlib.ExitStack() as stack:
        kept = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        stack.enter_context(contextlib.closing(kept))
        kept.request("GET", "/")
        kept.getresponse().read()
        silent = [stack.enter_context(connected(port)) for _ in range(20)]
        assert asked(port) == leader[0].rpartition(":")[2]
        with contextlib.suppress(ConnectionResetError):
            assert silent[0].recv(1) == b""  # the oldest ones were replaced
        kept.request("GET", "/")
        assert kept.getresponse().status == 200


def test_the_address_may_have_a_certificate(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    tls = tls_context({"CHIMERA_TLS_CERT": str(cert), "CHIMERA_TLS_KEY": str(key)})
    with coordinators(1) as leader, gateway(leader, tls=tls) as port:
        trusting = ssl.create_default_context(cafile=str(cert))
        trusting.check_hostname = False
        with urllib.request.urlopen(f"https://127.0.0.1:{port}/", timeout=20, context=trusting) as answer:
            assert answer.read().decode() == leader[0].rpartition(":")[2]
    tls = tls_context({"CHIMERA_TLS_CERT": str(cert), "CHIMERA_TLS_KEY": str(key), "CHIMERA_TLS_CLIENT_CA": str(cert)})
    with coordinators(1) as leader, gateway(leader, tls=tls) as port:
        anonymous = trusting.wrap_socket(connected(port))
        with contextlib.closing(anonymous), contextlib.suppress(OSError):
            anonymous.sendall(HEAD)
            assert anonymous.recv(1) == b""


def test_an_address_beyond_this_machine_needs_tls(tmp_path: Path) -> None:
    check_host("127.0.0.1", {})
    check_host("0.0.0.0", {"CHIMERA_INSECURE": "1"})
    check_host("0.0.0.0", {"CHIMERA_TLS_CERT": "cert.pem"})
    with pytest.raises(ConfigurationError, match=r"--host 0\.0\.0\.0: tokens would travel to it in clear"):
        check_host("0.0.0.0", {})
    assert tls_context({}) is None
    for wrong in ({"CHIMERA_TLS_CERT": "a"}, {"CHIMERA_TLS_CLIENT_CA": "a"}):
        with pytest.raises(ConfigurationError, match="set both or none"):
            tls_context(wrong)
    (tmp_path / "cert.pem").write_text("no certificate")
    with pytest.raises(ConfigurationError, match=r"cert\.pem' cannot be used"):
        tls_context(dict.fromkeys(("CHIMERA_TLS_CERT", "CHIMERA_TLS_KEY"), str(tmp_path / "cert.pem")))


def up(folder: Path, *options: str) -> tuple[int, str]:
    """Return the exit code and the last line of a command that is refused."""
    words = ["infer", "up", "--workers", "0", "--preload", "", "--cluster", str(folder), *options]
    command = [sys.executable, "-m", "chimera", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stderr.strip().rpartition("\n")[2]


@pytest.mark.long
def test_mistakes_are_one_line(tmp_path: Path) -> None:
    with listen("127.0.0.1", 0) as busy:
        port = busy.getsockname()[1]
        code, line = up(tmp_path, "--port", str(port))
        assert (code, "in use" in line) == (2, True), line
    for options, reason in ((["--host", "0.0.0.0", "--port", "0"], "in clear"), (["--host", "0.0.0.0"], "--port")):
        code, line = up(tmp_path, *options)
        assert (code, reason in line) == (2, True), line


@pytest.mark.long
def test_the_address_of_a_cluster_stays_when_its_coordinator_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(tmp_path, workers=1, standbys=1, options=["--port", "0"]) as running:
        (address,) = re.findall(r"the coordinator is at (http://127.0.0.1:\d+);", (tmp_path / "up.log").read_text())
        token = (running.folder / "token").read_text()
        headers = {"Authorization": f"Bearer {token}"}
        monkeypatch.setenv("CHIMERA_CLUSTER_TOKEN", token)

        def page(path: str) -> str:
            with urllib.request.urlopen(urllib.request.Request(address + path, headers=headers), timeout=20) as answer:
                return str(answer.read().decode())

        assert "chimera_inference_leads 1.0" in page("/metrics")
        first = running.member("coordinator")
        assert f'"{first["name"]}"' in page("/health")
        signalled(first["pid"], signal.SIGKILL)
        until(lambda: running.member("coordinator")["epoch"] > first["epoch"])
        assert "chimera_inference_leads 1.0" in page("/metrics")
        assert f'"{first["name"]}"' not in page("/health")
        remote = client_of(address)  # from another machine, say
        remote.scale(1)
        assert command(running, "scale", "1:2") == [{"workers": 1, "most": 2}]
        monkeypatch.setenv("CHIMERA_CLUSTER_TOKEN", f"{token}\nHost: b")
        with pytest.raises(ConfigurationError, match="CHIMERA_CLUSTER_TOKEN is no token"):
            client_of(address)
        monkeypatch.delenv("CHIMERA_CLUSTER_TOKEN")
        with pytest.raises(ConfigurationError, match="set CHIMERA_CLUSTER_TOKEN"):
            client_of(address)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{address}/v1/infer/jobs", timeout=20)


LIMITED = """
import resource, socket, sys
from chimera.inference.gateway import Gateway

listener = socket.create_server(("127.0.0.1", 0))
gateway = Gateway(listener, lambda: None)
gateway.start()
resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
print(listener.getsockname()[1], flush=True)
sys.stdin.read()
gateway.close()
"""


def test_a_limit_of_open_files_is_one_line_on_the_console() -> None:
    command = [sys.executable, "-c", LIMITED]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            port = int(process.stdout.readline())
            with contextlib.ExitStack() as stack:
                for _ in range(40):
                    stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                line = process.stderr.readline()
            process.stdin.close()
            rest = process.stderr.read()
        finally:
            process.kill()
    assert line.startswith(
        b"chimera: warning: the fixed address accepts no connections: Too many open files: raise the"
    )
    assert rest == b""
