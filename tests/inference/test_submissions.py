"""Submissions in pieces: each request may be repeated, a successor continues them, and batches are bounded in bytes."""

from __future__ import annotations

import os
import random
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from chimera.cli.main import app
from chimera.core.errors import ConfigurationError, ConflictError, DataError, UnavailableError
from chimera.engines.http import wire
from chimera.inference.api import operations, serving, views
from chimera.inference.coordinator.coordinator import Coordinator
from chimera.inference.coordinator.file_queries import FileQueries
from chimera.inference.coordinator.job_store import MAX_BATCH_BYTES, JournalStore
from chimera.inference.coordinator.submissions import MAX_OPEN
from chimera.inference.inputs import queries
from chimera.inference.journal.records import Accepted, Cancelled, InputFile
from chimera.inference.journal.sqlite import SqliteJournal
from chimera.inference.membership import Members
from chimera.inference.pieces import MAX_CHUNK_BYTES, packed_chunks, pieces
from chimera.inference.policies.policy import POLICIES
from chimera.inference.pool.http import HttpPool
from chimera.inference.scheduling.job import Batch, Job
from inference import model
from inference.running import RunningCluster, cluster, signalled, until

ECHO: dict[str, Any] = {"kind": "factory", "factory": f"{Path(model.__file__).resolve()}:Echo", "options": {}}
QUERIES = [f"query {number}" for number in range(2500)]


@contextmanager
def leads(journal: SqliteJournal) -> Iterator[Coordinator]:
    """Run a coordinator without workers."""
    lease = journal.acquire("c0", "", 60.0)
    assert lease is not None
    pool = HttpPool(Members(journal._path.parent / "members"), "token")
    leading = Coordinator(journal, lease, POLICIES.create("fair-share"), pool=pool)
    thread = threading.Thread(target=leading.lead)
    thread.start()
    try:
        yield leading
    finally:
        leading.stop()
        thread.join()
        journal.release(lease.epoch)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[SqliteJournal]:
    with closing(SqliteJournal(tmp_path / "journal.sqlite")) as opened:
        yield opened


def begun(leading: Coordinator, key: str = "a", **options: Any) -> tuple[str | None, int]:
    return operations.begin(leading, key=key, model=ECHO, **options)


def test_each_request_of_a_submission_may_be_repeated_also_at_a_successor(journal: SqliteJournal) -> None:
    with leads(journal) as first:
        assert begun(first, name="long") == begun(first, name="long") == (None, 0)
        assert first.submissions.put("a", 0, QUERIES[:1000]) == 1000
        assert first.submissions.put("a", 500, QUERIES[500:1500]) == 1500
        assert first.submissions.put("a", 0, QUERIES[:1000]) == 1500
        with pytest.raises(DataError, match="the next query is number 1500, not 1600"):
            first.submissions.put("a", 1600, QUERIES[1600:])
        with pytest.raises(DataError, match="1500 queries of 2500 have arrived"):
            first.submissions.accept("a", 2500)
        assert first.call(lambda: first.scheduler.jobs) == {}
    with leads(journal) as second:
        assert begun(second, name="long") == (None, 1500)
        assert second.submissions.put("a", 1000, QUERIES[1000:]) == 2500
        assert [second.submissions.accept("a", 2500) for _ in range(2)] == ["1", "1"]
        assert begun(second, name="long") == ("1", 2500)
        assert second.submissions.put("a", 0, QUERIES[:9]) == 9  # a late repetition changes nothing
        assert operations.submit(second, key="a", model=ECHO, queries=QUERIES, name="long") == "1"
        (job,) = second.call(lambda: list(second.scheduler.jobs.values()))
        assert (job.accepted.name, job.queries) == ("long", 2500)
        assert journal.queries("1", 0, 2500) == QUERIES
        assert second.call(lambda: second.scheduler.submissions) == {}
    with leads(journal) as third:
        assert third.call(lambda: list(third.scheduler.jobs)) == ["1"]


