"""Tests of the interface `Journal`. The test class of a journal inherits from `JournalKit` and opens the journal."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chimera.core.errors import DataError
from chimera.engines.http import wire
from chimera.inference.journal.journal import Fenced, Journal, Lease, Output
from chimera.inference.journal.records import Accepted, Cancelled, Committed, Dropped, InputFile, Poisoned, Record

LIMIT_S = 30.0
LONG_S = 60.0  # a lease that ends in no test

INHERITED = [HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]
"""What hypothesis need not warn about: more than one class inherits each test, and each example makes its own journal."""

_RACER = """
import sys
from pathlib import Path
from chimera.inference.journal.records import Cancelled

name, count, marker = sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
won = 0
while won < count:
    lease = journal.acquire(name, "", 60.0)
    if lease is None:
        continue
    marker.touch(exist_ok=False)  # raises if there is another owner
    journal.append(lease.epoch, [Cancelled(name, str(lease.epoch), 0.0)])
    marker.unlink()
    journal.release(lease.epoch)
    won += 1
"""

_WRITER = """
import sys
from chimera.inference.journal.journal import Output
from chimera.inference.journal.records import Committed

while (lease := journal.acquire("writer", "", 60.0)) is None:
    pass
number = int(sys.argv[2])
while True:
    body = bytes([number % 256]) * 5000
    journal.append(lease.epoch, [Committed("1", number, "w0", 0.1, 0, 0.0)], outputs=[Output("1", number, number, 1, body)])
    print(number, flush=True)
    number += 1
"""

_OWNER = """
import sys
from chimera.inference.journal.journal import Fenced
from chimera.inference.journal.records import Cancelled

lease = journal.acquire("old", "", 0.3)
print(lease.epoch, flush=True)
sys.stdin.readline()
for write in (
    lambda: journal.append(lease.epoch, [Cancelled("1", "stale", 0.0)]), lambda: journal.renew(lease.epoch, 60.0),
):
    try:
        write()
    except Fenced as error:
        print("fenced", flush=True)
    else:
        print("written", flush=True)
