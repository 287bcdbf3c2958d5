"""Workers that are actors of a Ray cluster: they survive coordinators, and their nodes and processes may die."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from chimera.engines.ray.session import HEALTH_CHECKS
from chimera.inference.cluster_folder import ClusterFolder
from chimera.inference.journal.records import Committed, Dispatched, Record, Returned
from chimera.inference.journal.sqlite import SqliteJournal
from chimera.inference.pool.ray import DIED
from inference.running import RunningCluster, alive, cluster, signalled, until

pytestmark = pytest.mark.long

QUERIES = list(range(200))
NODE = {"num_cpus": 2, "object_store_memory": 100 << 20, "include_dashboard": False}
NODE_LOST_S = 2.5


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={**NODE, "_system_config": dict(HEALTH_CHECKS)})
    yield nodes
    nodes.shutdown()


@pytest.fixture
def second_node(nodes: Any) -> Iterator[Any]:
    node = nodes.add_node(**{key: value for key, value in NODE.items() if key != "include_dashboard"})
    yield node
    if node in nodes.list_all_nodes():
        nodes.remove_node(node)


@contextlib.contextmanager
def on_ray(nodes: Any, folder: Path, workers: int = 2) -> Iterator[RunningCluster]:
    with cluster(folder, workers=workers, options=["--ray", nodes.address]) as running:
        yield running


def recorded(running: RunningCluster) -> list[Record]:
    with closing(SqliteJournal(ClusterFolder(running.folder).journal)) as journal:
        return list(journal.records())


def finished_once(running: RunningCluster, job: str) -> None:
    """Wait for the end of a job, and see that each query has its result, and each batch was committed once."""
    row = running.client.wait(job, 90)
    assert (row["state"], row["errors"]) == ("done", 0)
    assert running.answers(job) == [2 * query for query in QUERIES]
    committed = Counter((one.job, one.batch) for one in recorded(running) if isinstance(one, Committed))
    assert set(committed.values()) == {1}


def test_a_lost_node_costs_a_moment_and_no_result(nodes: Any, second_node: Any, tmp_path: Path) -> None:
    with on_ray(nodes, tmp_path, workers=4) as running:
        before = until(
            lambda: found if len(found := {m["name"]: m["pid"] for m in running.members("worker")}) == 4 else {}
        )
        job = running.client.submit(running.model(seconds=0.1), QUERIES, batch_size=2)
        until(lambda: {one.worker for one in recorded(running) if isinstance(one, Committed)} == before.keys())
        nodes.remove_node(second_node, allow_graceful=False)
        died_s = time.time()
        away = until(lambda: gone if len(gone := {name for name in before if not alive(before[name])}) == 2 else None)
        finished_once(running, job)
        records = recorded(running)
    dispatched = [one for one in records if isinstance(one, Dispatched) and one.at_s > died_s]
    lost = {(one.job, one.batch) for one in records if isinstance(one, Returned) and one.worker in away}
    again = [one.at_s - died_s for one in dispatched if (one.job, one.batch) in lost and one.worker not in away]
    assert lost
    assert max(again) < NODE_LOST_S, again


def test_workers_outlive_their_coordinator_with_the_batch_in_hand(nodes: Any, tmp_path: Path) -> None:
    with on_ray(nodes, tmp_path) as running:
        before = until(lambda: pids if len(pids := {m["pid"] for m in running.members("worker")}) == 2 else {})
        job = running.client.submit(running.model(seconds=0.05), QUERIES, batch_size=10)
        running.processed(job, 20)
        signalled(running.member("coordinator")["pid"], signal.SIGKILL)
        finished_once(running, job)
        assert {row["pid"] for row in running.members("worker")} == before
        again = Counter((one.job, one.batch) for one in recorded(running) if isinstance(one, Dispatched))
        workers = {(one.job, one.batch, one.worker) for one in recorded(running) if isinstance(one, Dispatched)}
    assert len(workers) == len(again)  # no batch went to a second worker


@pytest.mark.parametrize(("number", "limit_s"), [(signal.SIGKILL, 0.5), (signal.SIGSTOP, 1.5)], ids=["killed", "hung"])
def test_a_batch_of_a_killed_or_hung_worker_goes_to_another(
    nodes: Any, tmp_path: Path, number: signal.Signals, limit_s: float
) -> None:
    with on_ray(nodes, tmp_path) as running:
        job = running.client.submit(running.model(seconds=0.02), QUERIES, batch_size=5)
        running.processed(job, 5)
        victim = running.member("worker")
        signalled(victim["pid"], number)
        struck_s = time.time()
        (lost, *_) = until(lambda: returned(running, victim["name"], struck_s))
        again = until(
            lambda: [one for one in after(running, struck_s) if (one.job, one.batch) == (lost.job, lost.batch)]
        )
        assert again[0].at_s - struck_s < limit_s
        if number == signal.SIGSTOP:
            signalled(victim["pid"], signal.SIGCONT)
        finished_once(running, job)


def returned(running: RunningCluster, worker: str, since_s: float) -> list[Returned]:
    found = [one for one in recorded(running) if isinstance(one, Returned)]
    return [one for one in found if one.worker == worker and one.at_s > since_s]


def after(running: RunningCluster, since_s: float) -> list[Dispatched]:
    return [one for one in recorded(running) if isinstance(one, Dispatched) and one.at_s > since_s]


def test_the_next_supervisor_finds_the_workers_of_one_that_was_killed(nodes: Any, tmp_path: Path) -> None:
    place = tmp_path / "cluster"
    command = [sys.executable, "-m", "chimera", "infer", "up", "--ray", nodes.address, "--cluster", str(place)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as up:
        try:
            until(lambda: (place / "token").exists())
            first = RunningCluster(place, up)
            before = until(lambda: pids if len(pids := {m["pid"] for m in first.members("worker")}) == 2 else {})
            job = first.client.submit(first.model(seconds=0.05), QUERIES, batch_size=10)
            first.processed(job, 20)
        finally:
            up.kill()
    with on_ray(nodes, tmp_path) as second:
        finished_once(second, job)
        assert {row["pid"] for row in second.members("worker")} == before


def test_each_worker_sees_the_gpu_that_ray_has_given_it(nodes: Any, tmp_path: Path) -> None:
    node = nodes.add_node(num_cpus=2, num_gpus=2, object_store_memory=100 << 20)
    (tmp_path / "seen.py").write_text(
        "import os, time\nclass Seen:\n    def predict(self, queries):\n        time.sleep(0.1)\n"
        "        return [os.environ.get('CUDA_VISIBLE_DEVICES') for _ in queries]\n"
    )
    try:
        with cluster(tmp_path, workers=2, options=["--ray", nodes.address, "--gpus", "1"]) as running:
            table = {"kind": "factory", "factory": f"{tmp_path / 'seen.py'}:Seen", "options": {}}
            job = running.client.submit(table, list(range(20)), batch_size=1)
            running.client.wait(job, 60)
            assert set(running.answers(job)) == {"0", "1"}
    finally:
        nodes.remove_node(node)


def test_a_worker_without_a_coordinator_ends() -> None:
    program = "from chimera.inference.pool.ray import WorkerActor; WorkerActor('w0', [], orphaned_s=1.0)"
    wait = "import threading; threading.Event().wait()"
    done = subprocess.run([sys.executable, "-c", f"{program}; {wait}"], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (DIED, b"chimera: error: no coordinator has called for 1 s\n")
