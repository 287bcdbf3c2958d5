"""The client that `chimera nodes init` writes sends its token to the master only, not to addresses that the master names."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from chimera.nodes.project import write_project


@contextmanager
def recording(status: int, location: str = "") -> Iterator[tuple[str, list[str]]]:
    """Serve one answer to all requests; yield the address and the received tokens."""
    tokens: list[str] = []

    class Recorder(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            tokens.append(self.headers.get("Authorization", ""))
            self.send_response(status)
            if location:
                self.send_header("Location", f"{location}/elsewhere")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        do_GET = do_POST  # noqa: N815 - the server looks for this name

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", tokens
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project as it is written."""
    folder = tmp_path_factory.mktemp("project") / "new"
    write_project(folder)
    return folder


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_the_token_is_not_sent_to_redirects(status: int, folder: Path) -> None:
    with recording(200) as (other, stolen), recording(status, other) as (master, tokens):
        told = {**os.environ, "MASTER": master, "CHIMERA_TOKEN": "secret"}
        done = subprocess.run(
            [sys.executable, "client.py"], cwd=folder, env=told, capture_output=True, text=True, timeout=60, check=False
        )
    assert stolen == []
    assert tokens == ["Bearer secret"]
    assert done.returncode == 1
    assert done.stderr == f"{master} answered {status}: {{}}\n"


def test_an_unreachable_master_raises_a_one_line_error(folder: Path) -> None:
    with socket.socket() as taken:  # bound and not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        master = f"http://127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run(
            [sys.executable, "client.py"], cwd=folder, env={**os.environ, "MASTER": master},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith(f"{master} does not answer (")
    assert done.stderr.count("\n") == 1
