"""Workers of other machines: they dial the cluster, and have no more rights than its batches need."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.disk_kit import fill, small_disk
from typer.testing import CliRunner

from chimera.cli.main import app
from chimera.core.address import Address
from chimera.core.errors import ConfigurationError, ConflictError, DataError, RunError, TimeLimitError, UnavailableError
from chimera.engines.http import wire
from chimera.engines.http.connection import JSON, Answer, Connection, Unreachable
from chimera.inference.api import operations
from chimera.inference.coordinator.coordinator import Coordinator
from chimera.inference.journal.sqlite import SqliteJournal
from chimera.inference.remote_workers import pool as pools
from chimera.inference.remote_workers.cluster import ClusterAddress, tls_context, token_of
from chimera.inference.remote_workers.dialer import asked
from chimera.inference.remote_workers.link import RemoteLink
from chimera.inference.remote_workers.pool import RemoteWorkers
from chimera.inference.remote_workers.protocol import (
    GONE,
    LATE,
    PATH,
    PIECE_BYTES,
    Piece,
    PieceRequest,
    Report,
    worker_token,
)
from chimera.inference.remote_workers.session import AnswerBudget, Session
from chimera.inference.remote_workers.versions import own_versions
from chimera.inference.results import stored
from chimera.inference.worker.protocol import Collected, Finished, StaleEpoch, WorkerState
from chimera.web.middleware import OPEN_PATHS
from inference.running import RunningCluster, cluster, signalled, until
from inference.test_workers import ECHO, Workers, leads
from nodes.test_app import certificate
from security.attacker import TOKEN
from security.servers import Server, served

A = Report("a" * 16, "http://127.0.0.1:1", "a", 1, versions=own_versions())
B = msgspec.structs.replace(A, machine="b" * 16, host="b", pid=2)


def called(session: Session, body: bytes, broken: list[str], timeout_s: float = 20.0) -> Answer:
    return session.call("collect", body, timeout_s, lambda: "".join(broken))


def test_requests_and_answers_of_any_size_pass_in_pieces_once() -> None:
    session, request, reply = (
        Session("a.w0", A, AnswerBudget(1 << 30)),
        os.urandom(3 * PIECE_BYTES + 1),
        os.urandom(2 * PIECE_BYTES),
    )
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(called, session, request, [])
        first = until(session.take)
        assert session.take() is None  # no other connection gets the same request
        whole = first.data
        while len(whole) < first.size:
            more = session.more(PieceRequest(first.number, len(whole)))
            assert more is not None
            whole += more.data
        assert whole == request
        pieces = [
            Piece(first.number, JSON, 200, at, len(reply), reply[at : at + PIECE_BYTES]) for at in (0, PIECE_BYTES)
        ]
        assert not session.accept(pieces[0])
        assert not session.accept(pieces[0])  # the machine sends a piece again when a connection breaks
        assert session.accept(pieces[1])
        assert waiting.result(20) == Answer(200, JSON, reply)
        assert session.more(PieceRequest(first.number, 0)) is None
        assert session.accept(pieces[1])  # an answer that no caller waits for any more


def test_a_call_ends_when_nothing_arrives_and_when_the_worker_is_gone() -> None:
    session = Session("a.w0", A, AnswerBudget(1 << 30))
    with pytest.raises(TimeLimitError, match=r"nothing has arrived from a\.w0"):
        called(session, b"", [], 0.05)
    for status, error in ((GONE, Unreachable), (LATE, TimeLimitError)):
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(called, session, b"", [])
            session.accept(Piece(until(session.take).number, "", status, 0, 0, b""))
            assert isinstance(waiting.exception(20), error)
    broken: list[str] = []
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(called, session, b"", broken)
        until(session.take)
        broken.append("the link was closed")
        session.wake()
        assert isinstance(waiting.exception(20), Unreachable)
        waiting = threads.submit(called, session, b"", [])
        session.end("it has left")
        assert str(waiting.exception(20)) == "it has left"


def test_a_slow_request_is_alive_while_the_machine_reports_it() -> None:
    session = Session("a.w0", A, AnswerBudget(1000))
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(called, session, b"", [], 0.5)
        number = until(session.take).number
        for _ in range(8):
            assert not wait([waiting], 0.1).done
            session.note(msgspec.structs.replace(A, handled=[number, 99]))
        session.note(A)
        assert isinstance(waiting.exception(20), TimeLimitError)


def test_the_answers_that_arrive_at_once_are_bounded() -> None:
    room = AnswerBudget(1000)
    first, second = Session("a.w0", A, room), Session("a.w1", A, room)
    with ThreadPoolExecutor() as threads:
        calls = [threads.submit(called, each, b"", []) for each in (first, second)]
        numbers = [until(each.take).number for each in (first, second)]
        assert not first.accept(Piece(numbers[0], JSON, 200, 0, 600, b"x" * 500))
        with pytest.raises(UnavailableError, match="too many large answers"):
            second.accept(Piece(numbers[1], JSON, 200, 0, 600, b"x" * 600))
        with pytest.raises(DataError, match="longer than its first piece says"):
            first.accept(Piece(numbers[0], JSON, 200, 500, 900, b"x" * 200))
        assert first.accept(Piece(numbers[0], JSON, 200, 500, 600, b"x" * 100))
        calls[0].result(20)
        until(lambda: second.accept(Piece(numbers[1], JSON, 200, 0, 600, b"x" * 600)))
        assert len(calls[1].result(20).body) == 600


def test_a_name_belongs_to_one_machine_while_that_one_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = RemoteWorkers()
    for name in ("w0", "c0", "a", "a.w", "a.w1000", "../a.w0", "a.b.w0", "a.w0\n", "ä.w0", ""):
        with pytest.raises(ConfigurationError, match="the name of a remote worker is"):
            remote.reported(name, A)
    first = remote.reported("a.w0", A)
    assert remote.reported("a.w0", A) is first
    with pytest.raises(ConflictError, match="choose another --name"):
        remote.reported("a.w0", B)
    again = remote.reported("a.w0", msgspec.structs.replace(A, address="http://127.0.0.1:2"))
    assert again is not first
    (address,) = remote.addresses().values()
    assert remote.reported("a.w0", msgspec.structs.replace(A, leaves=True)) is None  # that of the earlier start
    assert list(remote.addresses()) == ["a.w0"]
    assert [(row.name, row.host, row.pid) for row in remote.members()] == [("a.w0", "a", 1)]
    remote.reported("a.w0", msgspec.structs.replace(A, address="http://127.0.0.1:2", leaves=True))
    assert not remote.addresses()
    with pytest.raises(Unreachable):
        remote.link(address).adopt(1, "c0")
    monkeypatch.setattr(pools, "_IN_USE_S", -1.0)
    remote.reported("a.w0", A)
    taken_over = remote.reported("a.w0", B)
    assert taken_over is not None
    assert taken_over.report.host == "b"
    monkeypatch.setattr(pools, "MAX_WORKERS", 1)
    with pytest.raises(UnavailableError, match="1 remote workers already"):
        remote.reported("a.w1", A)
    monkeypatch.setattr(pools, "GONE_S", -1.0)
    assert not remote.addresses()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served("inference", tmp_path_factory.mktemp("server")) as running:
        body = msgspec.to_builtins(msgspec.structs.replace(A, hold_s=0.0, leaves=True))
        until(lambda: reported(running, TOKEN, "a.w9", body).status == 200)  # it leads
        yield running


def reported(server: Server, token: str, worker: str, body: Any) -> Answer:
    address = ClusterAddress(server.url, token, None, lambda _: None)
    with closing(address.connection()) as connection:
        return connection.request(f"{PATH}/{worker}", wire.pack(body), 20)


def test_the_token_of_workers_opens_no_other_route(server: Server) -> None:
    limited = worker_token(TOKEN)
    body = msgspec.to_builtins(msgspec.structs.replace(A, hold_s=0.0))
    assert reported(server, limited, "a.w0", body).status == 200
    with closing(Connection(Address.of(server.url), limited, None, 1 << 20)) as connection:
        for route in server.routes:
            if route.path in OPEN_PATHS or route.path.startswith(f"{PATH}/") or route.method == "HEAD":
                continue
            for path in (route.path, f"{PATH}/..{route.path}", f"{PATH}/a.w0/..{route.path}"):
                answer = connection.request(
                    route.method, path.replace("{", "").replace("}", ""), timeout_s=20, idempotent=True
                )
                assert answer.status in ({401} if path == route.path else {404, 405}), (route, path)
    for wrong in ("", "x", TOKEN[:-1], worker_token(limited)):
        assert reported(server, wrong, "a.w0", body).status == 401


@pytest.mark.parametrize(
    "change",
    [
        {"machine": "short"}, {"machine": "x" * 65}, {"host": "x" * 201}, {"pid": -1}, {"hold_s": 60.0}, {"more": 1},
        {"answer": {"number": 1, "what": "", "status": 200, "at": 0, "size": 1 << 40, "data": b""}},
        {"answer": {"number": 1, "what": "", "status": 200, "at": 0, "size": 1, "data": b"x" * (PIECE_BYTES + 1)}},
        {"answer": {"number": 1 << 63, "what": "", "status": 200, "at": 0, "size": 1, "data": b""}},
        {"wanted": {"number": 1, "at": -1}}, {"handled": [1] * 17}, {"handled": [-1]},
        {"host": "a\nb"}, {"state": "\x1b[31m"}, {"address": "\u202e"},
    ],
)  # fmt: skip
def test_reports_are_bounded(server: Server, change: dict[str, Any]) -> None:
    body = {**msgspec.to_builtins(A), "hold_s": 0.0, **change}
    assert reported(server, worker_token(TOKEN), "a.w1", body).status == 422
    assert reported(server, worker_token(TOKEN), "a.w1", {"x": b"x" * (1 << 20)}).status == 413


def test_a_machine_passes_only_known_requests_on() -> None:
    """A program that is no coordinator may answer a report; it cannot reach other routes of the machine."""
    with socket.create_server(("127.0.0.1", 0)) as worker:
        worker.setblocking(False)
        local = Connection(Address.of(f"http://127.0.0.1:{worker.getsockname()[1]}"), "own", None, 1000)
        for what in ("../../health", "stop?x", "", "adopt/../stop"):
            assert asked(local, what, b"").status == 404
        with pytest.raises(BlockingIOError):
            worker.accept()


class Elsewhere(Workers):
    """Workers of which b.w0 is on another machine."""

    def shares_files(self, name: str) -> bool:
        return name != "b.w0"


def test_a_model_that_another_worker_may_have_is_not_an_error(tmp_path: Path) -> None:
    workers = Elsewhere("b.w0", "w0")
    with closing(SqliteJournal(tmp_path / "journal.sqlite")) as journal, leads(journal, workers) as leader:
        job = submitted(leader)
        far, near = workers.by_name["b.w0"], workers.by_name["w0"]
        until(lambda: far.has)
        far.cannot_load()
        while not leader.call(lambda: leader.scheduler.job(job).ended):
            if near.has:
                near.finish(0.1)
        assert not far.has
        assert leader.call(lambda: leader.scheduler.job(job).errors) == 0
        assert leader.workers["b.w0"].unloadable
    workers = Elsewhere("b.w0")
    with closing(SqliteJournal(tmp_path / "other.sqlite")) as journal, leads(journal, workers) as leader:
        job = submitted(leader)
        far = workers.by_name["b.w0"]
        while not leader.call(lambda: leader.scheduler.job(job).ended):
            if far.has:
                far.cannot_load()
        assert leader.call(lambda: leader.scheduler.job(job).ended) == "failed"
        assert leader.call(lambda: leader.scheduler.job(job).error) == "the model cannot be loaded: no such folder"


def test_results_of_batches_that_a_remote_worker_was_not_given_are_ignored(tmp_path: Path) -> None:
    workers = Elsewhere("b.w0", "w0")
    with closing(SqliteJournal(tmp_path / "journal.sqlite")) as journal, leads(journal, workers) as leader:
        job = submitted(leader)
        far, near = workers.by_name["b.w0"], workers.by_name["w0"]
        until(lambda: near.has and far.has)
        far.claim(Finished(*near.has[0], 0.1, 0, wire.pack([{"result": "false"}] * 10)))
        while not leader.call(lambda: leader.scheduler.job(job).ended):
            for each in (near, far):
                if each.has:
                    each.finish(0.1)
        assert [row["result"] for rows in stored(journal, leader.scheduler.job(job).accepted) for row in rows] == [
            0
        ] * 40


def test_a_new_coordinator_waits_for_remote_workers(tmp_path: Path) -> None:
    class Away(Elsewhere):
        waits_s = 60.0

        def addresses(self) -> Mapping[str, str]:
            return {}

        def rejoin_s(self, name: str) -> float:
            return self.waits_s if name == "b.w0" else 0.0

    with closing(SqliteJournal(tmp_path / "journal.sqlite")) as journal:
        workers = Elsewhere("b.w0", "w0")
        with leads(journal, workers) as leader:
            job = submitted(leader)
            until(lambda: all(each.has for each in workers.by_name.values()))
        with leads(journal, away := Away()) as leader:
            state = until(lambda: leader.scheduler.jobs.get(job))
            until(lambda: leader.call(lambda: {run.worker for run in state.running.values()}) == {"b.w0"})
            away.waits_s = 0.0
            until(lambda: leader.call(lambda: not state.running and len(state.returned) == 2))


@pytest.mark.parametrize(
    "results",
    [
        b"", b"x" * 100, wire.pack({}), wire.pack([1]), wire.pack([{}]), wire.pack([{"error": 1}]), wire.pack([{"error": "x"}]),
        wire.pack([{"result": 1, "error": "x"}]), wire.pack([{"result": 1, "more": 1}]),
    ],
)  # fmt: skip
def test_results_of_another_form_are_refused(results: bytes) -> None:
    state = WorkerState("b.w0", 1, None, [], [], [], None, 0.0, 1.0)
    sent = Collected(state, [Finished("1", 0, 0.1, 0, results)])

    class Sends:
        def request(self, *_: object, **__: object) -> Answer:
            return Answer(200, wire.CONTENT_TYPE, wire.pack(msgspec.to_builtins(sent, builtin_types=(bytes,))))

    with pytest.raises(RunError, match="the worker's results"):
        RemoteLink("b.w0", Sends()).collect(1, [], 0.0)  # type: ignore[arg-type]
    sent = Collected(state, [Finished("1", 0, 0.1, 1, wire.pack([{"result": 1}, {"error": "x"}]))])
    assert RemoteLink("b.w0", Sends()).collect(1, [], 0.0).results[0].answers == 2  # type: ignore[arg-type]
    sent = Collected(state, [Finished("1", 0, 0.1, 0, b"", failure="it died\n\x1b[31m2026 INFO all is well")])
    (failed,) = RemoteLink("b.w0", Sends()).collect(1, [], 0.0).results  # type: ignore[arg-type]
    assert failed.failure == r"it died \x1b[31m2026 INFO all is well"
    sent = Collected(msgspec.structs.replace(state, without="torch\n2026 INFO all is well"), [])
    assert RemoteLink("b.w0", Sends()).collect(1, [], 0.0).state.without == "torch 2026 INFO all is well"  # type: ignore[arg-type]
    sent = Collected(msgspec.structs.replace(state, loading="x\ny"), [])
    with pytest.raises(RunError, match="no valid keys of models"):
        RemoteLink("b.w0", Sends()).collect(1, [], 0.0)  # type: ignore[arg-type]


def test_a_remote_worker_cannot_end_the_coordinator() -> None:
    class Refuses:
        def request(self, *_: object, **__: object) -> Answer:
            document = {"message": "epoch 1 is over\n", "details": {"errorMessage": "StaleEpoch"}}
            return Answer(409, JSON, msgspec.json.encode(document))

    with pytest.raises(RunError, match=r"answered 409: epoch 1 is over$") as refusal:
        RemoteLink("b.w0", Refuses()).adopt(1, "c0")  # type: ignore[arg-type]
    assert not isinstance(refusal.value, StaleEpoch)


def submitted(leader: Coordinator) -> str:
    return operations.submit(leader, key="key", model=ECHO, queries=list(range(40)), batch_size=10)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--join", "nonsense"], "--join: 'nonsense' is not of the form"),
        (["--join", "http://192.0.2.1:8600"], "in clear"),
        (["--join", "http://127.0.0.1:1", "--token-file", "none"], "--token-file 'none' cannot be read"),
        (["--join", "http://127.0.0.1:1"], "set CHIMERA_CLUSTER_TOKEN"),
        (
            ["--join", "http://127.0.0.1:1", "--token-file", "token", "--name", "a.b"],
            "the name of a machine has letters",
        ),
        (["--join", "http://127.0.0.1:1", "--token-file", "token", "--tls-cert", "token"], "set both or none"),
        (["--join", "http://127.0.0.1:1", "--token-file", "token", "--tls-ca", "token"], "all must be PEM files"),
        (["--join", "http://127.0.0.1:1", "--token-file", "token", "--gpus", "x"], "--gpus must be numbers of GPUs"),
    ],
)
def test_mistakes_are_one_line(
    options: list[str], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CHIMERA_CLUSTER_TOKEN", raising=False)
    Path("token").write_text("secret\n")
    done = CliRunner().invoke(app, ["infer", "worker", *options])
    assert isinstance(done.exception, ConfigurationError | SystemExit)
    told = str(done.exception) + done.output
    assert reason in told
    assert "secret" not in told
    assert not Path("runs").exists()


def test_a_wrong_token_and_an_old_cluster_end_the_machine(server: Server) -> None:
    for token, url, reason in (
        ("wrong", server.url, "refuses the token: use that in the file 'worker-token'"),
        (TOKEN, f"{server.url}/nothing", "has no route for workers of other machines"),
    ):
        address = ClusterAddress(url, token, None, lambda _: None)
        with closing(address.connection()) as connection:
            assert address.report(connection, "a.w5", A) is None
        assert isinstance(address.failure, ConfigurationError)
        assert reason in str(address.failure)


def test_a_machine_calls_the_next_address_when_one_does_not_answer(server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        dead = f"http://127.0.0.1:{held.getsockname()[1]}"
    said: list[str] = []
    cluster = ClusterAddress(f"{dead}, {server.url}", TOKEN, None, said.append)
    gone = msgspec.structs.replace(A, hold_s=0.0, leaves=True)
    with closing(cluster.connection()) as connection:
        assert cluster.report(connection, "a.w6", gone) is None
        assert cluster.report(connection, "a.w6", gone) is not None
        assert said == [f"the cluster at {dead}, {server.url} answers"]
        connection.break_off("the machine ends")
        assert cluster.report(connection, "a.w6", gone) is None
    with pytest.raises(ConfigurationError, match="is not of the form"):
        ClusterAddress(f"{dead},", TOKEN, None, said.append)


def test_the_token_is_read_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, url = tmp_path / "token", "http://127.0.0.1:1"
    file.write_text("secret\n")
    monkeypatch.setenv("CHIMERA_CLUSTER_TOKEN", "other")
    assert (token_of(url, file), token_of(url, None)) == ("secret", "other")
    for wrong in ("", "a\nb", "a b", "x" * 1001):
        file.write_text(wrong)
        with pytest.raises(ConfigurationError, match="must have one token in one line"):
            token_of(url, file)
    assert tls_context(None, None, None) is None


@contextmanager
def machine(running: RunningCluster, folder: Path, *options: str, name: str = "b") -> Iterator[subprocess.Popen[bytes]]:
    """Run `chimera infer worker` as a machine with two workers; kill it when the context ends."""
    command = [sys.executable, "-m", "chimera", "infer", "worker", "--join", address(folder), "--name", name]
    command += ["--workers", "2", "--token-file", str(running.folder / "worker-token"), "--folder", str(folder / name)]
    with (folder / f"{name}.log").open("ab") as log:
        process = subprocess.Popen([*command, *options], stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def address(folder: Path) -> str:
    return str(until(lambda: re.search(r"is at (\S+);", (folder / "up.log").read_text()))[1])


def states(running: RunningCluster) -> dict[str, str]:
    return {row["worker"]: row["state"] for row in running.client.rows("workers")}


def works(running: RunningCluster, worker: str) -> bool:
    return states(running).get(worker) in ("free", "busy", "loading")


@pytest.mark.long
@pytest.mark.takes("six restarts of processes")
def test_workers_of_another_machine_compute_are_drained_restarted_and_leave(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    tls = {"CHIMERA_TLS_CERT": str(cert), "CHIMERA_TLS_KEY": str(key), "CHIMERA_TLS_CLIENT_CA": str(cert)}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in tls.items():
            patch.setenv(name, value)
        with cluster(tmp_path, workers=1, options=["--port", "0"]) as running:
            options = ["--tls-ca", str(cert), "--tls-cert", str(cert), "--tls-key", str(key)]
            with machine(running, tmp_path, *options) as second:
                until(lambda: list(states(running).values()) == ["free"] * 3)
                row = next(row for row in running.client.rows("members") if row["name"] == "b.w0")
                assert row["host"] == socket.gethostname()
                job = running.client.submit(running.model(seconds=0.01), list(range(3000)), batch_size=5)
                until(lambda: all(works(running, name) for name in ("b.w0", "b.w1", "w0")))
                signalled(running.pid("b.w0"), signal.SIGKILL)
                signalled(running.member("coordinator")["pid"], signal.SIGKILL)
                until(lambda: works(running, "b.w0"))
                until(lambda: works(running, "b.w1"))
                running.client.drain("b.w1")
                until(lambda: states(running)["b.w1"] == "drained")
                running.client.restart("b.w1")
                until(lambda: works(running, "b.w1"))
                signalled(running.pid("b.w1"), signal.SIGSTOP)
                until(lambda: states(running)["b.w1"] == "hung")
                running.client.restart("b.w1")
                until(lambda: works(running, "b.w1"))
                second.send_signal(signal.SIGINT)
                until(lambda: list(states(running)) == ["w0"])
                assert second.wait(20) == 0
                assert running.client.wait(job, 60)["errors"] == 0
                assert running.answers(job) == [2 * number for number in range(3000)]


@pytest.mark.long
@pytest.mark.takes("a worker starts again")
def test_the_disk_of_another_machine_is_full_and_its_folder_deleted(tmp_path: Path) -> None:
    def warned(view: str, key: str) -> bool:
        found = [row for row in running.client.rows(view) if row["host"] == socket.gethostname()]
        return any("the disk is nearly full: 0 KiB are left" in str(row[key]) for row in found)

    def told() -> str:
        return (tmp_path / "b.log").read_text()

    with (
        small_disk(tmp_path / "b", 16) as disk,
        cluster(tmp_path, workers=0, standbys=0, options=["--port", "0"]) as running,
        machine(running, tmp_path, "--preload", "") as process,
    ):
        until(lambda: works(running, "b.w0") and works(running, "b.w1"))
        job = running.client.submit(running.model(seconds=0.02), list(range(600)), batch_size=5)
        running.processed(job, 20)
        file = fill(disk)
        until(lambda: warned("workers", "error") and warned("members", "state"))
        signalled(running.pid("b.w0"), signal.SIGKILL)
        until(lambda: f"b.w0 exited with code 1 (the disk of {disk} is full)" in told())
        file.unlink()
        until(lambda: works(running, "b.w0"))
        assert running.client.wait(job, 60)["errors"] == 0
        assert running.answers(job) == [2 * query for query in range(600)]
        (disk / "lock").unlink()
        assert process.wait(60) == 1
    assert f"warning: the disk is nearly full: 0 KiB are left for {disk}; on a full disk, processes stop" in told()
    assert f"error: the folder {disk} was moved or deleted while it was in use: all processes have ended" in told()


@pytest.mark.long
@pytest.mark.takes("a name in use is refused after 10 s")
def test_a_machine_refuses_code_and_a_second_one_the_same_name(tmp_path: Path) -> None:
    with (
        cluster(tmp_path, workers=1, standbys=0, options=["--port", "0"]) as running,
        machine(running, tmp_path, "--no-code"),
    ):
        until(lambda: list(states(running).values()) == ["free"] * 3)
        job = running.client.submit(running.model(seconds=0.01), list(range(300)), batch_size=5)
        assert running.client.wait(job, 60)["errors"] == 0
        rows = {row["worker"]: row["error"] for row in running.client.rows("workers")}
        assert rows["w0"] is None
        assert "runs code, which the machine of b" in (rows["b.w0"] or rows["b.w1"])
        other = tmp_path / "other"
        other.mkdir()
        shutil.copy(tmp_path / "up.log", other)
        with machine(running, other) as third:
            assert third.wait(30) == 2
        assert "refuses the worker: another machine" in (other / "b.log").read_text()
        assert (other / "b.log").read_text().count("\n") <= 2


@pytest.mark.long
@pytest.mark.takes("the link is cut for 5 s, or slow")
@pytest.mark.parametrize("test", ["cut", "slow"])
def test_a_link_between_two_machines_is_cut_and_the_coordinator_killed_or_it_is_slow(test: str, tmp_path: Path) -> None:
    in_a_namespace("two_machines.py", tmp_path, test)


@pytest.mark.long
@pytest.mark.takes("a voter and workers on each of three machines")
def test_workers_of_three_machines_are_scaled_and_the_machine_that_leads_fails(tmp_path: Path) -> None:
    in_a_namespace("three_machines.py", tmp_path)


def in_a_namespace(script: str, folder: Path, *more: str) -> None:
    """Run a script of this folder in a network namespace of its own."""
    needs = ("unshare", "nsenter", "ip", "tc")
    if not all(map(shutil.which, needs)) or subprocess.run(["unshare", "-rn", "true"], check=False).returncode:
        pytest.skip(
            "needs network namespaces: install util-linux and iproute2, and allow unprivileged user namespaces or run as root"
        )
    place = Path(__file__).parent
    done = subprocess.run(
        ["unshare", "-rn", sys.executable, str(place / script), str(folder), *more], capture_output=True, check=False,
        timeout=150, env={**os.environ, "PYTHONPATH": os.pathsep.join([str(place.parent), *sys.path])},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()


@pytest.mark.slow
def test_nothing_is_lost_while_coordinators_workers_and_machines_are_killed_and_stopped(tmp_path: Path) -> None:
    dice, queries = random.Random(1), list(range(8000))
    with ExitStack() as stack:
        running = stack.enter_context(cluster(tmp_path, workers=1, options=["--port", "0"]))
        machines = {name: stack.enter_context(ExitStack()) for name in ("b", "c")}
        for name, held in machines.items():
            held.enter_context(machine(running, tmp_path, name=name))
        until(lambda: len(states(running)) == 5)
        job = running.client.submit(running.model(seconds=0.02), queries, batch_size=10)
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s and running.client.job(job)["state"] == "running":
            threading.Event().wait(dice.uniform(0.5, 2.5))
            with contextlib.suppress(ProcessLookupError):
                strike(running, tmp_path, dice, machines)
        assert running.client.wait(job, 200)["errors"] == 0
        assert running.answers(job) == [2 * query for query in queries]


def strike(running: RunningCluster, folder: Path, dice: random.Random, machines: dict[str, ExitStack]) -> None:
    """Kill or stop a coordinator, a worker or the program of a machine."""
    what = dice.choice(["coordinator", "worker", "machine"])
    if what == "machine":
        name = dice.choice(list(machines))
        machines[name].close()
        machines[name].enter_context(machine(running, folder, name=name))
    elif members := running.members(what):
        pid = dice.choice(members)["pid"]
        if dice.random() < 0.5:
            signalled(pid, signal.SIGKILL)
        else:
            signalled(pid, signal.SIGSTOP)
            threading.Event().wait(2.5)
            signalled(pid, signal.SIGCONT)