"""

TEXTS = st.text(max_size=8)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXTS,
    int: st.integers(0, 1 << 40),
    float: st.floats(0, 1e10),
    bool: st.booleans(),
    dict[str, Any]: st.dictionaries(TEXTS, TEXTS | st.integers(0, 9) | st.none(), max_size=3),
}


def values(annotation: Any) -> st.SearchStrategy[Any]:
    """Return values of a field of a record, which may be None where its type says so."""
    if annotation is Accepted or annotation is InputFile:
        return made(annotation)
    if get_origin(annotation) in (list, tuple):
        parts = [values(part) for part in get_args(annotation)]
        return st.tuples(*parts) if get_origin(annotation) is tuple else st.lists(*parts, max_size=2)
    if annotation in VALUES:
        return VALUES[annotation]
    if get_origin(annotation) is list:
        return st.lists(values(*get_args(annotation)), max_size=3)
    return st.one_of([st.none() if part is type(None) else VALUES[part] for part in get_args(annotation)])


def made(kind: type[Record]) -> st.SearchStrategy[Record]:
    """Return records of a kind."""
    return st.builds(kind, **{name: values(hint) for name, hint in get_type_hints(kind).items() if "__" not in name})


RECORDS: st.SearchStrategy[Record] = st.one_of([made(kind) for kind in get_args(Record)])


class JournalKit(ABC):
    """The tests."""

    @abstractmethod
    def opened(self, place: Path) -> Journal:
        """Return the journal at a place; the same one for the same place."""

    @abstractmethod
    def source(self) -> str:
        """Return Python that makes ``journal`` of the place ``sys.argv[1]``."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> Path:
        return tmp_path / "cluster"

    @pytest.fixture
    def journal(self, place: Path) -> Iterator[Journal]:
        journal = self.opened(place)
        yield journal
        journal.close()

    @contextmanager
    def running(self, program: str, place: Path, *args: object) -> Iterator[subprocess.Popen[str]]:
        command = [sys.executable, "-c", f"{self.source()}\n{program}", str(place), *map(str, args)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def test_one_owner_at_a_time_and_a_new_epoch_for_each(self, journal: Journal, place: Path) -> None:
        assert known_lease(journal) is None
        first = journal.acquire("c0", "http://127.0.0.1:1", LONG_S)
        assert first == Lease("c0", 1, "http://127.0.0.1:1", LONG_S)
        other = self.opened(place)
        try:
            assert other.acquire("c1", "http://127.0.0.1:2", LONG_S) is None
            seen = last_lease(other)
            assert (seen.owner, seen.epoch, seen.address) == ("c0", 1, "http://127.0.0.1:1")
            assert 0 < seen.left_s <= LONG_S
            journal.release(1)
            second = other.acquire("c1", "http://127.0.0.1:2", LONG_S)
            assert second is not None
            assert second.epoch > 1
            journal.release(1)  # by one who has been replaced: nothing
            assert journal.acquire("c0", "", LONG_S) is None
        finally:
            other.close()

    def test_a_lease_ends_unless_it_is_renewed(self, journal: Journal) -> None:
        first = acquired(journal, "c0", 0.2)
        journal.renew(first.epoch, LONG_S)
        assert journal.acquire("c1", "", LONG_S) is None
        journal.renew(first.epoch, 0.05)
        began_s = time.monotonic()
        second = acquired(journal, "c1", LONG_S)
        assert time.monotonic() - began_s >= 0.04
        assert second.epoch > first.epoch
        with pytest.raises(Fenced, match="c1"):
            journal.renew(first.epoch, LONG_S)
        left = last_lease(journal)
        assert (left.owner, left.epoch) == ("c1", second.epoch)

    def test_a_lease_that_is_over_may_be_renewed_while_nobody_has_taken_over(self, journal: Journal) -> None:
        first = acquired(journal, "c0", 0.01)
        wait_until(lambda: last_lease(journal).left_s <= 0)
        journal.append(first.epoch, [Cancelled("1", "", 0.0)])
        journal.renew(first.epoch, LONG_S)
        assert journal.acquire("c1", "", LONG_S) is None

    def test_nothing_of_a_stale_owners_write_is_kept(self, journal: Journal) -> None:
        old = acquired(journal, "c0", 0.01)
        journal.append(old.epoch, [Cancelled("1", "kept", 0.0)])
        new = acquired(journal, "c1", LONG_S)
        output, queries = Output("1", 0, 0, 1, b"x"), ("1", 0, wire.pack(["q"]))
        for epoch in (old.epoch, 0, new.epoch + 1):
            with pytest.raises(Fenced):
                journal.append(epoch, [Cancelled("1", "stale", 0.0)], outputs=[output], inputs=[queries])
        assert [*journal.records()] == [Cancelled("1", "kept", 0.0)]
        assert [*journal.outputs("1")] == []
        journal.append(new.epoch, [], outputs=[output], inputs=[queries])
        assert journal.queries("1", 0, 1) == ["q"]

    @settings(max_examples=10, suppress_health_check=INHERITED)
    @given(st.lists(st.lists(RECORDS, max_size=9), max_size=3))
    def test_records_come_back_as_they_were_and_in_order(
        self, tmp_path_factory: pytest.TempPathFactory, writes: list[list[Record]]
    ) -> None:
        place = tmp_path_factory.mktemp("journal") / "cluster"
        journal = self.opened(place)
        epoch = acquired(journal, "c0", LONG_S).epoch
        for write in writes:
            journal.append(epoch, write)
        journal.close()
        again = self.opened(place)
        assert [*again.records()] == [record for write in writes for record in write]
        again.close()

    def test_the_first_results_of_a_batch_are_those_that_stay(self, journal: Journal) -> None:
        epoch = acquired(journal, "c0", LONG_S).epoch
        late, early = Output("1", 7, 3, 2, b"late"), Output("1", 2, 0, 3, b"early")
        journal.append(epoch, [], outputs=[late, Output("2", 7, 0, 9, b"of another job")])
        journal.append(epoch, [], outputs=[Output("1", 7, 3, 2, b"again"), early, Output("1", 2, 0, 3, b"twice")])
        assert [*journal.outputs("1")] == [early, late]  # in the order of the queries
        assert [*journal.outputs("1", 2)] == [early, late]
        assert [*journal.outputs("1", 3)] == [*journal.outputs("1", 4)] == [late]
        assert [*journal.outputs("1", 5)] == [*journal.outputs("3")] == []

    def test_a_dropped_job_leaves_nothing_and_all_others_stay(self, journal: Journal) -> None:
        epoch = acquired(journal, "c0", LONG_S).epoch
        number = 700
        accepted = {job: Accepted(job, job, job, {}, number, 1.0, 1, 0, 0.0) for job in "123"}
        for job in "123":
            happened = [Committed(job, batch, "w0", 0.1, 0, 0.0) for batch in range(number)]
            outputs = [Output(job, batch, batch, 1, job.encode()) for batch in range(number)]
            journal.append(
                epoch, [accepted[job], *happened], outputs=outputs, inputs=[(job, 0, wire.pack([job] * number))]
            )
        journal.append(epoch, [Dropped("1", 1.0), Dropped("3", 1.0)])
        for pieces in (1, 3, 20, 30, None):  # the process may die in between
            for _ in itertools.islice(journal.drop(epoch, ["1", "3"]), pieces):
                read = list(journal.records())
                left = [record for record in read if record.job == "1"]
                assert left == [] or (left[0], left[-1]) == (accepted["1"], Dropped("1", 1.0))
                assert sum(record.job == "2" for record in read) == number + 1
        assert {record.job for record in journal.records()} == {"2"}
        assert [[*journal.outputs(job)] for job in "13"] == [[], []]
        assert len(list(journal.outputs("2"))) == number
        assert journal.queries("2", number - 1, 1) == ["2"]
        with pytest.raises(DataError, match="no queries"):
            journal.queries("1", 0, 1)
        with pytest.raises(Fenced):
            list(journal.drop(epoch - 1, ["2"]))
        assert len(list(journal.records())) == number + 1

    @settings(max_examples=12, suppress_health_check=INHERITED)
    @given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.data())
    def test_queries_come_from_chunks_of_any_size(
        self, tmp_path_factory: pytest.TempPathFactory, sizes: list[int], data: st.DataObject
    ) -> None:
        journal = self.opened(tmp_path_factory.mktemp("journal") / "cluster")
        epoch = acquired(journal, "c0", LONG_S).epoch
        queries: list[Any] = [f"query {i}" for i in range(sum(sizes))]
        ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
        chunks = [(end - size, wire.pack(queries[end - size : end])) for size, end in zip(sizes, ends, strict=True)]
        journal.append(epoch, [], inputs=[("1", first, body) for first, body in chunks])
        first = data.draw(st.integers(0, len(queries) - 1))
        count = data.draw(st.integers(1, len(queries) - first))
        assert journal.queries("1", first, count) == queries[first : first + count]
        assert journal.jobs_with_queries() == {"1"}
        journal.close()

    def test_threads_may_write_and_read_at_once(self, journal: Journal) -> None:
        epoch = acquired(journal, "c0", LONG_S).epoch
        failures: list[BaseException] = []

        def write(job: str) -> None:
            try:
                for number in range(10):
                    journal.append(
                        epoch, [Poisoned(job, number, "", 0.0)], outputs=[Output(job, number, number, 1, b"")]
                    )
                    assert len([*journal.outputs(job)]) == number + 1
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=write, args=(str(i),)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
        assert failures == []
        found = [record for record in journal.records() if isinstance(record, Poisoned)]
        for job in "0123":
            assert [one.batch for one in found if one.job == job] == list(range(10))

    def test_of_two_processes_that_race_only_one_is_the_owner(self, journal: Journal, place: Path) -> None:
        marker, count = place.with_name("owner"), 100
        with self.running(_RACER, place, "a", count, marker) as a, self.running(_RACER, place, "b", count, marker) as b:
            for process in (a, b):
                _, written = process.communicate(timeout=LIMIT_S)
                assert (process.returncode, written) == (0, "")
        won = [record for record in journal.records() if isinstance(record, Cancelled)]
        assert sorted(one.job for one in won) == ["a"] * count + ["b"] * count
        epochs = [int(one.why) for one in won]
        assert epochs == list(range(1, 2 * count + 1))

    @pytest.mark.parametrize("rounds", [2, pytest.param(25, marks=pytest.mark.long)])
    def test_what_was_acknowledged_outlives_a_killed_writer_and_nothing_is_half(
        self, journal: Journal, place: Path, rounds: int
    ) -> None:
        chance = random.Random(rounds)
        acknowledged = -1
        for _ in range(rounds):
            with self.running(_WRITER, place, acknowledged + 1) as writer:
                stream = stdout(writer)
                for _ in range(chance.randint(1, 20)):
                    acknowledged = int(stream.readline())
                threading.Event().wait(chance.uniform(0, 0.02))  # somewhere inside of its next writes
                writer.kill()
                acknowledged = max([acknowledged, *(int(line) for line in stream.read().splitlines())])
            before = [(one.batch, one.body) for one in journal.outputs("1")]
            journal.release(last_lease(journal).epoch)
            # The last write may still be on its way. Like every coordinator, the next one takes the lease, and then reads.
            epoch = acquired(journal, "successor", LONG_S).epoch
            found = [record.batch for record in journal.records() if isinstance(record, Committed)]
            outputs = [(one.batch, one.body) for one in journal.outputs("1")]
            assert found == list(range(len(found)))
            assert acknowledged + 1 <= len(found) <= acknowledged + 2
            assert outputs == [(number, bytes([number % 256]) * 5000) for number in found]
            assert before == outputs[: len(before)]
            journal.release(epoch)
            acknowledged = len(found) - 1

    def test_an_owner_that_slept_too_long_is_fenced(self, journal: Journal, place: Path) -> None:
        with self.running(_OWNER, place) as old:
            epoch = int(stdout(old).readline())
            os.kill(old.pid, signal.SIGSTOP)
            lease = acquired(journal, "new", LONG_S)
            assert lease.epoch > epoch
            os.kill(old.pid, signal.SIGCONT)
            written, errors = old.communicate("\n", timeout=LIMIT_S)
            assert (written.split(), errors) == (["fenced", "fenced"], "")
        assert [*journal.records()] == []
        journal.append(lease.epoch, [Cancelled("1", "", 0.0)])


