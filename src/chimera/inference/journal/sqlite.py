"""The journal as a SQLite file, for the processes of one host."""

from __future__ import annotations

import contextlib
import errno
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from chimera.core.errors import ConfigurationError, DataError, NoSpaceError
from chimera.core.sqlite import Busy, SQLiteConnection, SQLiteFormat
from chimera.engines.http import wire
from chimera.inference.journal.journal import Fenced, Journal, Lease, Output
from chimera.inference.journal.lease_file import LeaseFile
from chimera.inference.journal.owner_process import Process, has_ended, kill_if_stopped
from chimera.inference.journal.records import Record, job_of

FORMAT = 1
_ACQUIRE_BUSY_S = 0.1
_PAGE = 500  # rows per read; a long read would prevent the checkpoint of the WAL
_OPEN_CHUNKS = 8
_LARGE_ROWS = 50  # deleted per transaction
_FREED_PAGES = 1000  # released per transaction

_TABLES = """
CREATE TABLE lease (
    only INTEGER PRIMARY KEY CHECK (only = 1), owner TEXT NOT NULL, epoch INTEGER NOT NULL, address TEXT NOT NULL,
    lease_s REAL NOT NULL, ends_s REAL NOT NULL, pid INTEGER NOT NULL, began TEXT NOT NULL
);
CREATE TABLE records (number INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE outputs (
    job TEXT NOT NULL, batch INTEGER NOT NULL, first INTEGER NOT NULL, count INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (job, batch)
);
CREATE INDEX outputs_in_order ON outputs (job, first);
CREATE TABLE inputs (job TEXT NOT NULL, first INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (job, first));
"""

_KIND = SQLiteFormat("journal", 0x43484A4C, FORMAT, _TABLES)
_RECORD: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


class SqliteJournal(Journal):
    """A SQLite file in WAL mode; each write is on the disk before it returns (``synchronous=FULL``).

    The end of a lease is a time of the monotonic clock, which all processes of the machine share. A lease that ends later than
    its duration allows is from before a restart of the machine, and is over. Renewals are in a file of their own (`LeaseFile`),
    so that they do not wait for data. The row of the lease has the end that was set at the acquisition.

    Several threads, and several processes of one host, may use it. The file must be on a disk of that host.

    Parameters
    ----------
    path : the file; it is created if it does not exist.

    Raises
    ------
    ConfigurationError : the file is not a journal, is damaged or was moved away, or was written by a later version of Chimera.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        _check_is_whole(path)
        self._chunks: OrderedDict[tuple[str, int], list[Any]] = OrderedDict()
        self._lock = threading.Lock()
        with contextlib.ExitStack() as opened:
            self._writer, self._epoch_channel, self._reader = (
                opened.enter_context(contextlib.closing(SQLiteConnection(path, _KIND))) for _ in range(3)
            )
            self._writer.prepare()
            self._leases = _lease_file(path)
            opened.pop_all()

    def acquire(self, owner: str, address: str, lease_s: float) -> Lease | None:  # noqa: D102
        last = self.lease()
        dead = None
        if last is not None and last.left_s > 0:
            if not has_ended(self._owner(last.epoch)):
                return None
            dead = last.epoch
        own = Process.current()

        def take(db: sqlite3.Connection) -> Lease | None:
            last = self._lease_in(db)
            if last is not None and last.left_s > 0 and last.epoch != dead:
                return None
            epoch = 1 if last is None else last.epoch + 1
            ends_s = time.monotonic() + lease_s
            row = (owner, epoch, address, lease_s, ends_s, own.pid, own.began)
            db.execute("INSERT OR REPLACE INTO lease VALUES (1, ?, ?, ?, ?, ?, ?, ?)", row)
            self._leases.write(epoch, ends_s, lease_s)
            return Lease(owner, epoch, address, lease_s)

        try:
            return self._writer.write(take, busy_s=_ACQUIRE_BUSY_S)
        except Busy:
            last = self.lease()
            if last is None or last.left_s > 0 or not kill_if_stopped(self._owner(last.epoch)):
                return None  # another process writes, and may be acquiring
            return self._writer.write(take)

    def renew(self, epoch: int, lease_s: float) -> None:  # noqa: D102
        self._epoch_channel.read(lambda db: _check(db, epoch))
        self._leases.write(epoch, time.monotonic() + lease_s, lease_s)
        self._epoch_channel.read(lambda db: _check(db, epoch))  # another process may have taken over in between

    def release(self, epoch: int) -> None:  # noqa: D102
        def end(db: sqlite3.Connection) -> None:
            if db.execute("UPDATE lease SET ends_s = 0 WHERE epoch = ?", (epoch,)).rowcount:
                self._leases.write(epoch, 0.0, 0.0)

        self._writer.write(end)

    def lease(self) -> Lease | None:  # noqa: D102
        return self._epoch_channel.read(self._lease_in)

    def append(  # noqa: D102
        self,
        epoch: int,
        records: Sequence[Record],
        *,
        outputs: Sequence[Output] = (),
        inputs: Sequence[tuple[str, int, bytes]] = (),
    ) -> None:
        bodies = [(msgspec.json.encode(record),) for record in records]
        results = [(one.job, one.batch, one.first, one.count, one.body) for one in outputs]

        def put(db: sqlite3.Connection) -> None:
            _check(db, epoch)
            db.executemany("INSERT INTO inputs VALUES (?, ?, ?)", inputs)
            db.executemany("INSERT OR IGNORE INTO outputs VALUES (?, ?, ?, ?, ?)", results)
            db.executemany("INSERT INTO records (body) VALUES (?)", bodies)

        self._writer.write(put)

    def drop(self, epoch: int, jobs: Collection[str]) -> Iterator[None]:  # noqa: D102
        for table in ("outputs", "inputs"):
            some = f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} WHERE job = ? LIMIT {_LARGE_ROWS})"  # noqa: S608 - names of this module's own tables; values are bound
            for job in jobs:
                while self._writer.write(partial(_changed, epoch, some, [(job,)])):
                    yield
        ends, between = self._records_of(jobs)
        delete = "DELETE FROM records WHERE number = ?"
        for last in range(len(between), 0, -_PAGE):  # an interrupted deletion leaves the first and last record
            self._writer.write(partial(_changed, epoch, delete, between[max(0, last - _PAGE) : last]))
            yield
        self._writer.write(partial(_changed, epoch, delete, ends))
        while self._writer.write(partial(_shrunk, epoch)):
            yield

    def records(self) -> Iterator[Record]:  # noqa: D102
        query = "SELECT number, body FROM records WHERE number > ? ORDER BY number LIMIT ?"
        last = 0
        while rows := self._reader.rows(query, (last, _PAGE)):
            for number, body in rows:
                try:
                    yield _RECORD.decode(body)
                except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                    raise DataError(f"the journal {self._path}: record {number} is damaged: {error}") from error
            last = rows[-1][0]

    def outputs(self, job: str, first: int = 0) -> Iterator[Output]:  # noqa: D102
        query = "SELECT batch, first, count, body FROM outputs WHERE job = ? AND first >= ? ORDER BY first LIMIT ?"
        start = "SELECT max(first) FROM outputs WHERE job = ? AND first <= ?"
        at = self._reader.rows(start, (job, first))[0][0] or 0
        while rows := self._reader.rows(query, (job, at, _PAGE)):
            for row in rows:
                output = Output(job, *row)
                if output.first + output.count > first:
                    yield output
            at = rows[-1][1] + 1

    def queries(self, job: str, first: int, count: int) -> list[Any]:  # noqa: D102
        query = (
            "SELECT first FROM inputs WHERE job = ?1 AND first < ?3 AND first >= "
            "(SELECT max(first) FROM inputs WHERE job = ?1 AND first <= ?2) ORDER BY first"
        )
        starts = [start for (start,) in self._reader.rows(query, (job, first, first + count))]
        found = [query for start in starts for query in self.chunk(job, start)[max(0, first - start) :]][:count]
        if len(found) < count:
            raise DataError(f"the journal {self._path} has no queries {first} to {first + count} of job {job!r}")
        return found

    def chunks(self, job: str) -> list[tuple[int, int]]:  # noqa: D102
        return self._reader.rows("SELECT first, length(body) FROM inputs WHERE job = ? ORDER BY first", (job,))

    def jobs_with_queries(self) -> set[str]:  # noqa: D102
        return {job for (job,) in self._reader.rows("SELECT DISTINCT job FROM inputs", ())}

    def close(self) -> None:  # noqa: D102
        for channel in (self._writer, self._epoch_channel, self._reader):
            channel.close()
        self._leases.close()

    def chunk(self, job: str, first: int) -> list[Any]:
        """Return the queries of one chunk. The last few chunks are cached, because batches are read in order."""
        with self._lock:
            found = self._chunks.pop((job, first), None)
            if found is None:
                query = "SELECT body FROM inputs WHERE job = ? AND first = ?"
                found = wire.unpack(self._reader.rows(query, (job, first))[0][0])
            self._chunks[job, first] = found
            if len(self._chunks) > _OPEN_CHUNKS:
                self._chunks.popitem(last=False)
            return found

    def _records_of(self, jobs: Collection[str]) -> tuple[list[tuple[int]], list[tuple[int]]]:
        """Return the numbers of the first and last record of each job, and those of the records between them."""
        own: dict[str, list[tuple[int]]] = {job: [] for job in jobs}
        query = "SELECT number, body FROM records WHERE number > ? ORDER BY number LIMIT ?"
        last = 0
        while rows := self._reader.rows(query, (last, _PAGE)):
            for number, body in rows:
                own.get(job_of(body), []).append((number,))
            last = rows[-1][0]
        ends = [number for numbers in own.values() for number in (*numbers[:1], *numbers[1:][-1:])]
        return ends, sorted(number for numbers in own.values() for number in numbers[1:-1])

    def _owner(self, epoch: int) -> Process | None:
        """Return the process that has acquired the lease in this epoch; None if another one has done so since."""
        rows = self._epoch_channel.rows("SELECT pid, began FROM lease WHERE epoch = ?", (epoch,))
        return Process(*rows[0]) if rows else None

    def _lease_in(self, db: sqlite3.Connection) -> Lease | None:
        row = db.execute("SELECT owner, epoch, address, lease_s, ends_s FROM lease").fetchone()
        if row is None:
            return None
        owner, epoch, address, lease_s, ends_s = row
        renewed_until_s, renewed_s = self._leases.read(epoch)
        if renewed_s:  # else it is of an earlier version, or was released
            ends_s, lease_s = renewed_until_s, renewed_s
        left_s = ends_s - time.monotonic()
        return Lease(owner, epoch, address, left_s if left_s <= lease_s else 0.0)


def _check_is_whole(journal: Path) -> None:
    """Refuse to create a journal beside the last transactions of one that was moved away, because SQLite would delete them."""
    log = journal.with_name(f"{journal.name}-wal")
    if log.exists() and log.stat().st_size and not journal.exists():  # in this order: another process may create both
        raise ConfigurationError(
            f"the journal {journal} is missing, and {log.name} has its last records: put the journal back, or delete "
            f"{log.name} before you use a copy or start without its jobs"
        )


def _lease_file(journal: Path) -> LeaseFile:
    path = journal.with_name(f"{journal.name}-lease")
    try:
        return LeaseFile(path)
    except OSError as error:
        kind = NoSpaceError if error.errno == errno.ENOSPC else ConfigurationError
        raise kind(f"the journal's file {path} cannot be written: {error.strerror}") from error


def _changed(epoch: int, change: str, values: Sequence[Sequence[Any]], db: sqlite3.Connection) -> int:
    """Return the number of changed rows."""
    _check(db, epoch)
    return db.executemany(change, values).rowcount


def _shrunk(epoch: int, db: sqlite3.Connection) -> bool:
    """Release free pages to the file system; return whether there were any."""
    _check(db, epoch)
    (free,) = db.execute("PRAGMA freelist_count").fetchone()
    db.execute(f"PRAGMA incremental_vacuum({_FREED_PAGES})").fetchall()
    (left,) = db.execute("PRAGMA freelist_count").fetchone()
    return bool(left < free)


def _check(db: sqlite3.Connection, epoch: int) -> None:
    row = db.execute("SELECT owner, epoch FROM lease").fetchone()
    if row is None or row[1] != epoch:
        now = "there is none" if row is None else f"{row[0]!r} is, in epoch {row[1]}"
        raise Fenced(f"epoch {epoch} is over: this process is no longer the coordinator; {now}")
