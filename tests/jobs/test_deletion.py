"""Deletion of expired jobs and files, and what must be kept."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.jobs.cluster_kit import chimera, experiment, json_output, running

from chimera.core.errors import ConfigurationError
from chimera.jobs.cluster.folder import ClusterFolder
from chimera.jobs.daemon.deletion import UPLOAD_GRACE_S, delete_expired
from chimera.jobs.files.content_store import ContentStore, hash_text
from chimera.jobs.store.records import File, Job
from chimera.jobs.store.states import Event
from chimera.jobs.store.store import Store
from chimera.web.folder import write_lock_holder
from jobs.samples import submission

DAY_S = 86_400.0
USAGE_S = 36_000.0


@pytest.fixture
def folder(tmp_path: Path) -> ClusterFolder:
    return ClusterFolder(tmp_path)


@pytest.fixture
def store(folder: ClusterFolder) -> Iterator[Store]:
    store = Store(folder.store)
    yield store
    store.close()


def ended(folder: ClusterFolder, store: Store, days_ago: float, text: str = "", **given: object) -> Job:
    """Return a job that was cancelled so long ago, with its folder and file."""
    at_s = time.time() - days_ago * DAY_S
    job = store.submit(submission(manifest={"mine.py": uploaded(folder, text)}, **given), f"key {text}", at_s)
    folder.job(job.id).run.mkdir(parents=True)
    cancelled = store.apply(job.id, Event.CANCEL, now_s=at_s)
    assert cancelled is not None
    return cancelled


def uploaded(folder: ClusterFolder, text: str) -> File:
    """Return a file that was uploaded long ago."""
    file = hash_text(text)
    ContentStore(folder.files).add(file, [text.encode()])
    os.utime(folder.files / file.sha256, (0, 0))
    return file


def test_expired_jobs_are_deleted_with_their_folders_and_files(folder: ClusterFolder, store: Store) -> None:
    old, young = ended(folder, store, 3, "old"), ended(folder, store, 1, "young")
    waiting = store.submit(submission(), "waits", time.time() - 9 * DAY_S)
    delete_expired(folder, store, 2 * DAY_S, USAGE_S)
    assert [job.id for job in store.jobs()] == [young.id, waiting.id]
    assert [place.name for place in (folder.path / "jobs").iterdir()] == [young.id]
    assert [file.name for file in folder.files.iterdir()] == [hash_text("young").sha256]
    assert store.events(old.id) == []
    with pytest.raises(ConfigurationError, match="there is no job '1'"):
        store.job(old.id)
    assert store.submit(submission(), "next", time.time()).id == "4"  # numbers are not reused


def test_a_job_is_kept_while_another_one_depends_on_it(folder: ClusterFolder, store: Store) -> None:
    first = ended(folder, store, 3, "first")
    second = store.submit(submission(after=(first.id,)), "second", time.time())
    delete_expired(folder, store, 0.0, USAGE_S)
    assert [job.id for job in store.jobs()] == [first.id, second.id]
    store.apply(second.id, Event.FAILED, now_s=time.time() - DAY_S, reason="its dependency was cancelled")
    delete_expired(folder, store, 0.0, USAGE_S)
    assert store.jobs() == []


def test_a_requested_file_is_kept_for_its_job(folder: ClusterFolder, store: Store) -> None:
    contents = ContentStore(folder.files)
    requested, unused = uploaded(folder, "requested"), uploaded(folder, "unused")
    (folder.files / f".{unused.sha256}.1.draft").touch()
    os.utime(
        folder.files / f".{unused.sha256}.1.draft", (0, time.time() - UPLOAD_GRACE_S - 1)
    )  # of an interrupted upload
    assert contents.missing({"mine.py": requested}) == []
    delete_expired(folder, store, 0.0, USAGE_S)
    assert [file.name for file in folder.files.iterdir()] == [requested.sha256]


def test_a_folder_without_a_job_is_deleted_unless_a_driver_works_in_it(folder: ClusterFolder, store: Store) -> None:
    lock = folder.job("7").claim()
    folder.job("8").run.mkdir(parents=True)
    assert lock is not None
    write_lock_holder(lock, os.getpid())
    delete_expired(folder, store, 0.0, USAGE_S)
    assert [place.name for place in (folder.path / "jobs").iterdir()] == ["7"]
    os.close(lock)
    delete_expired(folder, store, 0.0, USAGE_S)
    assert list((folder.path / "jobs").iterdir()) == []


def test_usage_is_kept_for_the_window_of_the_queue(folder: ClusterFolder, store: Store) -> None:
    now_s = time.time()
    job = store.submit(submission(), "key", now_s)
    store.apply(job.id, Event.PICKED, attempt=0, now_s=now_s - 200.0, workers=("w0",))
    store.apply(job.id, Event.CANCEL, now_s=now_s - 10.0)
    for keep_s in (60.0, 15.0):  # with 15 s, the beginning of the use is over that age, and its end is not
        delete_expired(folder, store, 0.0, keep_s)
        assert [use.user for use in store.usage(0.0)] == ["ada"]
    delete_expired(folder, store, 0.0, 5.0)
    assert store.usage(0.0) == []


@pytest.mark.long
def test_a_cluster_that_keeps_nothing_deletes_the_jobs_of_the_last_one(tmp_path: Path) -> None:
    file, place = experiment(tmp_path, rounds=5), tmp_path / "runs" / "cluster"
    with running(place) as cluster:
        job = json_output("submit", file, cwd=tmp_path)["job"]
        assert cluster.client.wait(job, 60.0)["state"] == "done"
    with running(place, keep_days=0.0) as cluster:
        deadline_s = time.monotonic() + 10.0
        while cluster.client.jobs() or cluster.folder.job(job).path.exists():
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
    ran = chimera("cluster", "up", "--keep-days", "inf", cwd=tmp_path)
    assert ran.returncode == 2
    assert "keep_days must be a number of days from 0, not inf" in ran.stderr
