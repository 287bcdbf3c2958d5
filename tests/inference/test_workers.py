"""A coordinator and workers that join, hang and die. The workers are fakes; all else is real."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chimera.core.errors import ConfigurationError, RunError, TimeLimitError
from chimera.engines.http import wire
from chimera.engines.http.connection import Unreachable
from chimera.inference.api import operations, views
from chimera.inference.client import outcome
from chimera.inference.coordinator.coordinator import Coordinator, NotCoordinator
from chimera.inference.coordinator.renewal import LEASE_S
from chimera.inference.coordinator.worker_handle import WorkerHandle
from chimera.inference.inputs import queries
from chimera.inference.journal.journal import Journal
from chimera.inference.journal.records import Dropped, Failed, Record
from chimera.inference.journal.sqlite import SqliteJournal
from chimera.inference.membership import Member
from chimera.inference.models import check
from chimera.inference.models.spec import key_of
from chimera.inference.pieces import MAX_CHUNK_BYTES, packed_chunks
from chimera.inference.policies.policy import POLICIES
from chimera.inference.pool.pool import Pool
from chimera.inference.worker.protocol import Assignment, BatchId, Collected, Finished, Link, WorkerState
from inference import model
from inference.running import until

ECHO = {"kind": "factory", "factory": f"{Path(model.__file__).resolve()}:Echo", "options": {}}
NOW_S = 1000.0


class Obedient(Link):
    """A link to a fake worker that has every model loaded; the test finishes its batches, or kills it."""

    def __init__(self, name: str) -> None:
        self.name, self.dead, self.hangs = name, False, False
        self.has: list[BatchId] = []
        self.limits_s: list[float] = []
        self.prepared: list[dict[str, object]] = []
        self.drains = self.silent = False
        self.refused_s: list[float] | None = None
        self._done: list[Finished] = []
        self._changed = threading.Condition()

    def finish(self, seconds: float) -> None:
        """Be done with the earliest batch."""
        with self._changed:
            job, batch = self.has.pop(0)
            self._done.append(Finished(job, batch, seconds, 0, wire.pack([{"result": 0}] * 10)))
            self._changed.notify_all()

    def fail(self) -> None:
        """Have lost the computing process by the earliest batch."""
        with self._changed:
            job, batch = self.has.pop(0)
            self._done.append(Finished(job, batch, 0.0, 10, b"", failure="its process exited with code 9"))
            self._changed.notify_all()

    def cannot_load(self) -> None:
        """Have no model for the earliest batch."""
        with self._changed:
            job, batch = self.has.pop(0)
            why = "the model cannot be loaded: no such folder"
            self._done.append(Finished(job, batch, 0.0, 10, wire.pack([{"error": why}] * 10), error=why, unloaded=True))
            self._changed.notify_all()

    def claim(self, result: Finished) -> None:
        """Send a result of a batch that another worker has."""
        with self._changed:
            self._done.append(result)
            self._changed.notify_all()

    def die(self) -> None:
        """Be dead."""
        with self._changed:
            self.dead = True
            self._changed.notify_all()

    def adopt(self, epoch: int, owner: str) -> WorkerState:
        with self._changed:
            self._changed.wait_for(lambda: self.dead or not self.hangs)
        return self._state()

    def assign(self, epoch: int, assignments: Sequence[Assignment]) -> WorkerState:
        if self.refused_s is not None:
            self.refused_s.append(time.monotonic())
            raise RunError("no space is left")
        with self._changed:
            for one in assignments:
                self.has.insert(1 if one.ahead else len(self.has), one.batch_id)
            self.limits_s += [one.limit_s for one in assignments]
            self._changed.notify_all()
        return self._state()

    def collect(self, epoch: int, done: Sequence[BatchId], wait_s: float) -> Collected:
        with self._changed:
            self._done = [one for one in self._done if one.batch_id not in done]
            self._changed.wait_for(lambda: self.dead or self._done, wait_s)
            return Collected(self._state(), list(self._done))

    def prepare(self, epoch: int, models: Sequence[dict[str, object]]) -> None:
        """Note them."""
        self.prepared += models

    def forget(self, epoch: int, jobs: Sequence[str]) -> WorkerState:
        with self._changed:
            self.has = [one for one in self.has if one[0] not in jobs]
        return self._state()

    def drain(self, epoch: int) -> WorkerState:
        self.drains = True
        return self._state()

    def stop(self, epoch: int) -> None:
        if self.hangs:
            raise TimeLimitError("it hangs")
        self.die()

    def close(self) -> None:
        """Nothing: it is no connection."""

    def _state(self) -> WorkerState:
        if self.dead:
            raise Unreachable("it is dead")
        first = self.has[0] if self.has else None
        kept = [one.batch_id for one in self._done]
        return WorkerState(
            self.name, 1, first, self.has[1:], kept, [key_of(check(ECHO))], None, 0.0, 0.0, self.silent, self.drains
        )


class Workers(Pool):
    """Some of them, and for how long each was silent before the coordinator came."""

    def __init__(self, *names: str) -> None:
        self.silence_s: dict[str, float] = {}
        self.by_name = {name: Obedient(name) for name in names}

    def addresses(self) -> Mapping[str, str]:
        return {name: name for name in self.by_name}

    def silent_s(self, name: str) -> float:
        return self.silence_s.get(name, 0.0)

    def link(self, address: str) -> Link:
        return self.by_name[address]

    def kill(self, name: str, address: str) -> bool:
        self.by_name[name].die()
        return True

    def members(self) -> list[Member]:
        return []


@pytest.fixture
def workers() -> Workers:
    return Workers("w0", "w1")


@pytest.fixture
def leader(tmp_path: Path, workers: Workers) -> Iterator[Coordinator]:
    with closing(SqliteJournal(tmp_path / "journal.sqlite")) as journal, leads(journal, workers) as leading:
        yield leading


@contextmanager
def leads(
    journal: Journal, workers: Workers, *, lease_s: float = 60.0, keep_s: float | None = None
) -> Iterator[Coordinator]:
    """Lead with a clock that stands still, so that no batch is expected to end soon."""
    lease = journal.acquire("c0", "", lease_s)
    assert lease is not None
    leading = Coordinator(
        journal, lease, POLICIES.create("fair-share"), pool=workers, keep_s=keep_s, clock=lambda: NOW_S
    )
    thread = threading.Thread(target=leading.lead)
    thread.start()
    try:
        yield leading
    finally:
        leading.stop()
        thread.join()
        journal.release(lease.epoch)


@pytest.mark.parametrize("seconds", [0.5, 50.0], ids=["soon free", "long busy"])
def test_a_dead_workers_batch_goes_at_once_to_one_that_is_soon_free_and_else_to_the_first_that_is(
    leader: Coordinator, workers: Workers, seconds: float
) -> None:
    first, second = workers.by_name.values()
    operations.submit(leader, key="a", model=ECHO, queries=list(range(100)), batch_size=10)
    until(lambda: first.has and second.has)
    first.finish(seconds)  # now it is known how long a batch takes
    until(lambda: first.has == [("1", 2)])
    (lost,) = second.has
    second.die()
    if seconds > 1:
        until(lambda: leader.workers["w1"].state == "lost")
        assert first.has == [("1", 2)]  # it may be long, and another one may come
        first.finish(seconds)
        until(lambda: first.has)
        assert first.has == [lost]
    else:
        until(lambda: len(first.has) == 2)
        assert first.has == [("1", 2), lost]  # though no time has passed


def test_a_worker_that_hung_before_the_coordinator_came_is_not_waited_for_again(
    tmp_path: Path, workers: Workers
) -> None:
    first, second = workers.by_name.values()
    with closing(SqliteJournal(tmp_path / "journal.sqlite")) as journal:
        with leads(journal, workers) as leading:
            operations.submit(leading, key="a", model=ECHO, queries=list(range(20)), batch_size=10)
            until(lambda: first.has and second.has)
        second.hangs, workers.silence_s["w1"] = True, 1.4
        (lost,) = second.has
        with leads(journal, workers):
            first.finish(0.5)
            until(lambda: first.has)
            assert first.has == [lost]
            second.die()


def test_a_worker_gets_ready_once_for_each_model_that_it_has_not_loaded(leader: Coordinator, workers: Workers) -> None:
    first, second = workers.by_name.values()
    others = [check({**ECHO, "options": {"name": name}}) for name in "ab"]
    for number, table in enumerate([ECHO, *others, ECHO, *others]):
        operations.submit(leader, key=str(number), model=table, queries=list(range(10)), batch_size=10)
        until(lambda: first.has or second.has)
        (first if first.has else second).finish(0.5)
        until(lambda: not leader.call(leader.scheduler.waiting_models) and not first.has and not second.has)
    until(lambda: len(first.prepared) == len(second.prepared) == 2)
    assert first.prepared == second.prepared == others


def test_a_new_job_is_served_before_the_batches_that_no_worker_has_begun(leader: Coordinator, workers: Workers) -> None:
    first, second = workers.by_name.values()
    operations.submit(leader, key="a", model=ECHO, queries=list(range(500)), batch_size=10)
    until(lambda: first.has and second.has)
    first.finish(0.05)  # a batch is short: each worker gets its next one ahead of time
    until(lambda: len(first.has) == len(second.has) == 2)
    operations.submit(leader, key="b", model=ECHO, queries=list(range(10)), batch_size=10)
    until(lambda: [worker.has[1][0] for worker in (first, second) if len(worker.has) == 3] == ["2"])
    served = first if len(first.has) == 3 else second
    present, new, queued = served.has
    assert list(leader.workers[served.name].batches) == [present, new, queued]
    served.finish(0.05)
    until(lambda: list(leader.workers[served.name].batches)[:2] == [new, queued])


def test_workers_get_ready_for_a_model_while_its_queries_arrive(leader: Coordinator, workers: Workers) -> None:
    other = check({**ECHO, "options": {"name": "a"}})
    until(lambda: [handle.state for handle in leader.workers.values()] == ["free", "free"])
    assert operations.begin(leader, key="a", model=other) == (None, 0)
    until(lambda: all(worker.prepared == [other] for worker in workers.by_name.values()))


def test_a_batch_that_fails_is_split_and_what_computes_for_a_cancelled_job_is_dropped(
    tmp_path: Path, workers: Workers
) -> None:
    first, second = workers.by_name.values()
    with closing(SqliteJournal(tmp_path / "journal.sqlite")) as journal:
        with leads(journal, workers) as leading:
            operations.submit(leading, key="a", model=ECHO, queries=list(range(20)), batch_size=10, batch_timeout_s=7)
            until(lambda: first.has and second.has)
            assert first.limits_s == second.limits_s == [7.0]
            number = first.has[0][1]
            first.fail()
            until(lambda: first.has == [("1", 2)])
            (failed,) = [record for record in journal.records() if isinstance(record, Failed)]
            assert (failed.batch, failed.worker, failed.parts) == (number, "w0", [2, 3])
            operations.cancel(leading, "1")
            until(lambda: not first.has and not second.has)
            second.has = [("1", 1)]  # as if the message were lost
        with leads(journal, workers):
            until(lambda: ("1", 1) not in second.has)


def test_a_drained_worker_finishes_its_batches_and_gets_no_more_also_from_the_next_coordinator(
    tmp_path: Path, workers: Workers
) -> None:
    first, second = workers.by_name.values()
    with closing(SqliteJournal(tmp_path / "journal.sqlite")) as journal:
        with leads(journal, workers) as leading:
            operations.submit(leading, key="a", model=ECHO, queries=list(range(50)), batch_size=10)
            until(lambda: first.has and second.has)
            assert operations.drain(leading, "w1") == "draining"
            until(lambda: second.drains)
            second.finish(50.0)
            until(lambda: leading.workers["w1"].state == "drained")
            first.finish(50.0)
            until(lambda: first.has)
            with pytest.raises(ConfigurationError, match="no worker 'w9'; the workers: w0, w1"):
                operations.drain(leading, "w9")
        with leads(journal, workers) as leading:
            until(lambda: "w1" in leading.workers and leading.workers["w1"].state == "drained")
            first.finish(50.0)
            until(lambda: first.has)
            assert not second.has


def test_a_worker_whose_computing_process_is_stopped_counts_as_hung_until_it_continues(
    leader: Coordinator, workers: Workers
) -> None:
    first, second = workers.by_name.values()
    operations.submit(leader, key="a", model=ECHO, queries=list(range(20)), batch_size=10)
    until(lambda: first.has and second.has)
    (lost,) = second.has
    second.silent = True
    until(lambda: leader.workers["w1"].state == "hung")
    first.finish(0.5)
    until(lambda: first.has == [lost])
    second.silent = False
    until(lambda: leader.workers["w1"].state == "busy")
    second.finish(0.5)  # it is first after all
    until(lambda: leader.call(lambda: leader.scheduler.jobs["1"].ended))
    until(lambda: leader.workers["w1"].state == "free")


class Slow(Obedient):
    """One that takes no batch before the test opens the gate."""

    def __init__(self) -> None:
        super().__init__("w0")
        self.asked, self.gate = threading.Event(), threading.Event()

    def assign(self, epoch: int, assignments: Sequence[Assignment]) -> WorkerState:
        self.asked.set()
        assert self.gate.wait(60)
        return super().assign(epoch, assignments)


def test_batches_that_were_returned_while_a_worker_was_silent_are_not_sent_to_it() -> None:
    link = Slow()
    handle = WorkerHandle(
        "w0", "w0", epoch=1, owner="c0", host="", link=lambda _: link, post=lambda *_: None,
        assignment=lambda one: Assignment(*one, ECHO, [], 1.0, 1), kill=lambda: False,
    )  # fmt: skip
    first, second, third = (("1", number) for number in range(3))
    handle.batches = dict.fromkeys((first, second), NOW_S)
    handle.send(first)
    handle.send(second)
    assert link.asked.wait(60)
    handle.batches.clear()  # as when the worker hangs
    handle.batches[third] = NOW_S
    handle.send(third)
    link.gate.set()
    until(lambda: third in link.has)
    handle.close()
    assert link.has == [first, third]


def test_a_worker_that_refuses_batches_is_sent_fewer_and_fewer(leader: Coordinator, workers: Workers) -> None:
    first, second = workers.by_name.values()
    first.refused_s, second.refused_s = refused_s = [], []
    operations.submit(leader, key="a", model=ECHO, queries=list(range(20)), batch_size=10)
    until(lambda: min(map(len, refused_s)) >= 3)
    for times_s in refused_s:
        assert times_s[1] - times_s[0] >= 0.1
        assert times_s[2] - times_s[1] >= 0.2
    first.refused_s = second.refused_s = None
    until(lambda: first.has and second.has)
    assert len(list(leader.journal.records())) < 40


@pytest.mark.parametrize("hangs", [False, True])
def test_the_batches_of_a_worker_that_is_restarted_go_to_others_and_are_not_blamed(
    leader: Coordinator, workers: Workers, hangs: bool
) -> None:
    first, second = workers.by_name.values()
    operations.submit(leader, key="a", model=ECHO, queries=list(range(20)), batch_size=10)
    until(lambda: first.has and second.has)
    (lost,) = second.has
    second.hangs = hangs
    assert operations.restart(leader, "w1") == "restarting"
    until(lambda: second.dead)
    first.finish(0.5)
    until(lambda: first.has == [lost])
    assert leader.call(lambda: leader.scheduler.jobs["1"].blamed) == {}


class LongJournal(SqliteJournal):
    """One that takes long to read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.read = threading.Event()

    def records(self) -> Iterator[Record]:
        self.read.wait(60)
        return super().records()


def test_who_reads_a_long_journal_keeps_its_lease_meanwhile(tmp_path: Path, workers: Workers) -> None:
    path = tmp_path / "journal.sqlite"
    with (
        closing(LongJournal(path)) as journal,
        closing(SqliteJournal(path)) as other,
        leads(journal, workers, lease_s=LEASE_S) as leading,
    ):
        until_s = time.monotonic() + 2 * LEASE_S
        while time.monotonic() < until_s:
            assert other.acquire("c1", "", LEASE_S) is None
        journal.read.set()
        assert leading.call(lambda: leading.scheduler.jobs) == {}


def test_jobs_that_ended_long_ago_are_forgotten_and_their_numbers_do_not_come_again(
    tmp_path: Path, workers: Workers
) -> None:
    def submitted(leading: Coordinator) -> str:
        job = operations.submit(leading, key=secrets.token_hex(4), model=ECHO, queries=list(range(10)), batch_size=10)
        worker = until(lambda: next((one for one in workers.by_name.values() if one.has), None))
        worker.finish(0.5)
        until(lambda: leading.call(lambda: job not in leading.scheduler.jobs or leading.scheduler.jobs[job].ended))
        return job

    with closing(SqliteJournal(tmp_path / "journal.sqlite")) as journal:
        with leads(journal, workers) as leading:
            assert [submitted(leading), submitted(leading)] == ["1", "2"]
            assert leading.call(lambda: list(leading.scheduler.jobs)) == ["1", "2"]  # without an order to forget
        lease = journal.acquire("c1", "", 60.0)
        assert lease is not None
        journal.append(lease.epoch, [Dropped("1", 0.0)])  # its coordinator has come no further
        journal.release(lease.epoch)
        with leads(journal, workers, keep_s=0.0) as leading:
            until(lambda: {record.job for record in journal.records()} == {"2"})
            assert submitted(leading) == "3"
            until(lambda: {record.job for record in journal.records()} == {"3"})
            with pytest.raises(ConfigurationError, match="no job '2'"):
                operations.change(leading, "2", weight=2.0)


