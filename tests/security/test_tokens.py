"""Tests of tokens: each server gets its own only; none is sent unencrypted beyond this machine, and none is stored."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chimera
from chimera.core.address import Address
from chimera.core.errors import ConfigurationError
from chimera.engines.http.tokens import tokens_of
from chimera.jobs.client.handle import client_of
from nodes.served import serving
from nodes.test_app import certificate
from security.test_by_path_names import network, node


@contextmanager
def listening(cert: Path | None = None, key: Path | None = None) -> Iterator[tuple[str, list[str | None]]]:
    """Serve an empty list of jobs; yield the address and the received tokens."""
    received: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            received.append(self.headers["Authorization"])
            body = b'{"rows": []}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if cert:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"{'https' if cert else 'http'}://127.0.0.1:{server.server_port}", received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_https_cluster_is_called_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cert, key = certificate(tmp_path)
    monkeypatch.setenv("CHIMERA_CLUSTER_TOKEN", "sesame")
    with listening(cert, key) as (url, received):
        with pytest.raises(ConfigurationError, match=f"the certificate of {url} cannot be verified: self-signed"):
            client_of(url).jobs()
        assert received == []
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        assert client_of(url).jobs() == []
    assert received == ["Bearer sesame"]


@pytest.mark.parametrize("url", ["http://192.0.2.1:8000", "ftp://127.0.0.1:1", "gopher://x"])
def test_a_cluster_token_is_never_sent_unencrypted(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIMERA_CLUSTER_TOKEN", "sesame")
    monkeypatch.delenv("CHIMERA_INSECURE", raising=False)
    with pytest.raises(ConfigurationError, match=r"in clear|is not of the form") as caught:
        client_of(url)
    assert "sesame" not in str(caught.value)


def test_the_token_of_nodes_is_not_sent_to_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIMERA_TOKEN", "of nodes")
    monkeypatch.delenv("CHIMERA_CLUSTER_TOKEN", raising=False)
    with (
        listening() as (url, received),
        pytest.raises(
            ConfigurationError, match=r"set CHIMERA_CLUSTER_TOKEN .*CHIMERA_TOKEN is the token of REST nodes"
        ),
    ):
        client_of(url).jobs()
    assert received == []


@pytest.mark.parametrize("given", ["mapping", "file"])
def test_each_node_gets_its_own_token_and_no_file_stores_it(
    tmp_path: Path, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes with two tokens train; each would answer 401 to the token of the other, or of a cluster."""
    monkeypatch.setenv("CHIMERA_CLUSTER_TOKEN", "of-the-cluster")
    tokens: Any = {}
    with ExitStack() as stack:
        for name in ("tree1", "tree2"):
            worker = node(tmp_path, name, token=f"secret-of-{name}")
            tokens[stack.enter_context(serving(worker.app(), worker.settings))] = f"secret-of-{name}"
        urls = list(tokens)
        if given == "file":
            (tmp_path / "tokens.toml").write_text("".join(f'"{url}" = "{token}"\n' for url, token in tokens.items()))
            tokens = str(tmp_path / "tokens.toml")
        rows = np.ones((4, 4), np.float32), np.array([0, 1] * 2)
        engine = {"name": "http", "nodes": urls, "tokens": tokens}
        monkeypatch.setattr("sys.argv", ["chimera", "train", "--set", "engine.token=secret-of-argv"])
        experiment = chimera.Experiment({
            "data": (rows, rows), "model": network, "engine": engine, "strategy": "parameter-server",
            "train": {"rounds": 2, "batch_size": 4, "workers": 2},
        })  # fmt: skip
        run = experiment.trainer(out=tmp_path / "run").fit()
    assert run.cost.rounds == 2
    for file in run.run_dir.rglob("*"):
        if file.is_file():
            assert b"secret-of-" not in file.read_bytes(), file
            assert b"of-the-cluster" not in file.read_bytes(), file
    assert "engine.token=..." in json.loads((run.run_dir / "environment.json").read_text())["command"]


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ({"http://127.0.0.1:2": "a"}, "there is no node at 127.0.0.1:2"),
        ({"http://127.0.0.1:1": ""}, "a token is printable ASCII text"),
        ({"http://127.0.0.1:1": "a\r\nb"}, "a token is printable ASCII text"),
        ("nowhere.toml", "nowhere.toml cannot be read"),
    ],
)
def test_invalid_tokens_raise_a_one_line_error(tokens: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        chimera.engine("http", nodes=["http://127.0.0.1:1"], tokens=tokens)
    assert "\n" not in str(caught.value)


def test_a_driver_token_is_never_sent_unencrypted_to_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHIMERA_INSECURE", raising=False)
    with pytest.raises(ConfigurationError, match=r"a token would travel to http://192\.0\.2\.1:80 in clear"):
        chimera.engine("http", nodes=["http://192.0.2.1:80"], token="sesame")


def test_nodes_behind_one_address_have_their_own_tokens() -> None:
    urls = [f"http://127.0.0.1:5001/{name}" for name in "ab"]
    addresses = [Address.of(url, "test") for url in urls]
    assert tokens_of(addresses, None, {urls[0]: "A", urls[1]: "B"}) == ["A", "B"]
    assert tokens_of(addresses, "C", {urls[1]: "B"}) == ["C", "B"]
    with pytest.raises(ConfigurationError, match=r"no node at 127\.0\.0\.1:5001/c"):
        tokens_of(addresses, None, {"http://127.0.0.1:5001/c": "A"})
