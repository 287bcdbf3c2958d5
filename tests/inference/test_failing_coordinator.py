"""A coordinator that cannot continue exits, says why, and is restarted: no process stays that neither leads nor can."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.disk_kit import fill, leave, small_disk

from chimera.core.errors import NoSpaceError, RunError
from chimera.inference.cluster_folder import ClusterFolder
from chimera.inference.coordinator.coordinator import Coordinator
from chimera.inference.coordinator.renewal import LEASE_S
from chimera.inference.inputs import queries
from chimera.inference.journal.sqlite import SqliteJournal
from chimera.inference.managed_process import ManagedProcess
from chimera.inference.membership import Members
from chimera.inference.policies.policy import POLICIES
from chimera.inference.pool.http import HttpPool
from inference.running import cluster, until


def damaged(folder: ClusterFolder, _: socket.socket) -> list[str]:
    folder.journal.write_bytes(b"no journal" * 1000)
    return []


def taken(_: ClusterFolder, held: socket.socket) -> list[str]:
    own = f"127.0.0.1:{held.getsockname()[1]}"
    return ["--voters", f"{own},127.0.0.1:1,127.0.0.1:2", "--voter", own]


@pytest.mark.parametrize(("break_", "why"), [(damaged, "is damaged"), (taken, "Address already in use")])
def test_a_coordinator_that_cannot_open_its_journal_exits_and_the_supervisor_says_why(
    break_: Callable[[ClusterFolder, socket.socket], list[str]], why: str, tmp_path: Path
) -> None:
    folder = ClusterFolder(tmp_path / "cluster")
    folder.create()
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as held:
        command = ["chimera.inference.coordinator_process", "--cluster", str(folder.path), "--name", "c0"]
        process = ManagedProcess("c0", [*command, *break_(folder, held)], folder, {})
        process.start()
        try:
            until(lambda: process.check(said.append) or said)
        finally:
            process.end(0.0)
    (line,) = said
    assert line.startswith("c0 exited with code 1 (")
    assert why in line
    assert line.endswith("; it is restarted")


class Unrenewable(SqliteJournal):
    """A journal whose lease cannot be renewed."""

    def renew(self, epoch: int, lease_s: float) -> None:
        raise RunError("the lease cannot be written")


def test_an_error_of_the_renewal_ends_the_coordinator(tmp_path: Path) -> None:
    with closing(Unrenewable(tmp_path / "journal.sqlite")) as journal:
        lease = journal.acquire("c0", "", LEASE_S)
        assert lease is not None
        pool = HttpPool(Members(tmp_path / "members"), "token")
        leading = Coordinator(journal, lease, POLICIES.create("fair-share"), pool=pool)
        with pytest.raises(RunError, match="the lease cannot be written"):
            leading.lead()


@pytest.mark.long
def test_a_cluster_warns_before_its_disk_is_full_and_continues_when_there_is_space(tmp_path: Path) -> None:
    log = tmp_path / "up.log"
    with small_disk(tmp_path / "cluster", 64) as disk, cluster(tmp_path, workers=1) as running:
        job = running.client.submit(running.model(seconds=0.02), list(range(600)), batch_size=5)
        running.processed(job, 10)
        ballast = leave(disk, 2 << 20)
        until(lambda: b"warning: the disk is nearly full" in log.read_bytes())
        until(lambda: "the disk is nearly full" in running.member("coordinator")["state"])
        assert b"exited" not in log.read_bytes()
        numbers = tmp_path / "numbers.txt"
        numbers.write_text("1234567\n" * (3 << 20))  # more than 16 MiB, which stay in the file
        for inputs in ([1], queries(str(numbers))):
            with pytest.raises(NoSpaceError, match="MiB are left, and 4 MiB are reserved for accepted jobs"):
                running.client.submit(running.model(), inputs)
        with pytest.raises(NoSpaceError, match="reserved for accepted jobs"):
            running.client.serve("doubler", running.model())
        assert [row["job"] for row in running.client.rows("jobs")] == [job]
        with closing(SqliteJournal(running.folder / "journal.sqlite")) as journal:
            assert {record.job for record in journal.records()} == {job}
        fill(disk)
        until(lambda: f"exited with code 1 (the disk of {running.folder} is full)".encode() in log.read_bytes())
        for file in (ballast, disk / "fill"):
            file.unlink()
        assert running.client.wait(job, 60)["state"] == "done"
        assert running.answers(job) == [2 * number for number in range(600)]