def test_a_key_belongs_to_one_job_with_its_options_and_number_of_queries(journal: SqliteJournal) -> None:
    with leads(journal) as leading:
        for _ in range(2):
            assert operations.submit(leading, key="a", model=ECHO, queries=QUERIES) == "1"
        with pytest.raises(ConflictError, match="another model or other options"):
            operations.submit(leading, key="a", model=ECHO, queries=QUERIES, weight=2.0)
        with pytest.raises(ConflictError, match="another model or other options"):
            begun(leading, name="other")
        with pytest.raises(ConflictError, match="the key 'a' is that of job 1, which has 2500 queries, not 2499"):
            operations.submit(leading, key="a", model=ECHO, queries=QUERIES[1:])
        for key in ("", "..", "a/b", "a b", "a" * 101):
            with pytest.raises(ConfigurationError, match="the key of a submission has 1 to 100 letters"):
                begun(leading, key=key)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("batch_size", 10**23), ("max_workers", 10**23), ("weight", 1e308), ("weight", 1e-300), ("batch_timeout_s", 1e300),
        ("name", ""), ("name", "a" * 101), ("name", "../x"), ("name", "\x1b[31mred"), ("name", ".."),
    ],
)  # fmt: skip
def test_an_option_beyond_its_bounds_is_refused(option: str, value: Any, journal: SqliteJournal) -> None:
    with leads(journal) as leading:
        with pytest.raises(
            ConfigurationError, match="a name has 1 to 100" if option == "name" else f"{option} must be"
        ):
            begun(leading, **{option: value})
        assert not list(journal.records())


def test_a_value_that_json_cannot_contain_is_no_option_of_a_model(journal: SqliteJournal) -> None:
    table = {**ECHO, "options": {"name": 10**23}}
    with leads(journal) as leading:
        with pytest.raises(ConfigurationError, match="a value that JSON cannot contain"):
            operations.begin(leading, key="a", model=table)
        with pytest.raises(ConfigurationError, match="a value that JSON cannot contain"):
            serving.serve(leading, name="a", model=table)


def test_jobs_of_an_earlier_version_with_huge_options_are_still_listed() -> None:
    accepted = Accepted("1", "a", "1", ECHO, 1, 1.0, 10**23, 10**23, 0.0)
    row = orjson.loads(orjson.dumps(views.job_row(Job(accepted, 0, 0.0, 1.0, 10**23, 10**23))))
    assert row["batch_size"] == row["max_workers"] == (1 << 53) - 1


def test_a_discarded_submission_leaves_nothing_and_the_number_of_open_ones_is_bounded(journal: SqliteJournal) -> None:
    with leads(journal) as leading:
        begun(leading)
        leading.submissions.put("a", 0, QUERIES)
        with pytest.raises(ConflictError, match="another model or other options"):
            begun(leading, weight=2.0)
        with pytest.raises(DataError, match="at least one query"):
            leading.submissions.accept("a", 0)
        for _ in range(2):
            leading.submissions.discard("a")
        until(lambda: not journal.jobs_with_queries() and not list(journal.records()))
        with pytest.raises(DataError, match="no submission with the key 'a'"):
            leading.submissions.put("a", 0, QUERIES)
        for number in range(MAX_OPEN):
            begun(leading, key=str(number))
        with pytest.raises(ConflictError, match=f"{MAX_OPEN} submissions"):
            begun(leading, key="one-more")


