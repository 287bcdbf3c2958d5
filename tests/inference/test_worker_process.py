"""A worker as a process: its routes, its exit, and the exit of its parent and its computing process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from chimera.core.errors import RunError, TimeLimitError
from chimera.engines.http import wire
from chimera.engines.http.connection import Unreachable
from chimera.inference.cluster_folder import ClusterFolder
from chimera.inference.membership import Member, Members
from chimera.inference.pool.http import HttpLink
from chimera.inference.worker.protocol import Assignment, Finished, StaleEpoch
from inference import model
from inference.journal_kit import LIMIT_S, wait_until

ECHO = {"kind": "factory", "factory": f"{Path(model.__file__).resolve()}:Echo", "options": {}}


class Running:
    """A worker's process, and how it is reached."""

    def __init__(self, folder: ClusterFolder, *options: str) -> None:
        self.folder, self.members = folder, Members(folder.members)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "chimera.inference.worker.process", "--cluster", str(folder.path), "--name", "w0", *options],
            stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self._links: list[HttpLink] = []

    def member(self) -> Member:
        wait_until(lambda: self.members.members() or self.process.poll() is not None)
        assert self.process.poll() is None, self.process.communicate()[1]
        return self.members.members()[0]

    def link(self, **options: float) -> HttpLink:
        self._links.append(HttpLink.to(self.member().address, self.folder.token(), **options))
        return self._links[-1]

    def family(self) -> list[psutil.Process]:
        own = psutil.Process(self.process.pid)
        return [own, *own.children(recursive=True)]

    def close(self) -> None:
        for link in self._links:
            link.close()
        self.process.kill()
        self.process.communicate()


@contextmanager
def worker_process(tmp_path: Path, *options: str) -> Iterator[Running]:
    folder = ClusterFolder(tmp_path / "cluster")
    folder.create()
    running = Running(folder, *options)
    try:
        yield running
    finally:
        running.close()


def result(link: HttpLink, epoch: int) -> Finished:
    deadline_s = time.monotonic() + LIMIT_S
    while not (found := link.collect(epoch, [], 0.25).results):
        assert time.monotonic() < deadline_s
    return found[0]


def watch(link: HttpLink) -> None:
    """Collect until the link raises."""
    while True:
        link.collect(1, [], 0.1)


def gone(processes: list[psutil.Process]) -> bool:
    return all(not one.is_running() or one.status() == psutil.STATUS_ZOMBIE for one in processes)


def test_a_worker_serves_its_coordinator_and_stops_within_a_second(tmp_path: Path) -> None:
    with worker_process(tmp_path, "--preload", "json,csv") as running:
        member = running.member()
        assert (member.role, member.name, member.pid, member.state) == ("worker", "w0", running.process.pid, "free")
        assert member.address.startswith("http://127.0.0.1:")
        link, sender = running.link(), running.link()
        assert link.adopt(3, "c0").name == "w0"
        sender.assign(3, [Assignment("1", 0, ECHO, ["a", "fail"])])
        done = result(link, 3)
        assert (done.job, done.batch, done.errors) == ("1", 0, 1)
        assert wire.unpack(done.results) == [{"result": "a"}, {"error": "ValueError: this query fails"}]
        state = link.collect(3, [done.batch_id], 0).state
        assert (state.kept, state.pid, state.computing) == ([], running.process.pid, None)
        with pytest.raises(StaleEpoch, match="answered 409: worker w0 serves epoch 3"):
            sender.assign(2, [Assignment("1", 1, ECHO, [])])
        wait_until(lambda: running.members.members()[0].epoch == 3)
        family = running.family()
        assert len(family) >= 3  # with the fork server and the computing process
        began_s = time.monotonic()
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(LIMIT_S) == 0
        assert time.monotonic() - began_s < 2.0  # 1 s where the machine is not busy
        assert running.members.members() == []
        wait_until(lambda: gone(family))
        with pytest.raises(Unreachable):
            sender.adopt(4, "c0")
        log = (running.folder.path / "logs" / "w0" / "chimera_status.log").read_text()
        assert "epoch 3: c0 is the coordinator" in log
        assert "has stopped" in log
        assert running.folder.token() not in log


def test_only_the_token_opens_it_and_what_does_not_fit_is_refused_in_one_line(tmp_path: Path) -> None:
    with worker_process(tmp_path) as running:
        address = running.member().address
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            assert httpx.post(f"{address}/v1/worker/adopt", json={"epoch": 9}, headers=headers).status_code == 401
        headers = {"Authorization": f"Bearer {running.folder.token()}"}
        with httpx.Client(base_url=f"{address}/v1/worker", headers=headers) as client:
            for path, body in (
                ("adopt", {"epoch": 9}), ("adopt", {"epoch": 0, "owner": "c"}), ("adopt", {"epoch": 1.5, "owner": "c"}),
                ("assign", {"epoch": 9, "assignments": [{"job": "1"}]}), ("forget", {"epoch": 9, "jobs": "1"}),
                ("prepare", {"epoch": 9, "models": ["sklearn"]}), ("prepare", {"epoch": 9, "models": [{}] * 101}),
                ("collect", {"epoch": 9, "done": [["1"]]}), ("collect", {"epoch": 9, "wait_s": -1}), ("stop", {}),
            ):  # fmt: skip
                told = client.post(path, json=body)
                assert (told.status_code, told.json()["details"]["errorMessage"]) == (422, "DataError")
                assert "\n" not in told.json()["message"]
            assert client.post("adopt", json={"epoch": 1, "owner": "c0"}).json()["name"] == "w0"  # 9 was never taken
            assert client.post("stop", json={"epoch": 1}).json() == {"stopped": True}
        assert running.process.wait(LIMIT_S) == 0
        assert running.members.members() == []


