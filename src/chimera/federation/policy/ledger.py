"""The ledger of a node: runs, numbers of calls, spent epsilon, and totals of days, in one SQLite file with the audit log."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from chimera.core.sqlite import SQLiteConnection, SQLiteFormat
from chimera.federation.audit import log as audit
from chimera.federation.audit.line import Entry
from chimera.federation.policy import accounts

T = TypeVar("T")

FILE_NAME = "ledger.sqlite"
_TABLES = f"""
CREATE TABLE clock (only INTEGER PRIMARY KEY CHECK (only = 1), latest_s REAL NOT NULL);
CREATE TABLE bounds (only INTEGER PRIMARY KEY CHECK (only = 1), privacy TEXT NOT NULL);
CREATE TABLE runs (
    number INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL UNIQUE, requester TEXT NOT NULL, fingerprint TEXT NOT NULL,
    settings TEXT NOT NULL, digest TEXT NOT NULL, state TEXT NOT NULL, asked_s REAL NOT NULL, updates INTEGER NOT NULL,
    evaluations INTEGER NOT NULL
);
CREATE TABLE calls (
    run TEXT NOT NULL, number INTEGER NOT NULL, requester TEXT NOT NULL, fingerprint TEXT NOT NULL, kind TEXT NOT NULL,
    method TEXT NOT NULL, noise REAL NOT NULL, epsilon REAL, state TEXT NOT NULL, stored TEXT NOT NULL,
    PRIMARY KEY (run, number)
) WITHOUT ROWID;
CREATE INDEX reserved_calls ON calls (state) WHERE state = 'reserved';
CREATE TABLE days (
    day TEXT PRIMARY KEY, updates INTEGER NOT NULL, evaluations INTEGER NOT NULL, bytes INTEGER NOT NULL,
    refusals INTEGER NOT NULL
);
{accounts.TABLES};
{audit.TABLES}
"""
_KIND = SQLiteFormat("ledger", 0x43484C44, 1, _TABLES)


class Day(Struct, frozen=True):
    """Totals of one day.

    Attributes
    ----------
    updates, evaluations, size, refusals : updates and evaluations that were allowed, bytes of requests and answers, and refused
        requests.
    """

    updates: int = 0
    evaluations: int = 0
    size: int = 0
    refusals: int = 0


class Ledger:
    """The ledger in a folder. The lines of the audit log are in the transaction that they report, and in the log's file.

    Parameters
    ----------
    folder : the folder; it is created if it does not exist.
    clock : returns seconds since 1970.

    Raises
    ------
    ConfigurationError : the file is no ledger, or cannot be written.
    AuditError : the audit log is not that of the ledger.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self.clock, self._latest_s = clock, 0.0
        self._lines = 0  # of this transaction
        self._connection = SQLiteConnection(folder / FILE_NAME, _KIND)
        try:
            self._connection.prepare()
            self._log = audit.AuditLog(folder / audit.FILE_NAME, self._connection)
        except BaseException:
            self._connection.close()
            raise

    def write(self, work: Callable[[sqlite3.Connection], T], *, durable: bool = True) -> T:
        """Run ``work`` in a transaction. The file gets the audit lines of all transactions up to the last durable one.

        Parameters
        ----------
        durable : whether the transaction with its audit lines, and all earlier ones, are on the disk when this returns.
        """
        self._lines = 0
        made = self._connection.write(work, durable=durable)
        if self._lines and durable:
            self._log.flush(self._log.last, at_once=False)  # the tables have the lines, too
        return made

    def settle(self) -> None:
        """Return once all transactions and their audit lines are on the disk."""
        self._log.settle()

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run ``work`` on one consistent state."""
        return self._connection.snapshot(work)

    def report(self, db: sqlite3.Connection, now_s: float, **entry: Any) -> None:
        """Add a line to the audit log, in a transaction."""
        text = datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._log.append(db, Entry(time=text, **entry))
        self._lines += 1
        db.execute(
            "INSERT INTO clock VALUES (1, ?1) ON CONFLICT (only) DO UPDATE SET latest_s = max(latest_s, ?1)", (now_s,)
        )

    def now_s(self, db: sqlite3.Connection) -> float:
        """Return the time, in seconds since 1970. A clock that was set back does not begin a day a second time."""
        row = db.execute("SELECT latest_s FROM clock").fetchone()
        self._latest_s = max(self.clock(), self._latest_s, row[0] if row else 0.0)
        return self._latest_s

    def close(self) -> None:
        """Close the files."""
        try:
            self.settle()
        finally:
            self._connection.close()


def day_of(now_s: float) -> str:
    """Return the date in local time."""
    return datetime.fromtimestamp(now_s).astimezone().date().isoformat()


def minute_of(now_s: float) -> int:
    """Return the minute of the day in local time, from 0 to 1439."""
    local = datetime.fromtimestamp(now_s).astimezone()
    return local.hour * 60 + local.minute


def totals(db: sqlite3.Connection, day: str) -> Day:
    """Return the totals of a day."""
    row = db.execute("SELECT updates, evaluations, bytes, refusals FROM days WHERE day = ?", (day,)).fetchone()
    return Day(*row) if row else Day()


def count(
    db: sqlite3.Connection, day: str, *, updates: int = 0, evaluations: int = 0, size: int = 0, refusals: int = 0
) -> None:
    """Add to the totals of a day."""
    db.execute(
        "INSERT INTO days VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (day) DO UPDATE SET "
        "updates = updates + ?2, evaluations = evaluations + ?3, bytes = bytes + ?4, refusals = refusals + ?5",
        (day, updates, evaluations, size, refusals),
    )