def acquired(journal: Journal, owner: str, lease_s: float) -> Lease:
    """Return a lease, once the last one is over."""
    leases: list[Lease | None] = []
    wait_until(lambda: (leases.append(journal.acquire(owner, "", lease_s)), leases[-1])[1] is not None)
    (*_, lease) = leases
    assert lease is not None
    return lease


def known_lease(journal: Journal) -> Lease | None:
    """Return the last lease, if there is one, once the journal can be read."""
    leases: list[Lease | None] = []

    def read() -> bool:
        with suppress(Fenced):  # a process that has just joined may not have found the voters yet
            leases.append(journal.lease())
        return bool(leases)

    wait_until(read)
    return leases[0]


def last_lease(journal: Journal) -> Lease:
    """Return the last lease, once the journal can be read."""
    lease = known_lease(journal)
    assert lease is not None
    return lease


def committed_once(records: Iterable[Record]) -> None:
    """Hold that no batch was committed twice."""
    committed = [(record.job, record.batch) for record in records if isinstance(record, Committed)]
    assert len(committed) == len(set(committed))


def wait_until(true: Any, what: str = "it did not happen") -> None:
    """Return once it is true; fail after `LIMIT_S`."""
    deadline_s = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < deadline_s, what
        threading.Event().wait(0.01)


def stdout(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout
