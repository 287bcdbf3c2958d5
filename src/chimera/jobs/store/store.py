"""Store of a cluster's jobs in a SQLite file. Each change is one transaction, on the disk before it takes effect."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

from chimera.core.errors import ConfigurationError, ConflictError
from chimera.core.sqlite import SQLiteConnection, SQLiteFormat
from chimera.jobs.store.records import Job, JobEvent, Submission, Usage, apply_event
from chimera.jobs.store.states import TERMINAL, Event, State

FORMAT = 1
_MAX_KEY = 200
_MAX_CACHED = 10_000  # submissions kept in memory

_TABLES = """
CREATE TABLE submissions (id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT UNIQUE NOT NULL, body BLOB NOT NULL);
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY REFERENCES submissions, state TEXT NOT NULL, reason TEXT NOT NULL, attempt INTEGER NOT NULL,
    broken INTEGER NOT NULL, refused INTEGER NOT NULL, progress REAL NOT NULL, reached REAL NOT NULL, workers TEXT NOT NULL,
    since_s REAL NOT NULL, submitted_s REAL NOT NULL
);
CREATE INDEX jobs_by_state ON jobs (state);
CREATE TABLE events (
    number INTEGER PRIMARY KEY, job INTEGER NOT NULL REFERENCES jobs, at_s REAL NOT NULL, event TEXT, state TEXT NOT NULL,
    attempt INTEGER NOT NULL, reason TEXT NOT NULL
);
CREATE INDEX events_of_job ON events (job, number);
CREATE TABLE uses (
    job INTEGER NOT NULL REFERENCES jobs, attempt INTEGER NOT NULL, user TEXT NOT NULL, workers INTEGER NOT NULL,
    from_s REAL NOT NULL, to_s REAL, PRIMARY KEY (job, attempt)
);
CREATE INDEX uses_by_end ON uses (to_s)
"""
_KIND = SQLiteFormat("store of jobs", 0x43484A42, FORMAT, _TABLES)
_COLUMNS = "state, reason, attempt, broken, refused, progress, reached, workers, since_s, submitted_s"
_READ = f"SELECT id, {_COLUMNS} FROM jobs"  # noqa: S608 - names of this module's own columns; values are bound
_SET = ", ".join(f"{column} = ?" for column in _COLUMNS.split(", "))
_SUBMISSION = msgspec.msgpack.Decoder(Submission)


class Store:
    """Jobs, events and usage in one file.

    Several threads and processes of one host may use the file at the same time. It must be on a local disk of that host.

    Changes are fenced by the number of the attempt: a message about an attempt that is over changes nothing. Repeated and
    delayed messages, and messages of two processes, therefore take effect once.

    Parameters
    ----------
    path : the file; created if it does not exist.

    Raises
    ------
    ConfigurationError : the file is not a store of jobs, is damaged, or was written by a later version of Chimera.
    """

    def __init__(self, path: Path) -> None:
        self._channel = SQLiteConnection(path, _KIND)
        self._submissions: dict[int, Submission] = {}
        try:
            self._channel.prepare()
        except BaseException:
            self._channel.close()
            raise

    def submit(
        self, submission: Submission, key: str, now_s: float, check_new: Callable[[], None] = lambda: None
    ) -> Job:
        """Add a job and return it; a repeated request with the same key returns the same job.

        Parameters
        ----------
        key : idempotency key of 1 to 200 characters, which the client generates for each submission.
        check_new : called before a new job is added; raises an error if the job must not be added.

        Raises
        ------
        ConfigurationError : the key has another length, or the submission is not consistent, or depends on an unknown job.
        ConflictError : the key belongs to another submission.
        """
        if not 1 <= len(key) <= _MAX_KEY:
            raise ConfigurationError(f"the key of a submission has 1 to {_MAX_KEY} characters, not {len(key)}")
        body = msgspec.msgpack.encode(submission.checked())

        def put(db: sqlite3.Connection) -> str:
            known = db.execute("SELECT id, body FROM submissions WHERE key = ?", (key,)).fetchone()
            if known is not None:
                if known[1] != body:
                    raise ConflictError(f"the key {key!r} belongs to job {known[0]}, another submission: use a new key")
                return str(known[0])
            check_new()
            for other in submission.after:
                self._one(db, other)
            number = db.execute("INSERT INTO submissions (key, body) VALUES (?, ?)", (key, body)).lastrowid
            job = Job(id=str(number), submission=submission, since_s=now_s, submitted_s=now_s)
            values = (number, *_row(job))
            db.execute(f"INSERT INTO jobs (id, {_COLUMNS}) VALUES ({', '.join('?' * len(values))})", values)  # noqa: S608 - names of this module's own columns; values are bound
            _record_event(db, job, None)
            return job.id

        return self.job(self._channel.write(put))

    def apply(
        self,
        job: str,
        event: Event,
        *,
        now_s: float,
        attempt: int | None = None,
        reason: str = "",
        workers: tuple[str, ...] = (),
    ) -> Job | None:
        """Apply an event to a job and return the new job; None if the attempt of the event is over already.

        Parameters
        ----------
        attempt : attempt that the event belongs to (``picked``: the attempt before); None for a request of a user.
        workers : names of the workers that will run the job, for ``picked``.

        Raises
        ------
        ConfigurationError : there is no such job.
        ConflictError : the event is not possible in the state of the job.
        """

        def change(db: sqlite3.Connection) -> Job | None:
            old = self._one(db, job)
            if attempt is not None and attempt != old.attempt:
                return None
            try:
                new = apply_event(old, event, now_s=now_s, reason=reason, workers=workers)
            except ConflictError:
                if attempt is not None and not old.active:
                    return None  # the attempt is over already
                raise
            db.execute(f"UPDATE jobs SET {_SET} WHERE id = ?", (*_row(new), int(job)))  # noqa: S608 - names of this module's own columns; values are bound
            _record_event(db, new, event)
            _record_usage(db, old, new)
            return new

        return self._channel.write(change)

    def record_progress(self, job: str, attempt: int, progress: float) -> bool:
        """Record the progress of an attempt, 0 to 1, if it exceeds that on record; return whether the attempt still runs."""
        if not 0.0 <= progress <= 1.0:
            raise ConfigurationError(f"a job's progress must be between 0 and 1, not {progress!r}")
        change = "UPDATE jobs SET progress = max(progress, ?) WHERE id = ? AND attempt = ? AND state = ?"
        values = (progress, _number(job), attempt, State.RUNNING)
        return bool(self._channel.write(lambda db: db.execute(change, values).rowcount))

    def job(self, job: str) -> Job:
        """Return a job.

        Raises
        ------
        ConfigurationError : there is no job with that number.
        """
        return self._channel.read(lambda db: self._one(db, job))

    def jobs(self, states: Collection[State] = tuple(State)) -> list[Job]:
        """Return the jobs in these states, in order of submission."""
        question = f"{_READ} WHERE state IN ({', '.join('?' * len(states))}) ORDER BY id"
        return self._channel.read(
            lambda db: [self._read(db, row) for row in db.execute(question, tuple(states)).fetchall()]
        )

    def events(self, job: str) -> list[JobEvent]:
        """Return the events of a job, in order."""
        question = "SELECT job, at_s, event, state, attempt, reason FROM events WHERE job = ? ORDER BY number"
        return [
            JobEvent(str(number), at_s, event and Event(event), State(state), *rest)
            for number, at_s, event, state, *rest in self._channel.rows(question, (_number(job),))
        ]

    def usage(self, since_s: float) -> list[Usage]:
        """Return the current usage of workers, and that which ended after ``since_s``."""
        question = "SELECT user, workers, from_s, to_s FROM uses WHERE to_s IS NULL OR to_s > ?"
        return [Usage(*row) for row in self._channel.rows(question, (since_s,))]

    def delete_ended(self, ended_before_s: float, usage_before_s: float) -> None:
        """Delete jobs that ended before a time, except those that unfinished jobs depend on.

        Numbers of deleted jobs are not used again.

        Parameters
        ----------
        usage_before_s : usage that ended before this time is deleted, too.
        """

        def drop(db: sqlite3.Connection) -> None:
            rows = db.execute("SELECT id, state, since_s FROM jobs").fetchall()
            over = {number for number, state, since_s in rows if state in TERMINAL and since_s < ended_before_s}
            left = [number for number, state, _ in rows if state not in TERMINAL]
            over -= {int(other) for number in left for other in self._submission(db, number).after}
            for table, column in (("events", "job"), ("jobs", "id"), ("submissions", "id")):
                db.executemany(f"DELETE FROM {table} WHERE {column} = ?", [(number,) for number in over])  # noqa: S608 - names of this module's own columns; values are bound
            db.execute("DELETE FROM uses WHERE to_s < ?", (usage_before_s,))
            for number in over:
                self._submissions.pop(number, None)

        self._channel.write(drop)

    def check_space(self) -> None:
        """Write to the file without a change.

        Raises
        ------
        NoSpaceError : the disk is full.
        """
        self._channel.write(lambda db: db.execute(f"PRAGMA user_version = {FORMAT}"))

    def close(self) -> None:
        """Close the file."""
        self._channel.close()

    def _one(self, db: sqlite3.Connection, job: str) -> Job:
        row = db.execute(f"{_READ} WHERE id = ?", (_number(job),)).fetchone()
        if row is None:
            raise ConfigurationError(f"there is no job {job!r}; 'chimera jobs' lists all jobs")
        return self._read(db, row)

    def _read(self, db: sqlite3.Connection, row: tuple) -> Job:  # type: ignore[type-arg] # of SQLite
        number, state, reason, attempt, broken, refused, progress, reached, workers, since_s, submitted_s = row
        return Job(
            id=str(number),
            submission=self._submission(db, number),
            state=State(state),
            reason=reason,
            attempt=attempt,
            broken=broken,
            refused=refused,
            progress=progress,
            reached=reached,
            workers=tuple(msgspec.json.decode(workers)),
            since_s=since_s,
            submitted_s=submitted_s,
        )

    def _submission(self, db: sqlite3.Connection, number: int) -> Submission:
        """Return a submission, read once: it never changes, and its manifest may be long."""
        found = self._submissions.get(number)
        if found is None:
            (body,) = db.execute("SELECT body FROM submissions WHERE id = ?", (number,)).fetchone()
            found = self._submissions[number] = _SUBMISSION.decode(body)
            if len(self._submissions) > _MAX_CACHED:
                del self._submissions[next(iter(self._submissions))]
        return found


def _number(job: str) -> int:
    """Return the number of a job; -1, which no job has, for other text."""
    return int(job) if job.isascii() and job.isdecimal() and len(job) < 19 else -1


def _row(job: Job) -> tuple:  # type: ignore[type-arg]
    workers = msgspec.json.encode(job.workers).decode()
    counts = job.attempt, job.broken, job.refused, job.progress, job.reached
    return job.state, job.reason, *counts, workers, job.since_s, job.submitted_s


def _record_event(db: sqlite3.Connection, job: Job, event: Event | None) -> None:
    values = (int(job.id), job.since_s, event, job.state, job.attempt, job.reason)
    db.execute("INSERT INTO events (job, at_s, event, state, attempt, reason) VALUES (?, ?, ?, ?, ?, ?)", values)


def _record_usage(db: sqlite3.Connection, old: Job, new: Job) -> None:
    """Record the start and the end of the user's occupation of workers."""
    if new.active and not old.active:
        values = (int(new.id), new.attempt, new.submission.user, new.submission.workers, new.since_s)
        db.execute("INSERT INTO uses VALUES (?, ?, ?, ?, ?, NULL)", values)
    if old.active and not new.active:
        change = "UPDATE uses SET to_s = max(from_s, ?) WHERE job = ? AND attempt = ?"
        db.execute(change, (new.since_s, int(old.id), old.attempt))