def test_pieces_are_bounded_and_have_all_queries() -> None:
    sizes = [10, 2 * MAX_CHUNK_BYTES, *[MAX_CHUNK_BYTES // 3] * 7, *[1] * 2500]
    found: list[bytes] = []
    for first, piece, size in pieces(map(bytes, sizes)):
        assert first == len(found)
        assert size == sum(map(len, piece))
        assert len(piece) == 1 or (size <= MAX_CHUNK_BYTES and len(piece) <= 1000)
        found += piece
    assert [len(query) for query in found] == sizes


def test_small_queries_need_one_write_for_a_piece() -> None:
    found = [(first, count) for first, count, _ in packed_chunks(list(range(2500)))]
    assert found == [(0, 1000), (1000, 1000), (2000, 500)]


def test_a_batch_has_a_bounded_size_or_one_query(journal: SqliteJournal) -> None:
    sizes = [MAX_BATCH_BYTES + 1, 10, *[MAX_CHUNK_BYTES // 4] * 50, MAX_BATCH_BYTES - 5, MAX_BATCH_BYTES, 7, 7]
    chunks = list(packed_chunks([bytes(size) for size in sizes]))
    lease = journal.acquire("c0", "", 60.0)
    assert lease is not None
    journal.append(lease.epoch, [], inputs=[("1", first, body) for first, _, body in chunks])
    store = JournalStore(Accepted("1", "a", "", {}, len(sizes), 1.0, 0, 0, 0.0), journal, [])
    for first in range(len(sizes)):
        for count in {1, 2, 30, len(sizes) - first}:
            fits = store.fitting(Batch(0, first, min(count, len(sizes) - first)))
            assert 1 <= fits <= count
            assert fits == 1 or sum(sizes[first : first + fits]) <= MAX_BATCH_BYTES
    assert store.fitting(Batch(0, 2, 50)) > 20  # and is not much smaller than that
    assert store.fitting(Batch(0, 1, 1)) == 1


def written(folder: Path, *counts: int) -> tuple[list[InputFile], list[str]]:
    """Write files with numbered lines; return them, and all lines."""
    lines = [f"line {number} {'x' * (number % 50)}" for number in range(sum(counts))]
    at = 0
    for number, count in enumerate(counts):
        (folder / f"{number}.txt").write_text("".join(f"{line}\n" for line in lines[at : at + count]))
        at += count
    found = queries(str(folder / "*.txt"))
    assert list(found) == lines
    assert found.files is not None
    return found.files(), lines


@pytest.mark.parametrize("window", [100, 10_000_000])
def test_queries_that_stay_in_their_files_are_read_in_any_order(
    tmp_path: Path, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chimera.inference.coordinator.file_queries._WINDOW_BYTES", window)
    files, lines = written(tmp_path, 30, 1, 200, 69)
    assert [file.queries for file in files] == [30, 1, 200, 69]
    reader, chance = FileQueries(files), random.Random(1)
    for _ in range(100):
        first = chance.randrange(len(lines))
        count = chance.randint(1, len(lines) - first)
        assert reader.read(first, count) == lines[first : first + count]
    with pytest.raises(DataError, match="fewer queries"):
        reader.read(290, 11)
    assert reader.read_or_none(299, 2) == [None, None]
    (tmp_path / "2.txt").write_text("other\n" * 200)
    assert reader.read(0, 31) == lines[:31]
    with pytest.raises(DataError, match=r"2\.txt has changed since the job was submitted"):
        FileQueries(files).read(100, 1)
    (tmp_path / "0.txt").unlink()
    with pytest.raises(DataError, match=r"0\.txt cannot be read"):
        FileQueries(files).read(0, 1)


@pytest.mark.parametrize("piece", ["line 1\n", ""])
def test_a_file_that_is_written_to_while_its_job_runs_is_an_error_and_a_deleted_one_is_read(
    tmp_path: Path, piece: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chimera.inference.coordinator.file_queries._WINDOW_BYTES", 100)
    files, lines = written(tmp_path, 20_000)
    reader = FileQueries(files)
    assert reader.read(0, 10) == lines[:10]
    (tmp_path / "0.txt").rename(tmp_path / "open")
    assert reader.read(10, 10) == lines[10:20]
    with (tmp_path / "open").open("r+") as file:
        file.write(piece * 20_000)
        file.truncate()
    with pytest.raises(DataError, match=r"0\.txt has changed since the job was submitted"):
        reader.read(19_000, 10)


def test_queries_behind_a_file_that_has_changed_are_those_of_their_own_file(tmp_path: Path) -> None:
    files, lines = written(tmp_path, 1000, 1000)
    (tmp_path / "0.txt").write_text("other\n" * 1000)
    reader = FileQueries(files)
    for first in (0, 10):
        assert reader.read_or_none(first, 10) == [None] * 10
    assert reader.read_or_none(1000, 10) == lines[1000:1010]


def test_a_file_that_cannot_be_opened_because_of_a_limit_is_read_later(tmp_path: Path) -> None:
    files, lines = written(tmp_path, 30)
    reader, limits = FileQueries(files), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(UnavailableError, match=r"0\.txt cannot be read: Too many open files"):
            reader.read(0, 10)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert reader.read(0, 10) == lines[:10]


@pytest.mark.parametrize(
    "error",
    [OSError(24, "Too many open files"), MemoryError(), Exception("the connection broke")],
    ids=["import", "memory", "an object store"],
)
def test_an_error_of_the_system_ends_no_thread_that_sends_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(_: InputFile) -> Any:
        raise error

    files, lines = written(tmp_path, 30)
    reader = FileQueries(files)
    with monkeypatch.context() as short:
        short.setattr("chimera.inference.input_files.check_unchanged", fail)
        with pytest.raises(UnavailableError, match=r"0\.txt cannot be read now"):
            reader.read(0, 10)
    assert reader.read(0, 10) == lines[:10]


def opened(folder: Path) -> list[str]:
    """Return the text files of a folder that this process has open."""
    found = [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
    return [each for each in found if each.startswith(f"{folder.resolve()}/") and each.endswith(".txt")]


def test_closing_a_reader_waits_for_no_other_thread_and_keeps_no_file_open(tmp_path: Path) -> None:
    files, lines = written(tmp_path, 30)
    reader = FileQueries(files)
    assert reader.read(0, 10) == lines[:10]
    with reader._lock:  # as a thread that reads
        reader.close()
        assert opened(tmp_path)
    with pytest.raises(UnavailableError):
        reader.read(10, 10)
    assert not opened(tmp_path)


def test_a_job_that_has_ended_keeps_no_file_open(journal: SqliteJournal, tmp_path: Path) -> None:
    files, lines = written(tmp_path, 30, 20)
    with leads(journal) as leading:
        for key in "abc":
            begun(leading, key=key)
            job = leading.submissions.accept(key, 50, files, [(0, 400)])
            store = leading.call(partial(leading.store, job))
            assert store.queries(Batch(0, 0, 10)) == lines[:10]
            assert opened(tmp_path)
            leading.call(partial(leading.record, Cancelled(job, "", leading.now_s())))
            assert not opened(tmp_path)
            with pytest.raises(UnavailableError):  # a batch that waited to be sent
                store.queries(Batch(0, 10, 10))
            assert not opened(tmp_path)


def test_files_are_named_by_the_client_only_where_it_may_run_code(journal: SqliteJournal, tmp_path: Path) -> None:
    files, lines = written(tmp_path, 30, 20)
    chunks = [(0, 400), (25, 400)]
    with leads(journal) as leading:
        begun(leading)
        for wrong in (
            [files[0]],
            [files[0], InputFile(str(tmp_path / "1.txt"), "another version", 20)],
            [files[0], InputFile("/etc/passwd", "", 20)],
            [files[0], InputFile("1.txt", files[1].version, 20)],
            [InputFile(f"{files[0].path}::{files[1].path}", files[1].version, 50)],
        ):
            with pytest.raises(DataError):
                leading.submissions.accept("a", 50, wrong, chunks)
        for wrong_chunks in ([], [(1, 1)], [(0, 1), (50, 1)], [(0, 1), (0, 1)]):
            with pytest.raises(DataError, match="do not match"):
                leading.submissions.accept("a", 50, files, wrong_chunks)
        leading.reads_files = False
        with pytest.raises(DataError, match="copy the queries"):
            leading.submissions.accept("a", 50, files, chunks)
        leading.reads_files = True
        job = leading.submissions.accept("a", 50, files, chunks)
        assert leading.store(job).queries(Batch(0, 25, 25)) == lines[25:]
        assert leading.store(job).fitting(Batch(0, 0, 50)) == 50
        assert journal.jobs_with_queries() == set()


def interrupted(count: int, by: BaseException | None = None, act: Any = None) -> Iterator[int]:
    """Yield numbers, and raise or act when half of them are read."""
    for number in range(count):
        if number == count // 2:
            if act is not None:
                act()
            if by is not None:
                raise by
        yield number


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with cluster(tmp_path_factory.mktemp("submissions"), workers=1) as up:
        yield up


@pytest.mark.long
def test_an_interrupted_submission_continues_with_its_key(running: RunningCluster) -> None:
    client, table = running.client, running.model(seconds=0.0)
    before = client.rows("jobs")
    with pytest.raises(KeyboardInterrupt):
        client.submit(table, interrupted(6000, KeyboardInterrupt()), key="mine")
    assert client.rows("jobs") == before
    arrived: list[tuple[int, int]] = []
    job = client.submit(table, range(6000), key="mine", on_progress=lambda *seen: arrived.append(seen))
    assert client.submit(table, range(6000), key="mine") == job
    assert arrived[-1] == (6000, 48_000)
    assert client.wait(job, 60)["state"] == "done"
    assert running.answers(job) == [2 * number for number in range(6000)]
    assert len(client.rows("jobs")) == len(before) + 1


@pytest.mark.long
def test_a_submission_whose_queries_cannot_be_read_is_deleted(running: RunningCluster, tmp_path: Path) -> None:
    before = running.client.rows("jobs")
    inputs, table = tmp_path / "lines.jsonl", tmp_path / "model.toml"
    inputs.write_text("1\n" * 5000 + "{")
    table.write_text(f'kind = "factory"\nfactory = "{running.model_file}:make"\n')
    command = ["infer", "submit", "--model", str(table), "--inputs", str(inputs), "--key", "bad"]
    done = CliRunner().invoke(app, [*command, "--cluster", str(running.folder)])
    assert done.exit_code == 2
    assert "line 5001: not JSON" in done.stderr
    assert running.client.rows("jobs") == before
    with pytest.raises(ConfigurationError, match="no submission with the key 'bad'"):
        running.client.request_json("POST", "/submissions/bad/job", wire.pack({"queries": 5000}))


@pytest.mark.long
def test_queries_of_large_files_are_not_copied_and_a_job_with_a_changed_file_fails(
    running: RunningCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chimera.inference.client._COPIED_BYTES", 0)
    _, lines = written(tmp_path, 300, 700)
    client = running.client
    job = client.submit(running.model(seconds=0.0), queries(str(tmp_path / "*.txt")), batch_size=70)
    assert client.wait(job, 60)["state"] == "done"
    rows = list(client.results(job))
    assert [(row["query"], row["result"]) for row in rows] == [(line, 2 * line) for line in lines]
    copied = client.submit(running.model(seconds=0.0), queries(str(tmp_path / "*.txt")), copy=True)
    changed = client.submit(running.model(seconds=0.01), queries(str(tmp_path / "*.txt")), batch_size=10, weight=0.01)
    (tmp_path / "1.txt").write_text("another line\n" * 700)
    (tmp_path / "0.txt").unlink()
    ended = client.wait(changed, 60)
    assert ended["state"] == "failed"
    assert ".txt" in ended["why"]
    assert client.wait(copied, 60)["errors"] == 0
    assert [row["query"] for row in client.results(job)] == [None] * 1000
    journal = SqliteJournal(running.folder / "journal.sqlite")
    assert not {job, changed} & journal.jobs_with_queries()
    assert copied in journal.jobs_with_queries()
    journal.close()


@pytest.mark.long
def test_a_coordinator_killed_during_a_submission_costs_nothing(tmp_path: Path) -> None:
    with cluster(tmp_path, workers=1) as up:
        killed = up.member("coordinator")

        def kill() -> None:
            signalled(killed["pid"], signal.SIGKILL)

        job = up.client.submit(up.model(seconds=0.0), interrupted(20_000, act=kill))
        assert up.member("coordinator")["epoch"] > killed["epoch"]
        assert up.client.wait(job, 60)["state"] == "done"
        assert up.answers(job) == [2 * number for number in range(20_000)]
        assert len(up.client.rows("jobs")) == 1


@pytest.mark.long
def test_a_large_submission_needs_little_memory_and_no_new_coordinator(tmp_path: Path) -> None:
    with cluster(tmp_path, workers=1) as up:
        before = up.member("coordinator")
        peak = high_water_bytes(before["pid"])
        text = "x" * (1 << 20)
        job = up.client.submit(up.model(seconds=0.0), (f"{number}{text}" for number in range(200)), max_workers=1)
        assert high_water_bytes(before["pid"]) - peak < 100 << 20
        up.client.cancel(job)
        assert up.member("coordinator")["epoch"] == before["epoch"]


def high_water_bytes(pid: int) -> int:
    """Return the largest memory that a process has had."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) << 10
