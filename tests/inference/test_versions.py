"""Clients and clusters of different versions report it in one line."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from chimera.core.errors import ChimeraError, ConfigurationError, RunError
from chimera.inference.client import Client
from chimera.inference.models import read
from chimera.inference.remote_workers.cluster import ClusterAddress
from chimera.inference.remote_workers.pool import RemoteWorkers
from chimera.inference.remote_workers.protocol import Report
from chimera.inference.remote_workers.versions import own_versions
from chimera.version import __version__
from inference.running import until
from security.attacker import TOKEN
from security.servers import served

Answers = Mapping[str, tuple[str, Mapping[str, Any]]]
"""The status line and the body for each request, by its method and path."""
RESTART = "restart it with this version: 'chimera infer down', then 'chimera infer up'"


def refusal(status: int, message: str) -> tuple[str, Mapping[str, Any]]:
    details = {"errorCode": status, "errorMessage": "ConfigurationError"}
    return f"{status} X", {"message": message, "details": details}


@contextmanager
def peer(answers: Answers) -> Iterator[Client]:
    """Answer requests with the bytes of another version, and return a client of it."""

    def answer(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as received:
            verb, path, _ = received.readline().decode().split()
            length = 0
            while line := received.readline().strip():
                name, _, value = line.partition(b":")
                length = int(value) if name.lower() == b"content-length" else length
            received.read(length)
            status, body = answers.get(f"{verb} {path}", refusal(404, "Not Found"))
            content = json.dumps(body).encode()
            head = f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Type: application/json\r\n"
            head += f"Content-Length: {len(content)}\r\n\r\n"
            connection.sendall(head.encode() + content)

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            answer(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield Client(lambda: f"http://127.0.0.1:{listener.getsockname()[1]}", "token", patience_s=0.0)
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


OLD = {"GET /health": ("200 OK", {"status": "ok", "chimera": "0.0.9"})}
SAME = {"GET /health": ("200 OK", {"status": "ok", "chimera": __version__})}
UNKNOWN_STAMP = "kind of model 'factory' has no option 'stamp'; its options: factory, options"


def factory(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "model.py").write_text("class Model:\n    def predict(self, queries):\n        return queries\n")
    return read(f"{tmp_path / 'model.py'}:Model")


def test_an_older_cluster_that_does_not_know_a_key_of_a_model_is_named_with_its_version(tmp_path: Path) -> None:
    with (
        peer({"PUT /v1/infer/submissions/k": refusal(422, UNKNOWN_STAMP), **OLD}) as client,
        pytest.raises(ConfigurationError) as error,
    ):
        client.submit(factory(tmp_path), ["a"], key="k")
    expected = f"{UNKNOWN_STAMP}; the cluster runs Chimera 0.0.9, and this client is Chimera {__version__}: {RESTART}"
    assert str(error.value) == expected


def test_an_older_cluster_with_the_same_version_number_is_recognized(tmp_path: Path) -> None:
    with (
        peer({"PUT /v1/infer/submissions/k": refusal(422, UNKNOWN_STAMP), **SAME}) as client,
        pytest.raises(ConfigurationError) as error,
    ):
        client.submit(factory(tmp_path), ["a"], key="k")
    assert str(error.value) == (
        f"{UNKNOWN_STAMP}; the cluster runs another build of Chimera {__version__} than this client: {RESTART}"
    )


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ({"GET /v1/infer/rate": refusal(404, "Not Found"), **OLD}, "Not Found; the cluster runs Chimera 0.0.9"),
        ({"GET /v1/infer/rate": refusal(405, "Method Not Allowed"), **OLD}, "Allowed; the cluster runs Chimera 0.0.9"),
        ({"GET /v1/infer/rate": ("200 OK", {"other": []}), **OLD}, "no 'rows'; the cluster runs Chimera 0.0.9"),
        ({"GET /v1/infer/rate": ("200 OK", {"other": []}), **SAME}, "no 'rows'; the cluster runs another build of"),
        ({"GET /v1/infer/rate": refusal(404, "Not Found"), "GET /health": refusal(404, "Not Found")}, "Not Found"),
    ],
)
def test_requests_and_answers_that_one_side_does_not_know_are_one_line_with_both_versions(
    answers: Answers, reason: str
) -> None:
    with peer(answers) as client, pytest.raises((ConfigurationError, RunError)) as error:
        client.rows("rate")
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


def test_an_error_of_the_user_has_no_versions_if_they_are_equal() -> None:
    with (
        peer({"GET /v1/infer/rate": refusal(422, "weight must be a number"), **SAME}) as client,
        pytest.raises(ConfigurationError) as error,
    ):
        client.rows("rate")
    assert str(error.value) == "weight must be a number"


def answered(url: str, method: str, path: str, body: Mapping[str, Any]) -> tuple[int, str] | None:
    """Send the bytes of a client of another version; return the status and the message, or None while no coordinator leads."""
    host, _, port = url.removeprefix("http://").partition(":")
    content = json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    with socket.create_connection((host, int(port))) as connection, connection.makefile("rb") as received:
        connection.sendall(head.encode() + content)
        answer = received.read()
    first, _, rest = answer.partition(b"\r\n")
    status = int(first.split()[1])
    return None if status == 503 else (status, str(json.loads(rest.partition(b"\r\n\r\n")[2]).get("message")))


def test_a_cluster_names_its_version_to_a_newer_client(tmp_path: Path) -> None:
    model = factory(tmp_path)
    report = {"machine": "0123456789abcdef", "address": "http://127.0.0.1:1", "host": "b", "pid": 17, "later": 1}
    report["versions"] = {"chimera": __version__}  # another build of the same version
    with served("inference", tmp_path / "a") as there:
        for method, path, body, reason in (
            ("PUT", "/v1/infer/submissions/k", {"model": {**model, "later": 1}}, "'factory' has no option 'later'"),
            ("PUT", "/v1/infer/submissions/k", {"model": {"kind": "later"}}, "unknown kind of model 'later'"),
            ("PUT", "/v1/infer/submissions/k", {"model": model, "later": 1}, "unknown fields: 'later'"),
            ("POST", "/v1/infer/submissions/k/job", {"queries": 1, "later": 1}, "unknown field `later`"),
            ("PATCH", "/v1/infer/workers", {"workers": 1, "later": 1}, "unknown fields: 'later'"),
            ("PUT", "/v1/infer/models/m", {"model": {**model, "later": 1}}, "'factory' has no option 'later'"),
            ("POST", "/v1/dial/b.w0", report, "unknown field `later`"),
        ):
            status, message = until(partial(answered, there.url, method, path, body))
            assert status == 422, message
            assert reason in message
            assert message.endswith(
                f"; the cluster runs Chimera {__version__}: if the client has another version, restart the cluster with it "
                "('chimera infer down', then 'chimera infer up')"
            )


REPORT = Report("a" * 16, "http://127.0.0.1:1", "b", 1, hold_s=0.0)


def joins(url: str, versions: dict[str, str]) -> tuple[str, list[str]]:
    """Report a worker with other versions; return the error that ends its machine, and the lines on the machine's console."""
    said: list[str] = []
    cluster = ClusterAddress(url, TOKEN, None, said.append)
    connection = cluster.connection()
    until(lambda: cluster.report(connection, "b.w0", structs.replace(REPORT, versions=versions)) or cluster.failure)
    connection.close()
    return str(cluster.failure or ""), said


