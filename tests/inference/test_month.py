"""A month in virtual time: jobs come and go, workers and coordinators die, and memory, threads and files stay bounded."""

from __future__ import annotations

import gc
import itertools
import random
import statistics
import threading
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from chimera.engines.http import wire
from chimera.engines.http.connection import Unreachable
from chimera.inference.api import operations, views
from chimera.inference.coordinator.coordinator import Coordinator
from chimera.inference.journal.sqlite import SqliteJournal
from chimera.inference.membership import Member
from chimera.inference.models import check
from chimera.inference.models.spec import key_of
from chimera.inference.policies.policy import POLICIES
from chimera.inference.pool.pool import Pool
from chimera.inference.worker.protocol import Assignment, BatchId, Collected, Finished, Link, WorkerState
from inference.running import until
from inference.test_workers import ECHO

DAYS, KEEP_DAYS, JOBS_A_DAY, QUERIES = 30, 2, 6, 100
DAY_S = 86_400.0
SETTLED = 6
"""From this day on, as much is deleted as is added."""


class Quick(Link):
    """A link to a worker that has each result at once, and dies after some batches."""

    def __init__(self, name: str, lives: int) -> None:
        self.name, self.lives = name, lives
        self._done: list[Finished] = []
        self._changed = threading.Condition()

    def adopt(self, epoch: int, owner: str) -> WorkerState:
        return self._state()

    def assign(self, epoch: int, assignments: Sequence[Assignment]) -> WorkerState:
        with self._changed:
            self.lives -= len(assignments)
            if self.lives > 0:
                self._done += [
                    Finished(one.job, one.batch, 0.01, 0, wire.pack([{"result": query} for query in one.queries]))
                    for one in assignments
                ]
            self._changed.notify_all()
        return self._state()

    def collect(self, epoch: int, done: Sequence[BatchId], wait_s: float) -> Collected:
        with self._changed:
            self._done = [one for one in self._done if one.batch_id not in done]
            self._changed.wait_for(lambda: self.lives <= 0 or self._done, wait_s)
            return Collected(self._state(), list(self._done))

    def forget(self, epoch: int, jobs: Sequence[str]) -> WorkerState:
        return self._state()

    def stop(self, epoch: int) -> None:
        """Nothing: the test ends it."""

    def close(self) -> None:
        """Nothing: it is no connection."""

    def _state(self) -> WorkerState:
        if self.lives <= 0:
            raise Unreachable("it is dead")
        return WorkerState(
            self.name, 1, None, [], [one.batch_id for one in self._done], [key_of(check(ECHO))], None, 0.0, 0.0
        )


class Mortal(Pool):
    """Three workers; a dead one is replaced when the coordinator looks for it."""

    poll_s = 0.01

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._numbers = itertools.count()
        self.deaths = 0
        self._links: dict[str, Quick] = {}
        self._addresses = {f"w{i}": self._born(f"w{i}") for i in range(3)}

    def _born(self, name: str) -> str:
        address = f"{name}.{next(self._numbers)}"
        self._links[address] = Quick(name, self._random.randrange(5, 60))
        return address

    def addresses(self) -> Mapping[str, str]:
        for name, address in self._addresses.items():
            if self._links[address].lives <= 0:
                self.deaths += 1
                del self._links[address]
                self._addresses[name] = self._born(name)
        return dict(self._addresses)

    def link(self, address: str) -> Link:
        return self._links[address]

    def members(self) -> list[Member]:
        return []


class Size(NamedTuple):
    """What a day has left."""

    jobs: int
    memory: int
    threads: int
    files: int
    bytes_on_disk: int


def size(folder: Path, leader: Coordinator) -> Size:
    jobs = len(leader.call(lambda: views.jobs(leader)))
    gc.collect()
    return Size(
        jobs, tracemalloc.get_traced_memory()[0], threading.active_count(), len(list(Path("/proc/self/fd").iterdir())),
        sum(file.stat().st_size for file in folder.iterdir()),
    )  # fmt: skip


@contextmanager
def leads(folder: Path, pool: Pool, now_s: list[float]) -> Iterator[Coordinator]:
    """Lead until the context ends."""
    with closing(SqliteJournal(folder / "journal.sqlite")) as journal:
        lease = journal.acquire("c0", "", 60.0)
        assert lease is not None
        policy = POLICIES.create("fair-share")
        leading = Coordinator(journal, lease, policy, pool=pool, keep_s=KEEP_DAYS * DAY_S, clock=lambda: now_s[0])
        thread = threading.Thread(target=leading.lead)
        thread.start()
        try:
            yield leading
        finally:
            leading.stop()
            thread.join()
            journal.release(lease.epoch)


def day(leader: Coordinator, now_s: list[float], number: int) -> None:
    """Submit jobs and check their results; the queries differ from day to day."""
    for hour in range(JOBS_A_DAY):
        now_s[0] += DAY_S / JOBS_A_DAY
        queries = [f"query {index} of hour {hour} of day {number} {'x' * 100}" for index in range(QUERIES)]
        job = operations.submit(leader, key=f"{number}.{hour}", model=ECHO, queries=queries, batch_size=10)
        until(lambda job=job: leader.call(lambda: leader.scheduler.jobs[job].ended) == "done")
        outputs = sorted(leader.journal.outputs(job, 0), key=lambda output: output.first)
        assert [row["result"] for output in outputs for row in wire.unpack(output.body)] == queries
        if hour == 3:
            cancelled = operations.submit(leader, key=f"{number}.cancelled", model=ECHO, queries=queries)
            operations.cancel(leader, cancelled)


@pytest.mark.slow
def test_a_month_leaves_no_more_than_a_week(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "chimera.inference.coordinator.coordinator.LEASE_S", 60.0
    )  # the clients of this test do not retry
    pool, now_s = Mortal(1), [0.0]
    sizes = []
    tracemalloc.start()
    try:
        for number in range(DAYS):
            with leads(tmp_path, pool, now_s) as leader:  # each day another coordinator
                day(leader, now_s, number)
                kept = (KEEP_DAYS + 1) * (JOBS_A_DAY + 1)
                until(lambda leader=leader, kept=kept: len(leader.call(lambda: views.jobs(leader))) <= kept)
                sizes.append(size(tmp_path, leader))
    finally:
        tracemalloc.stop()
    for number, one in enumerate(sizes):
        print(number, one)  # noqa: T201 - shown if the test fails
    assert pool.deaths > DAYS
    month, week = sizes[-5:], sizes[SETTLED : SETTLED + 5]
    for what, slack in {"jobs": 1.0, "memory": 1.25, "threads": 1.0, "files": 1.0, "bytes_on_disk": 1.1}.items():
        now, before = (statistics.median(getattr(one, what) for one in days) for days in (month, week))
        assert now <= slack * before, (what, before, now)