@pytest.mark.long
def test_a_submission_of_any_size_leaves_the_lease_its_turns(tmp_path: Path, workers: Workers) -> None:
    path, image = tmp_path / "journal.sqlite", secrets.token_bytes(1 << 20)
    with (
        closing(SqliteJournal(path)) as journal,
        closing(SqliteJournal(path)) as other,
        leads(journal, workers, lease_s=LEASE_S) as leading,
        ThreadPoolExecutor(1) as client,
    ):
        job = client.submit(operations.submit, leading, key="a", model=ECHO, queries=[image] * 200)
        while not job.done():
            assert other.acquire("c1", "", LEASE_S) is None
        assert job.result() == "1"
        assert journal.queries("1", 199, 1) == [image]


def test_of_a_submission_that_fails_or_whose_coordinator_dies_nothing_is_left(tmp_path: Path, workers: Workers) -> None:
    with closing(SqliteJournal(tmp_path / "journal.sqlite")) as journal:
        with leads(journal, workers) as leading:
            with pytest.raises(ConfigurationError, match="cannot travel"):
                operations.submit(leading, key="a", model=ECHO, queries=["fine", object()])
            until(lambda: journal.jobs_with_queries() == set())
            leading.store_queries(
                leading.call(leading.new_number), 0, wire.pack(["of a job that is not accepted any more"])
            )
            assert journal.jobs_with_queries() == {"2"}
        with leads(journal, workers) as leading:
            assert operations.submit(leading, key="a", model=ECHO, queries=["fine"]) == "3"
            until(lambda: journal.jobs_with_queries() == {"3"})


