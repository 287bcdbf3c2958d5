"""Hours of bad luck in a minute: workers and coordinators die, hang and wake up late, and each query has one result."""

from __future__ import annotations

import random
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path

import pytest

from chimera.engines.ray.session import HEALTH_CHECKS
from chimera.inference.cluster_folder import ClusterFolder
from chimera.inference.journal.sqlite import SqliteJournal
from chimera.inference.records import Committed, Dispatched
from inference.running import RunningCluster, cluster, signalled

QUERIES = 2500
SECONDS = (0.005, 0.01, 0.02, 0.04)  # a query, of four jobs
HANG_S = 3.0


class Chaos:
    """Every two seconds a worker is killed or hung, and in between a coordinator.

    Attributes
    ----------
    worker_deaths, worker_hangs, leader_deaths, leader_hangs : when each was, by the wall clock.
    """

    def __init__(self, running: RunningCluster, seed: int) -> None:
        self._running, self._random = running, random.Random(seed)
        self._leaders = ["kill", "hang", "kill", "kill", "hang", "kill", "kill"]
        self.worker_deaths: list[float] = []
        self.worker_hangs: list[float] = []
        self.leader_deaths: list[float] = []
        self.leader_hangs: list[float] = []
        self._timers: list[threading.Timer] = []

    @property
    def over(self) -> bool:
        """Whether every coordinator that was to suffer has."""
        return not self._leaders

    def strike(self, number: int) -> None:
        """Do the next harm."""
        if number % 2:
            if self._leaders:
                pid = self._running.member("coordinator")["pid"]
                self._harm(self._leaders.pop(0), pid, self.leader_deaths, self.leader_hangs)
            return
        living = self._running.members("worker")
        if living:
            what = self._random.choice(["kill", "hang"])
            self._harm(what, self._random.choice(living)["pid"], self.worker_deaths, self.worker_hangs)

    def end(self) -> None:
        """Wait until whoever hangs was woken up."""
        for timer in self._timers:
            timer.join()

    def _harm(self, what: str, pid: int, deaths: list[float], hangs: list[float]) -> None:
        (deaths if what == "kill" else hangs).append(time.time())
        signalled(pid, signal.SIGKILL if what == "kill" else signal.SIGSTOP)
        if what == "hang":
            timer = threading.Timer(HANG_S, _wake, (pid,))
            timer.start()
            self._timers.append(timer)


def _wake(pid: int) -> None:
    with suppress(
        ProcessLookupError
    ):  # whoever took over ends one that was stopped with the journal's lock in its hands
        signalled(pid, signal.SIGCONT)


@pytest.mark.slow
def test_ten_thousand_queries_survive_deaths_and_hangs_of_workers_and_coordinators(tmp_path: Path) -> None:
    with cluster(tmp_path, workers=6, standbys=2) as running:
        _endure(running, Chaos(running, seed=1))


@pytest.mark.slow
def test_they_survive_the_same_on_two_nodes_of_ray_of_which_one_dies(tmp_path: Path) -> None:
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 6, "object_store_memory": 100 << 20}
    head = {**node, "include_dashboard": False, "_system_config": dict(HEALTH_CHECKS)}
    nodes = Cluster(initialize_head=True, head_node_args=head)
    try:
        second = nodes.add_node(**node)
        with cluster(tmp_path, workers=6, standbys=2, options=["--ray", nodes.address]) as running:
            die = {20: lambda: nodes.remove_node(second, allow_graceful=False)}
            _endure(running, Chaos(running, seed=2), also=die)
            assert len(nodes.list_all_nodes()) == 1
    finally:
        nodes.shutdown()


def _endure(running: RunningCluster, chaos: Chaos, also: Mapping[int, Callable[[], None]] | None = None) -> None:
    """Answer all queries while harm is done, and hold that each has its result; ``also`` happens at its seconds."""
    jobs = [running.client.submit(running.model(seconds=seconds), list(range(QUERIES))) for seconds in SECONDS]
    began_s = time.monotonic()
    for number in range(300):
        done = all(running.client.job(job)["state"] == "done" for job in jobs)
        if done and chaos.over:
            break
        threading.Event().wait(max(0.0, began_s + 1.0 * (number + 1) - time.monotonic()))  # the harm has a rhythm
        if also and number in also:
            also[number]()
        else:
            chaos.strike(number)
    chaos.end()
    for job in jobs:
        row = running.client.wait(job, 120)
        assert (row["state"], row["errors"]) == ("done", 0)
        assert running.answers(job) == [2 * number for number in range(QUERIES)]
    _tell(running, chaos)
    assert len(chaos.leader_deaths) == 5
    assert len(chaos.leader_hangs) == 2


def _tell(running: RunningCluster, chaos: Chaos) -> None:
    """Say how fast the cluster recovered, and hold that no batch was committed twice."""
    with closing(SqliteJournal(ClusterFolder(running.folder).journal)) as journal:
        records = list(journal.records())
    dispatched = [record for record in records if isinstance(record, Dispatched)]
    committed = [(record.job, record.batch) for record in records if isinstance(record, Committed)]
    assert len(committed) == len(set(committed))
    again: dict[tuple[str, int], list[float]] = {}
    for record in dispatched:
        again.setdefault((record.job, record.batch), []).append(record.at_s)
    times = sorted(at_s for starts in again.values() for at_s in starts[1:])
    first = sorted(record.at_s for record in dispatched)
    for what, moments, after in (
        ("worker killed, a batch dispatched again", chaos.worker_deaths, times),
        ("worker hung, a batch dispatched again", chaos.worker_hangs, times),
        ("coordinator killed, the next dispatch", chaos.leader_deaths, first),
        ("coordinator hung, the next dispatch", chaos.leader_hangs, first),
    ):
        waits = [min((at_s - moment for at_s in after if at_s > moment), default=float("inf")) for moment in moments]
        soon = [wait for wait in waits if wait < 10]  # who had nothing in hand leaves nothing to dispatch
        told = f"median {statistics.median(soon):.2f} s, worst {max(soon):.2f} s" if soon else "never"
        sys.stderr.write(f"{what}: {told}, of {len(waits)}\n")
    more = sum(len(starts) - 1 for starts in again.values())
    sys.stderr.write(f"{more} of {len(again)} batches were dispatched again\n")