@pytest.mark.parametrize(
    ("versions", "named"), [({"chimera": "9.9.9\x1b"}, "Chimera 9.9.9"), ({}, "an earlier version of Chimera")]
)
def test_a_remote_worker_of_another_version_is_refused_at_both_sides_with_both_versions(
    versions: dict[str, str], named: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with served("inference", tmp_path / "a") as there:
        failure, said = joins(there.url, versions)
        again, _ = joins(there.url, versions)
    reason = f", and the cluster Chimera {__version__}: use one version on all machines"
    assert failure == again
    assert failure.startswith(f"the cluster at {there.url} refuses the worker: b.w0 runs {named}")
    assert failure.endswith(reason)
    assert not said
    console = [line for line in capfd.readouterr().err.splitlines() if line.startswith("chimera: warning: ")]
    assert len(console) == 1
    assert console[0].startswith(f"chimera: warning: b.w0 runs {named}")
    assert console[0].endswith(reason)


def test_a_remote_worker_with_other_libraries_joins_with_a_warning_at_both_sides(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    own = own_versions()["numpy"]
    warning = f"b has numpy 0.9 instead of {own}: results of its batches may differ slightly"
    with served("inference", tmp_path / "a") as there:
        failure, said = joins(there.url, {**own_versions(), "numpy": "0.9", "torch-of-theirs": "1"})
        client = Client(lambda: there.url, TOKEN)
        (row,) = [row for row in client.rows("members") if row["name"] == "b.w0"]
        until(lambda: [each["error"] for each in client.rows("workers")] == [warning])
    assert (failure, said) == ("", [f"the cluster at {there.url} answers", f"warning: {warning}"])
    assert f"chimera: warning: {warning}\n" in capfd.readouterr().err
    assert row["state"].endswith(warning)


def test_the_workers_of_a_machine_cause_one_warning_on_the_console(capfd: pytest.CaptureFixture[str]) -> None:
    remote, other = RemoteWorkers(), structs.replace(REPORT, versions={**own_versions(), "numpy": "0.9"})
    for name in ("b.w0", "b.w1", "b.w2"):
        remote.reported(name, other)
        with pytest.raises(ConfigurationError, match=f"{name} runs Chimera 9"):
            remote.check_version(name, {"chimera": "9"})
    console = [line for line in capfd.readouterr().err.splitlines() if line.startswith("chimera: warning: ")]
    warning = remote.warning("b.w2")
    assert console[0] == f"chimera: warning: {warning}"
    assert console[1].startswith("chimera: warning: b.w0 runs Chimera 9")
    assert len(console) == 2


def test_a_library_whose_installation_was_interrupted_has_no_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "numpy-9.dist-info").mkdir()
    (tmp_path / "torch-9.dist-info").mkdir()
    (tmp_path / "torch-9.dist-info" / "METADATA").write_bytes(b"Version: \xff\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert own_versions.__wrapped__().keys() == own_versions().keys() - {"numpy", "torch"}


def test_a_machine_names_its_version_to_an_older_cluster() -> None:
    with peer({"POST /v1/dial/b.w0": refusal(422, "unknown field `versions`; the cluster runs Chimera 0.0.9")}) as old:
        cluster = ClusterAddress(str(old._address()), TOKEN, None, print)
        assert cluster.report(cluster.connection(), "b.w0", REPORT) is None
    assert str(cluster.failure).endswith(f"the cluster runs Chimera 0.0.9; this machine runs Chimera {__version__}")


def test_a_cluster_accepts_the_message_of_an_older_client(tmp_path: Path) -> None:
    model = {key: value for key, value in factory(tmp_path).items() if key != "stamp"}
    with served("inference", tmp_path / "a") as there:
        assert until(lambda: answered(there.url, "PUT", "/v1/infer/submissions/k", {"model": model}))[0] == 200


def test_a_client_adds_no_second_hint_to_that_of_the_cluster(tmp_path: Path) -> None:
    with served("inference", tmp_path / "a") as there:
        client = Client(lambda: there.url, TOKEN)
        with pytest.raises(ChimeraError) as error:
            client.submit({"kind": "later"}, ["a"])
    assert str(error.value).count("the cluster runs Chimera") == 1
