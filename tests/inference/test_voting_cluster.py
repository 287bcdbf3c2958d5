"""A cluster whose coordinators are voters of the journal."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from chimera.cli.infer_cluster import up
from chimera.core.errors import ConfigurationError
from chimera.engines.ray.session import HEALTH_CHECKS
from chimera.inference.cluster_folder import ClusterFolder
from chimera.inference.journal.raft.journal import RaftJournal
from chimera.inference.journal.records import Committed, Dispatched
from inference.running import cluster, signalled, until

QUERIES = list(range(400))
FIRST_DISPATCH_S = 1.5


def free_addresses() -> list[str]:
    with ExitStack() as held:
        free = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in free]


@pytest.mark.long
def test_a_coordinator_that_is_a_voter_is_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    voters = free_addresses()
    with cluster(tmp_path, workers=3, standbys=None, options=["--voters", ",".join(voters)]) as running:
        follower = RaftJournal(voters, None, ClusterFolder(running.folder).token(), tmp_path / "follower")
        job = running.client.submit(running.model(seconds=0.02), QUERIES, batch_size=5)
        running.processed(job, 20)
        struck = []
        for done in (100, 250):
            running.processed(job, done)
            signalled(running.member("coordinator")["pid"], signal.SIGKILL)
            struck.append(time.time())
            again = until(lambda: [one for one in dispatches(follower) if one.at_s > struck[-1]])
            assert again[0].at_s - struck[-1] < FIRST_DISPATCH_S
        row = running.client.wait(job, 60)
        assert (row["state"], row["errors"]) == ("done", 0)
        assert running.answers(job) == [2 * query for query in QUERIES]
        committed = [(one.job, one.batch) for one in follower.records() if isinstance(one, Committed)]
        assert len(committed) == len(set(committed))
        until(lambda: len({row["name"] for row in running.members("standby")}) == 2)  # who died is back, and follows
        follower.close()


@pytest.mark.long
def test_voters_lead_workers_on_two_nodes_of_ray_while_a_voter_and_a_node_die(tmp_path: Path) -> None:
    from ray.cluster_utils import Cluster

    voters, node = free_addresses(), {"num_cpus": 2, "object_store_memory": 100 << 20}
    head = {**node, "include_dashboard": False, "_system_config": dict(HEALTH_CHECKS)}
    nodes = Cluster(initialize_head=True, head_node_args=head)
    try:
        second = nodes.add_node(**node)
        options = ["--ray", nodes.address, "--voters", ",".join(voters)]
        with cluster(tmp_path, workers=3, standbys=None, options=options) as running:
            job = running.client.submit(running.model(seconds=0.02), QUERIES, batch_size=5)
            running.processed(job, 50)
            signalled(running.member("coordinator")["pid"], signal.SIGKILL)
            running.processed(job, 150)
            nodes.remove_node(second, allow_graceful=False)
            row = running.client.wait(job, 60)
            assert (row["state"], row["errors"]) == ("done", 0)
            assert running.answers(job) == [2 * query for query in QUERIES]
            assert max(row["epoch"] for row in running.members("coordinator")) > 1
    finally:
        nodes.shutdown()


def test_standbys_beside_voters_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--standbys has no effect with --voters"):
        up(voters=",".join(free_addresses()), standbys=1, cluster=tmp_path / "cluster")
    assert not (tmp_path / "cluster").exists()


def dispatches(journal: RaftJournal) -> list[Dispatched]:
    return [record for record in journal.records() if isinstance(record, Dispatched)]


@pytest.mark.parametrize(
    ("voters", "says"),
    [
        ("127.0.0.1:1,127.0.0.1:2", "three different addresses"),
        ("127.0.0.1:1,127.0.0.1:1,127.0.0.1:2", "three different addresses"),
        ("127.0.0.1:1,127.0.0.1,127.0.0.1:2", "three different addresses"),
        ("192.0.2.1:1,192.0.2.1:2,192.0.2.1:3", "none of .* is an address of this machine"),
        ("127.0.0.1:1,192.0.2.1:2,192.0.2.1:3", "a token would travel to http://192.0.2.1:2 in clear"),
    ],
)
def test_wrong_voters_are_one_line(tmp_path: Path, voters: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHIMERA_INSECURE", raising=False)
    with pytest.raises(ConfigurationError, match=says):
        up(voters=voters, cluster=tmp_path / "cluster")
    assert not (tmp_path / "cluster").exists()


def test_the_leader_that_is_written_down_is_the_latest(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path / "cluster")
    folder.create()
    for epoch, leads in ((2, 2), (1, 2), (3, 3)):
        folder.note_leader(epoch, f"http://127.0.0.1:{epoch}")
        assert folder.leader() == f"http://127.0.0.1:{leads}"
    with folder.locked():
        assert folder.leader() is None  # of the cluster that ran before


def test_addresses_have_their_texts_where_the_journal_votes() -> None:
    module = "chimera.inference.journal.raft.journal"
    look = f"import {module}, socket; print(socket.inet_ntop(socket.AF_INET6, bytes(15) + bytes([1])))"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "::1"
