"""A connection to the file of a journal, whose errors are told as Chimera's."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from chimera.core.errors import ConfigurationError, RunError

_BUSY_S = 5.0

T = TypeVar("T")


class Busy(RunError):  # noqa: N818 - it says what is the matter
    """Another process writes, and did not end in time."""


class Channel:
    """One connection to a journal's file, for all threads of this process in turn.

    Every method raises `Busy` while another process holds the file for too long, ConfigurationError where it is no journal or
    cannot be written, and RunError for what else fails.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        with self._translated():
            self._db = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)

    def keep_a_log(self) -> None:
        """Let readers of the file, from now on and in any process, hold up no writer."""
        self.read(lambda db: db.execute("PRAGMA journal_mode = WAL"))

    def shrinks(self) -> None:
        """Let the file, which has nothing in it yet, be one that can give free pages back to the disk."""
        self.read(lambda db: db.execute("PRAGMA auto_vacuum = INCREMENTAL"))

    def write(self, work: Callable[[sqlite3.Connection], T], *, busy_s: float = _BUSY_S) -> T:
        """Do what ``work`` does, all of it or, if it raises, nothing."""
        with self._lock, self._translated():
            self._db.execute(f"PRAGMA busy_timeout = {round(busy_s * 1000)}")
            self._db.execute("BEGIN IMMEDIATE")
            try:
                result = work(self._db)
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            return result

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return what ``work`` does."""
        with self._lock, self._translated():
            return work(self._db)

    def snapshot(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Read several things as they were at one moment."""
        with self._lock, self._translated():
            self._db.execute("BEGIN")
            try:
                return work(self._db)
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    def rows(self, question: str, values: Sequence[Any]) -> list[Any]:
        """Return the rows that a question finds."""
        return self.read(lambda db: db.execute(question, values).fetchall())

    def close(self) -> None:
        """Close it."""
        with self._lock, self._translated():
            self._db.close()

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._said(error) from error

    def _said(self, error: sqlite3.Error) -> Exception:
        """Return what a failure of the library means."""
        code = getattr(error, "sqlite_errorcode", None)
        primary = None if code is None else code & 0xFF
        if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return Busy(f"the journal {self._path} is held by another process for longer than it takes to write")
        if primary in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            return ConfigurationError(f"{self._path} is no journal of Chimera's, or is damaged: {error}")
        if primary in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
            return ConfigurationError(f"the journal {self._path} cannot be written: {error}")
        return RunError(f"the journal {self._path}: {error}")