def test_a_request_that_comes_twice_at_once_is_one_job(leader: Coordinator) -> None:
    with ThreadPoolExecutor(4) as clients:
        sent = [
            clients.submit(operations.submit, leader, key="a", model=ECHO, queries=list(range(5000))) for _ in range(4)
        ]
        (job,) = {one.result() for one in sent}
    until(lambda: leader.journal.jobs_with_queries() == {job})
    assert leader.journal.queries(job, 4999, 1) == [4999]


def test_an_acceptance_whose_answer_came_too_late_is_not_repeated(
    leader: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, accept = leader.call, leader.submissions.accept

    def late(function: Callable[[], Any]) -> Any:
        call(function)
        raise NotCoordinator("the answer took too long")

    def accepted_twice(key: str, *arguments: Any) -> str:
        with monkeypatch.context() as slow:
            slow.setattr(leader, "call", late)
            with pytest.raises(NotCoordinator):
                accept(key, *arguments)
        return accept(key, *arguments)

    monkeypatch.setattr(leader.submissions, "accept", accepted_twice)
    job = operations.submit(leader, key="a", model=ECHO, queries=["fine"])
    accepted = [each for each in leader.journal.records() if type(each).__name__ == "Accepted"]
    assert [each.job for each in accepted] == [job]


@given(st.lists(st.integers(0, 3 * MAX_CHUNK_BYTES // 2).map(lambda size: size >> 4 * (size % 4)), max_size=30))
@settings(max_examples=30, deadline=None)
def test_pieces_hold_all_queries_and_no_more_than_fits(sizes: list[int]) -> None:
    found = 0
    for first, count, body in packed_chunks([bytes(size) for size in sizes]):
        packed = [len(query) for query in wire.unpack(body)]
        assert (first, count, packed) == (found, len(packed), sizes[found : found + len(packed)])
        assert len(packed) == 1 or len(body) <= MAX_CHUNK_BYTES
        found += len(packed)
    assert found == len(sizes)


def test_a_job_whose_file_cannot_be_read_any_more_has_failed_and_names_it(tmp_path: Path) -> None:
    (tmp_path / "0.txt").write_text("a\n" * 40)
    found = queries(str(tmp_path / "0.txt"))
    assert len(list(found)) == 40
    assert found.files is not None
    with closing(SqliteJournal(tmp_path / "journal.sqlite")) as journal:
        with leads(journal, Workers()) as leader:
            operations.begin(leader, key="key", model=ECHO)
            job = leader.submissions.accept("key", 40, found.files(), [(0, 80)])
        (tmp_path / "0.txt").write_text("b\n" * 50)
        with leads(journal, Workers("w0")) as leader:
            until(lambda: leader.scheduler.jobs[job].ended if job in leader.scheduler.jobs else "")
            row = views.job_row(leader.scheduler.job(job))
    why = f"{tmp_path / '0.txt'} has changed since the job was submitted"
    assert (row["state"], row["error"]) == ("failed", why)
    assert outcome(row) == f"job {job} is failed: 0 of 40 queries: {why}"
