"""The store of jobs: transactions, fencing, several processes, kill -9."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chimera.core.errors import ConfigurationError, ConflictError
from chimera.jobs.store.records import File, Function, Job, Submission, apply_event
from chimera.jobs.store.states import ACTIVE, TERMINAL, Event, State
from chimera.jobs.store.store import FORMAT, Store
from jobs.samples import submission

LIMIT_S = 60.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cluster" / "jobs.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    store = Store(path)
    yield store
    store.close()


def _running(store: Store, *, key: str = "k", user: str = "ada", workers: int = 2) -> Job:
    job = store.submit(submission(user=user, workers=workers), key, 0.0)
    store.apply(job.id, Event.PICKED, attempt=0, now_s=1.0, workers=("w0", "w1"))
    running = store.apply(job.id, Event.COMMITTED, attempt=1, now_s=2.0)
    assert running is not None
    return running


def _check(store: Store) -> None:
    """Check that the jobs in the store follow from the events."""
    for job in store.jobs():
        first, *events = store.events(job.id)
        now = Job(id=job.id, submission=job.submission, since_s=first.at_s, submitted_s=first.at_s)
        assert (first.event, first.state) == (None, State.QUEUED)
        for event in events:
            assert event.event is not None
            workers = tuple(f"w{i}" for i in range(job.submission.workers))
            now = apply_event(now, event.event, now_s=event.at_s, reason=event.reason, workers=workers)
            assert (now.state, now.attempt, now.reason) == (event.state, event.attempt, event.reason)
        assert (job.state, job.attempt, job.since_s, job.refused) == (now.state, now.attempt, now.since_s, now.refused)
    held = [use for use in store.usage(0.0) if use.to_s is None]
    assert len(held) == len(store.jobs(ACTIVE))


def test_a_submission_is_read_back_unchanged(store: Store, path: Path) -> None:
    function = Function("hello.py", "greet", b"\x92\x91\x01\x80")
    whole = Submission(
        name="ü", user="ada", kind="function", manifest={"hello.py": File("0" * 64, 3)}, function=function, workers=3,
        priority=-1, requires=("numpy",), versions={"python": "3.12"},
    )  # fmt: skip
    job = store.submit(whole, "k", 5.0)
    other = Store(path)
    assert other.jobs() == [job] == store.jobs((State.QUEUED,))
    assert (job.id, job.state, job.submission, job.submitted_s) == ("1", State.QUEUED, whole, 5.0)
    assert store.submit(submission(after=(job.id,)), "l", 6.0).submission.after == ("1",)
    other.close()


def test_a_repeated_request_is_one_job(store: Store) -> None:
    first = store.submit(submission(), "k", 0.0)
    store.apply(first.id, Event.CANCEL, now_s=1.0)
    again = store.submit(submission(), "k", 2.0)
    assert (again.id, again.state) == (first.id, State.CANCELLED)
    assert len(store.jobs()) == 1
    with pytest.raises(ConflictError, match="belongs to job 1"):
        store.submit(submission("other"), "k", 3.0)


@pytest.mark.parametrize("key", ["", "k" * 201])
def test_a_key_has_a_bounded_length(key: str, store: Store) -> None:
    with pytest.raises(ConfigurationError, match="the key of a submission has 1 to 200 characters"):
        store.submit(submission(), key, 0.0)
    assert store.jobs() == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (submission(after=("7",)), "no job '7'"),
        (submission(after=("../x",)), r"no job '\.\./x'"),
        (submission(workers=0), "workers"),
        (submission(name=""), "name"),
        (submission(name="a\nb"), "name"),
        (submission(manifest={"a": File("0" * 63, 1)}), "sha256"),
        (submission(manifest={"a": File("0" * 64, -1)}), "size"),
        (submission(kind="function"), "of kind 'function'"),
        (Submission(name="a", user="b"), "of kind 'experiment'"),
        (Submission(name="a", user="b", kind="function", function=Function("f.py", "f")), r"lacks the file 'f\.py'"),
    ],
)
def test_an_invalid_submission_is_refused_in_one_line_and_stores_nothing(
    store: Store, wrong: Submission, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        store.submit(wrong, "k", 0.0)
    assert "\n" not in str(caught.value)
    assert store.jobs() == []


def test_events_of_an_attempt_that_is_over_change_nothing(store: Store) -> None:
    job = _running(store)
    assert store.record_progress(job.id, 1, 0.5)
    assert store.apply(job.id, Event.BROKE, attempt=1, now_s=3.0, reason="a worker died") is not None
    for event in (Event.ENDED, Event.FAILED, Event.BROKE, Event.COMMITTED):
        if event is not Event.FAILED:  # a queued job can fail
            assert store.apply(job.id, event, attempt=1, now_s=4.0) is None
    assert store.apply(job.id, Event.PICKED, attempt=0, now_s=4.0) is None
    assert store.apply(job.id, Event.PICKED, attempt=1, now_s=4.0, workers=("w0", "w1")) is not None
    assert store.apply(job.id, Event.PICKED, attempt=1, now_s=4.0) is None
    for event in Event:
        assert store.apply(job.id, event, attempt=1, now_s=5.0) is None
    assert not store.record_progress(job.id, 1, 0.9)
    assert store.job(job.id).progress == 0.5
    with pytest.raises(ConflictError, match="job 1: a job that is starting cannot be ended"):
        store.apply(job.id, Event.ENDED, attempt=2, now_s=6.0)
    _check(store)


def test_a_job_ends_once_whichever_thread_is_first(store: Store, path: Path) -> None:
    job, taken, go = _running(store), [], threading.Barrier(4)

    def end(event: Event) -> None:
        own = Store(path)
        go.wait()
        taken.append(own.apply(job.id, event, attempt=1, now_s=9.0))
        own.close()

    events = (Event.ENDED, Event.ENDED, Event.FAILED, Event.CANCEL)
    threads = [threading.Thread(target=end, args=(event,)) for event in events]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    (end_of_it,) = (one for one in taken if one is not None)
    assert store.job(job.id) == end_of_it
    assert sum(event.state in TERMINAL for event in store.events(job.id)) == 1


def test_impossible_requests_of_users_are_errors(store: Store) -> None:
    job = _running(store)
    store.apply(job.id, Event.ENDED, attempt=1, now_s=3.0)
    with pytest.raises(ConflictError, match="job 1: a job that is done cannot be cancelled"):
        store.apply(job.id, Event.CANCEL, now_s=4.0)
    with pytest.raises(ConfigurationError, match="no job '12'"):
        store.apply("12", Event.CANCEL, now_s=4.0)
    with pytest.raises(ConfigurationError, match="between 0 and 1"):
        store.record_progress(job.id, 1, float("nan"))


def test_usage_of_workers_is_recorded(store: Store) -> None:
    job = _running(store, workers=2)
    assert [(use.user, use.workers, use.from_s, use.to_s) for use in store.usage(0.0)] == [("ada", 2, 1.0, None)]
    store.apply(job.id, Event.BROKE, attempt=1, now_s=7.0, reason="")
    assert [use.to_s for use in store.usage(6.0)] == [7.0]
    assert store.usage(7.0) == []
    store.apply(job.id, Event.PICKED, attempt=1, now_s=0.5, workers=("w0", "w1"))  # the clock was set back
    store.apply(job.id, Event.CANCEL, now_s=0.25)
    assert sorted((use.from_s, use.to_s) for use in store.usage(0.0)) == [(0.5, 0.5), (1.0, 7.0)]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(Event), st.integers(0, 4), st.booleans()), max_size=40))
def test_the_store_agrees_with_its_events(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Event, int, bool]]
) -> None:
    store = Store(tmp_path_factory.mktemp("store") / "jobs.sqlite")
    store.submit(submission(workers=2), "k", 0.0)
    for at_s, (event, attempt, by_a_person) in enumerate(steps):
        before = store.job("1")
        try:
            changed = store.apply(
                "1",
                event,
                now_s=float(at_s),
                attempt=None if by_a_person else attempt,
                reason="x",
                workers=("w0", "w1"),
            )
        except ConflictError:
            changed = None
        assert store.job("1") == (changed or before)
    _check(store)
    store.close()


_WRITER = """
import sys; from pathlib import Path
from chimera.jobs.store.store import Store; from chimera.jobs.store.states import Event
from chimera.jobs.store.records import Submission
store, name = Store(Path(sys.argv[1])), sys.argv[2]
for number in range(int(sys.argv[3])):
    job = store.submit(Submission(name=name, user="ada", experiment="x"), f"{name}-{number}", 0.0)
    print(f"{job.id} 0", flush=True)
    for event in (Event.PICKED, Event.COMMITTED, Event.BROKE, Event.PICKED, Event.COMMITTED, Event.ENDED):
        attempt = store.job(job.id).attempt
        store.apply(job.id, event, attempt=attempt, now_s=1.0, reason=event, workers=("w0",))
        print(f"{job.id} {len(store.events(job.id)) - 1}", flush=True)
"""


def _writer(path: Path, name: str, jobs: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(path), name, str(jobs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_processes_write_one_store(path: Path) -> None:
    writers = [_writer(path, name, 10) for name in "ab"]
    assert [(*writer.communicate(timeout=LIMIT_S), writer.returncode)[1:] for writer in writers] == [("", 0)] * 2
    store = Store(path)
    assert [job.state for job in store.jobs()] == [State.DONE] * 20
    assert sorted(job.submission.name for job in store.jobs()) == ["a"] * 10 + ["b"] * 10
    _check(store)
    store.close()


def test_after_a_kill_the_store_has_all_that_was_confirmed(path: Path) -> None:
    draws, kept = random.Random(0), 0
    for life in range(5):
        writer = _writer(path, f"life-{life}", 1000)
        assert writer.stdout is not None
        confirmed: dict[str, int] = {}
        for _ in range(draws.randrange(1, 25)):
            job, events = writer.stdout.readline().split()
            confirmed[job] = int(events)
        writer.send_signal(signal.SIGKILL)
        for line in writer.stdout:  # `communicate` would lose lines that `readline` has buffered
            if line.endswith("\n"):
                confirmed[line.split()[0]] = int(line.split()[1])
        writer.communicate(timeout=LIMIT_S)
        store = Store(path)
        for job, events in confirmed.items():
            assert len(store.events(job)) - 1 - events in (0, 1)  # the last one may be stored but not confirmed
        kept += len(confirmed)
        assert kept <= len(store.jobs()) <= kept + life + 1
        _check(store)
        store.close()


_DIES_INSIDE = """
import os, signal, sys; from pathlib import Path
from chimera.jobs.store.store import Store
def half(db):
    db.execute("UPDATE jobs SET state = 'done', attempt = 9")
    db.execute("DELETE FROM events")
    os.kill(os.getpid(), signal.SIGKILL)
Store(Path(sys.argv[1]))._channel.write(half)
"""


def test_a_transaction_is_rolled_back_if_its_writer_is_killed(store: Store, path: Path) -> None:
    before = _running(store)
    events = store.events(before.id)
    died = subprocess.run([sys.executable, "-c", _DIES_INSIDE, str(path)], timeout=LIMIT_S, check=False)
    assert died.returncode == -signal.SIGKILL
    assert store.jobs() == [before]
    assert store.events(before.id) == events
    assert store.apply(before.id, Event.ENDED, attempt=1, now_s=3.0) is not None


def test_a_file_that_is_not_a_store_is_refused_in_one_line(tmp_path: Path) -> None:
    text, newer = tmp_path / "text", tmp_path / "newer"
    text.write_text("These are not the jobs that you are looking for.\n" * 100)
    Store(newer).close()
    with sqlite3.connect(newer) as database:
        database.execute(f"PRAGMA user_version = {FORMAT + 1}")
    database.close()
    for path, message in (
        (text, "no store of jobs of Chimera's"),
        (newer, "has format 2"),
        (text / "x", "cannot be written"),
    ):
        with pytest.raises(ConfigurationError, match=message) as caught:
            Store(path)
        assert "\n" not in str(caught.value)
