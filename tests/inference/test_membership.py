"""The members of a cluster, and their heartbeats."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from chimera.core.errors import ConfigurationError
from chimera.core.processes import start_of
from chimera.inference.candidate import Candidate
from chimera.inference.cluster_folder import ClusterFolder, Scale
from chimera.inference.journal.journal import Lease
from chimera.inference.journal.sqlite import SqliteJournal
from chimera.inference.membership import Member, Members
from chimera.inference.pool.http import HttpPool

_JOINS = """
import sys
from pathlib import Path
from chimera.inference.membership import Members

members = Members(Path(sys.argv[1]))
members.join("worker", sys.argv[2], "http://127.0.0.1:2", state="free")
print("joined", flush=True)
for _ in sys.stdin:
    print(members.beat(sys.argv[2], state="busy"), flush=True)
"""


def test_members_join_beat_and_leave(tmp_path: Path) -> None:
    here, there = Members(tmp_path / "members"), Members(tmp_path / "members")
    assert there.members() == []
    before_s = time.time()
    here.join("worker", "w0", "http://127.0.0.1:1", state="free")
    here.join("standby", "c0", "http://127.0.0.1:2", state="stands by")
    standby, worker = there.members()
    assert (standby.name, worker.name, worker.role, worker.state, worker.epoch) == ("c0", "w0", "worker", "free", 0)
    assert worker.address == "http://127.0.0.1:1"
    assert before_s <= worker.beat_at_s <= time.time()
    assert worker.heartbeat_age_s(worker.beat_at_s + 2.5) == 2.5
    # The clock was set back, and no heartbeat followed.
    assert worker.heartbeat_age_s(worker.beat_at_s - 3600.0) == 3600.0
    assert here.beat("c0", role="coordinator", state="leads", epoch=3)
    (leader, *_) = there.members()
    assert (leader.role, leader.state, leader.epoch, leader.address) == ("coordinator", "leads", 3, standby.address)
    assert leader.beat_at_s >= standby.beat_at_s
    here.leave("w0")
    assert [one.name for one in there.members()] == ["c0"]
    assert not here.beat("w0")
    assert [one.name for one in there.members()] == ["c0"]


def test_a_heartbeat_creates_the_folder_again_but_not_that_of_the_cluster(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    members = Members(tmp_path / "cluster" / "members")
    members.join("worker", "w0", "http://127.0.0.1:1", state="free")
    shutil.rmtree(tmp_path / "cluster" / "members")
    members.beat("w0", state="busy")
    assert [one.state for one in members.members()] == ["busy"]
    (tmp_path / "cluster").rename(tmp_path / "moved")
    members.beat("w0", state="free")
    assert not (tmp_path / "cluster").exists()


@pytest.mark.parametrize("reused", [False, True])
def test_a_worker_that_hangs_is_killed_and_no_process_that_has_its_number_by_now(tmp_path: Path, reused: bool) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _JOINS, str(tmp_path), "w0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "joined\n"
            file = tmp_path / "w0.json"
            member = msgspec.json.decode(file.read_bytes(), type=Member)
            assert member.start == start_of(other.pid) != ""
            if reused:  # an earlier process had the number
                file.write_bytes(msgspec.json.encode(msgspec.structs.replace(member, start=str(int(member.start) - 1))))
            assert HttpPool(Members(tmp_path), "").kill("w0", "http://127.0.0.1:2")
            if reused:
                assert other.stdin is not None
                other.stdin.write("\n")
                other.stdin.flush()
                assert other.stdout.readline() == "True\n"  # it lives
            else:
                assert other.wait(60) == -signal.SIGKILL
        finally:
            other.kill()


def test_the_file_of_a_member_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    member = Member("worker", "w0", "here", 1, "http://127.0.0.1:2", "free", 0, 0.0)
    row = msgspec.to_builtins(member)
    del row["start"]
    (tmp_path / "w0.json").write_bytes(msgspec.json.encode(row))
    assert Members(tmp_path).members() == [member]


def test_a_name_belongs_to_the_process_that_joined_last(tmp_path: Path) -> None:
    here = Members(tmp_path)
    here.join("worker", "w0", "http://127.0.0.1:1", state="free")
    with subprocess.Popen(
        [sys.executable, "-c", _JOINS, str(tmp_path), "w0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        try:
            assert other.stdout is not None
            assert other.stdin is not None
            assert other.stdout.readline() == "joined\n"
            assert not here.beat("w0", state="busy")  # it was stopped for long, say, and has been replaced
            here.leave("w0")
            (member,) = here.members()
            assert (member.pid, member.state) == (other.pid, "free")
            other.stdin.write("\n")
            other.stdin.flush()
            assert other.stdout.readline() == "True\n"
            assert here.members()[0].state == "busy"
        finally:
            other.kill()
    here.leave("w0", other.pid)  # which is dead
    assert here.members() == []


def test_what_no_member_wrote_is_passed_over(tmp_path: Path) -> None:
    members = Members(tmp_path)
    members.join("worker", "w0", "", state="free")
    (tmp_path / "w1.json").write_text("{")
    (tmp_path / "w2.json").write_text('{"role": "king", "name": "w2"}')
    (tmp_path / "w3.json").mkdir()
    assert [one.name for one in members.members()] == ["w0"]


@pytest.mark.parametrize("name", ["", "../w0", "a/b", ".w0", "w" * 64, "w0\n"])
def test_a_name_that_is_none_of_a_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="invalid name of a member"):
        Members(tmp_path).join("worker", name, "", state="free")


def test_the_token_is_for_its_owner_alone_and_stays(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path / "cluster")
    with pytest.raises(ConfigurationError, match="there is no cluster"):
        folder.token()
    folder.create()
    token = folder.token()
    assert len(token) >= 32
    assert (tmp_path / "cluster" / "token").stat().st_mode & 0o777 == 0o600
    ClusterFolder(tmp_path / "cluster").create()
    assert folder.token() == token
    assert [file.name for file in folder.path.glob("token*")] == ["token"]


def test_the_output_of_a_process_is_continued_in_another_file_when_it_is_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chimera.inference.cluster_folder.MAX_OUTPUT_BYTES", 10)
    folder = ClusterFolder(tmp_path)
    for text in ("a" * 11, "b" * 11, "c"):
        folder.output("w0").write_text(text)
    files = {file.name: file.read_text() for file in (tmp_path / "logs" / "w0").iterdir()}
    assert files == {"output.log.1": "b" * 11, "output.log": "c"}


def test_the_number_of_workers_stays_within_its_bounds_and_a_decision_by_old_bounds_is_dropped(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path)
    assert folder.scale() is None
    folder.set_bounds(2, 8)
    seen = folder.scale()
    assert seen == Scale(2, 2, 8)
    folder.set_workers(6, seen)
    folder.set_workers(7, seen)  # but it has changed
    folder.set_bounds(1, 10)
    assert folder.scale() == Scale(6, 1, 10)
    folder.set_bounds(3, 3)
    assert folder.scale() == Scale(3, 3, 3)


def test_bounds_of_a_command_are_kept_while_another_thread_sets_the_number_of_workers(tmp_path: Path) -> None:
    folder, ended = ClusterFolder(tmp_path), threading.Event()
    folder.set_bounds(1, 9)

    def decide() -> None:
        while not ended.is_set():
            seen = folder.scale()
            folder.set_workers(3 - seen.count, seen)

    thread = threading.Thread(target=decide)
    thread.start()
    try:
        for most in range(10, 500):
            folder.set_bounds(1, most)
            assert folder.scale().most == most
    finally:
        ended.set()
        thread.join()


def test_a_candidate_that_is_stopped_while_it_gets_the_lease_ends(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path)
    folder.create()

    class Stopping(SqliteJournal):
        def acquire(self, owner: str, address: str, lease_s: float) -> Lease | None:
            lease = super().acquire(owner, address, lease_s)
            candidate._stopped.set()  # as in `stop`, which finds no coordinator yet
            return lease

    candidate = Candidate("c0", folder, "fair-share", ray=False, journal=lambda: Stopping(folder.journal))
    candidate.start("http://127.0.0.1:1")
    candidate._thread.join(20)
    leads = candidate._thread.is_alive()
    if leads and candidate._leading is not None:
        candidate._leading.stop()
    candidate.stop()
    assert not leads
