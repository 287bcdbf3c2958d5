"""A soak test: workers and coordinators die and hang at random, and each query gets one result."""

from __future__ import annotations

import math
import random
import signal
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from chimera.engines.ray.session import HEALTH_CHECKS
from chimera.inference.cluster_folder import ClusterFolder
from chimera.inference.journal.records import Committed, Dispatched, Failed, Record, Returned
from chimera.inference.journal.sqlite import SqliteJournal
from inference.journal_kit import committed_once
from inference.running import RunningCluster, cluster, signalled

QUERIES = 2500
SECONDS = (0.005, 0.01, 0.02, 0.04)  # a query, of four jobs
HANG_S = 3.0


class Strike(NamedTuple):
    """What was done to whom, and when by the wall clock."""

    what: str
    role: str
    name: str
    at_s: float


class Chaos:
    """Every two seconds a worker is killed or hung, and in between a coordinator.

    Attributes
    ----------
    strikes : what was done, in order.
    """

    def __init__(self, running: RunningCluster, seed: int) -> None:
        self._running, self._random = running, random.Random(seed)
        self._leaders = ["kill", "hang", "kill", "kill", "hang", "kill", "kill"]
        self.strikes: list[Strike] = []
        self._timers: list[threading.Timer] = []

    @property
    def over(self) -> bool:
        """Return whether all planned faults of coordinators have happened."""
        return not self._leaders

    def strike(self, number: int) -> None:
        """Do the next harm."""
        if number % 2:
            if self._leaders:
                self._harm(self._leaders.pop(0), self._running.member("coordinator"))
            return
        living = self._running.members("worker")
        if living:
            self._harm(self._random.choice(["kill", "hang"]), self._random.choice(living))

    def end(self) -> None:
        """Wait until hung processes continue."""
        for timer in self._timers:
            timer.join()

    def count(self, what: str, role: str) -> int:
        """Return how often this was done to such a member."""
        return sum(strike.what == what and strike.role == role for strike in self.strikes)

    def _harm(self, what: str, member: Mapping[str, Any]) -> None:
        pid = member["pid"]
        self.strikes.append(Strike(what, member["role"], member["name"], time.time()))
        signalled(pid, signal.SIGKILL if what == "kill" else signal.SIGSTOP)
        if what == "hang":
            timer = threading.Timer(HANG_S, _wake, (pid,))
            timer.start()
            self._timers.append(timer)


def _wake(pid: int) -> None:
    with suppress(
        ProcessLookupError
    ):  # the successor kills a coordinator that was stopped while it held the journal's lock
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
    assert chaos.count("kill", "coordinator") == 5
    assert chaos.count("hang", "coordinator") == 2


def _tell(running: RunningCluster, chaos: Chaos) -> None:
    """Say how fast the cluster recovered, and hold that no batch was committed twice."""
    with closing(SqliteJournal(ClusterFolder(running.folder).journal)) as journal:
        records = list(journal.records())
    committed_once(records)
    leaderless = [strike.at_s for strike in chaos.strikes if strike.role == "coordinator"]
    for what in ("kill", "hang"):
        strikes = [strike for strike in chaos.strikes if strike.what == what]
        again = [again for s in strikes if s.role == "worker" for again in _dispatched_again(records, s)]
        alone = [one for one in again if not any(one.struck_s - 1 < end_s < one.at_s for end_s in leaderless)]
        for word, of in (
            ("", alone),
            (" while the coordinator is being replaced", [a for a in again if a not in alone]),
        ):
            _say(f"worker {what}{word}: it is known", [one.known_s - one.struck_s for one in of if one.known_s])
            _say("    a batch that it had is dispatched again", [one.at_s - one.struck_s for one in of])
            _say("    and begun, by its commit", [one.begun_s - one.struck_s for one in of if one.begun_s])
        starts = [record.at_s for record in records if isinstance(record, Dispatched)]
        first = [
            min(at_s for at_s in (*starts, math.inf) if at_s > s.at_s) - s.at_s for s in strikes if s.role != "worker"
        ]
        _say(f"coordinator {what}: the next dispatch", [wait for wait in first if wait < 10])
    batches = Counter((record.job, record.batch) for record in records if isinstance(record, Dispatched))
    sys.stderr.write(f"{batches.total() - len(batches)} of {len(batches)} batches were dispatched again\n")


class Again(NamedTuple):
    """A batch that a struck worker had: when that was struck, when it was known, when the batch was dispatched, and begun."""

    struck_s: float
    known_s: float
    at_s: float
    begun_s: float


def _dispatched_again(records: Sequence[Record], strike: Strike) -> list[Again]:
    """Return the batches that a struck worker had, and that were dispatched again."""
    had: dict[tuple[str, int], Again | None] = {}
    for record in records:
        if not isinstance(record, Dispatched | Committed | Returned | Failed):
            continue
        key = (record.job, record.batch)
        if record.at_s <= strike.at_s:
            if isinstance(record, Dispatched) and record.worker == strike.name:
                had[key] = Again(strike.at_s, 0.0, 0.0, 0.0)
            else:
                had.pop(key, None)
        elif (batch := had.get(key)) is not None:
            if isinstance(record, Returned) and not batch.known_s:
                had[key] = batch._replace(known_s=record.at_s)
            elif isinstance(record, Failed):
                had.update({(record.job, part): batch._replace(known_s=record.at_s) for part in record.parts})
            elif isinstance(record, Dispatched) and not batch.at_s:
                had[key] = batch._replace(at_s=record.at_s)
            elif isinstance(record, Committed):
                had[key] = batch._replace(begun_s=record.at_s - record.seconds) if batch.at_s else None
    return [batch for batch in had.values() if batch is not None and batch.at_s]


def _say(what: str, waits: Sequence[float]) -> None:
    told = f"median {statistics.median(waits):.2f} s, worst {max(waits):.2f} s, of {len(waits)}" if waits else "never"
    sys.stderr.write(f"{what}: {told}\n")