def test_a_computing_process_that_ends_is_replaced_and_a_worker_that_can_start_none_ends(tmp_path: Path) -> None:
    with worker_process(tmp_path) as running:
        link = running.link()
        link.adopt(1, "c0")
        link.assign(1, [Assignment("1", 0, ECHO, ["die"]), Assignment("1", 1, ECHO, ["a"])])
        failed = result(link, 1)
        assert (failed.batch_id, failed.failure) == (("1", 0), "its process exited with code 9")
        link.collect(1, [("1", 0)], 0)
        assert wire.unpack(result(link, 1).results) == [{"result": "a"}]
        link.collect(1, [("1", 1)], 0)
        _, forks, computing = running.family()
        computing.kill()
        wait_until(lambda: not link.collect(1, [], 0.25).state.loaded)
        forks.kill()
        link.assign(1, [Assignment("1", 2, ECHO, ["a"])])
        with pytest.raises(Unreachable):
            watch(link)
        assert running.process.wait(LIMIT_S) == 3
        assert running.process.stderr is not None
        assert "the process that forks the computing processes has ended" in running.process.stderr.read()
        log = (running.folder.path / "logs" / "w0" / "chimera_status.log").read_text()
        assert "a computing process was killed by SIGKILL while it was idle" in log


@pytest.mark.parametrize("how", ["killed", "released"])
def test_nothing_of_a_worker_outlives_it_or_its_starter(tmp_path: Path, how: str) -> None:
    with worker_process(tmp_path) as running:
        link = running.link()
        link.adopt(1, "c0")
        link.assign(1, [Assignment("1", 0, ECHO, [f"wait:{tmp_path / 'never'}"])])
        wait_until(lambda: link.collect(1, [], 0.25).state.computing is not None)
        family = running.family()
        if how == "killed":
            running.process.kill()
        else:
            assert running.process.stdin is not None
            running.process.stdin.close()  # as the kernel does when its starter ends
            running.process.stdin = None
        with pytest.raises(Unreachable):
            watch(link)
        wait_until(lambda: gone(family))


def test_a_worker_that_hangs_is_told_from_a_dead_one_and_goes_on_afterwards(tmp_path: Path) -> None:
    with worker_process(tmp_path) as running:
        link = running.link(timeout_s=0.3)
        link.adopt(1, "c0")
        os.kill(running.process.pid, signal.SIGSTOP)
        with pytest.raises(TimeLimitError):
            watch(link)
        os.kill(running.process.pid, signal.SIGCONT)
        link = running.link()
        link.assign(1, [Assignment("1", 0, ECHO, ["a"])])
        assert result(link, 1).batch_id == ("1", 0)


def test_a_worker_of_no_cluster_says_so_in_one_line(tmp_path: Path) -> None:
    running = Running(ClusterFolder(tmp_path / "nowhere"))
    try:
        assert running.process.wait(LIMIT_S) == 1
        assert running.process.stderr is not None
        written = running.process.stderr.read()
        assert written.count("\n") == 1
        assert "there is no cluster" in written
    finally:
        running.close()


def test_a_link_tells_silence_from_death_and_from_what_is_no_worker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = "http://{}:{}".format(*listener.getsockname())
        link = HttpLink.to(address, None, timeout_s=0.1)
        with pytest.raises(TimeLimitError):
            link.adopt(1, "c0")
        link.close()
    with pytest.raises(Unreachable):
        HttpLink.to(address, None).adopt(1, "c0")
    head = "HTTP/1.1 {}\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n"
    for told, kind, said in (
        (head.format("200 OK"), Unreachable, "cut off"),
        ("SSH-2.0\r\n", Unreachable, "answer is not HTTP"),
        (head.format("200 OK") + "{}", RunError, "invalid answer"),
        (head.format("404 Not Found") + "{}", RunError, "answered 404"),
    ):
        with answering(told) as address:
            link = HttpLink.to(address, None)
            with pytest.raises(kind, match=said) as caught:
                link.adopt(1, "c0")
            assert "\n" not in str(caught.value)
            link.close()


@contextmanager
def answering(told: str) -> Iterator[str]:
    """Answer one request with these words, and close the connection; gives the address."""

    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            asked = b""
            while b"owner" not in asked:
                asked += (more := connection.recv(1 << 16))
                assert more
            connection.sendall(told.encode())

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer)
        thread.start()
        yield "http://{}:{}".format(*listener.getsockname())
        thread.join(LIMIT_S)


def test_closing_a_link_ends_what_is_under_way() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        link = HttpLink.to("http://{}:{}".format(*listener.getsockname()), None, timeout_s=LIMIT_S)
        found: list[Unreachable] = []

        def ask() -> None:
            try:
                link.adopt(1, "c0")
            except Unreachable as error:
                found.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(1 << 16)
            link.close()
            asking.join(LIMIT_S)
            assert not asking.is_alive()
        assert [str(error) for error in found] == ["the link was closed"]
