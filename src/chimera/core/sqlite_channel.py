"""A connection to a SQLite file of Chimera's, whose errors are told as Chimera's."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from chimera.core.errors import ConfigurationError, NoSpaceError, RunError
from chimera.core.private import FILE, make_folder

_BUSY_S = 5.0

T = TypeVar("T")


class Busy(RunError):  # noqa: N818 - it says what is the matter
    """Another process writes, and did not end in time."""


@dataclass(frozen=True)
class Kind:
    """What a file holds.

    Attributes
    ----------
    what : its name in messages, such as ``journal``.
    application : a number in the file's head that says so.
    format : the version of its tables that this version of Chimera knows.
    schema : statements that make them.
    """

    what: str
    application: int
    format: int
    schema: str


class Channel:
    """One connection to a file, for all threads of this process in turn.

    Every method raises `Busy` while another process holds the file for too long, NoSpaceError where the disk is full,
    ConfigurationError where it is none of its kind or cannot be written, and RunError for what else fails.

    Parameters
    ----------
    path : the file; `prepare` makes it.
    """

    def __init__(self, path: Path, kind: Kind) -> None:
        self._path, self._kind = path, kind
        self._lock = threading.Lock()
        try:
            make_folder(path.parent)
            with contextlib.suppress(FileExistsError):
                path.touch(
                    FILE, exist_ok=False
                )  # SQLite would go by the umask; what it puts beside gets this file's mode
        except OSError as error:
            raise ConfigurationError(f"the {kind.what} {path} cannot be written: {error.strerror}") from error
        with self._translated():
            self._db = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)

    def prepare(self) -> None:
        """Make the tables where there are none yet, in a file whose readers hold up no writer and which can shrink.

        Raises
        ------
        ConfigurationError : it is none of Chimera's, is damaged, or a later version has written it.
        """
        what, path = self._kind.what, self._path
        version, application, tables = self.snapshot(_head)
        if application == self._kind.application and version != self._kind.format:
            raise ConfigurationError(
                f"the {what} {path} has format {version}, and this version of Chimera knows {self._kind.format}: "
                "use the version that wrote it, or another folder"
            )
        if application != self._kind.application and (tables or application):
            raise ConfigurationError(f"{path} is no {what} of Chimera's: choose another folder")
        if not application:
            self.read(lambda db: db.execute("PRAGMA auto_vacuum = INCREMENTAL"))
            self.read(lambda db: db.execute("PRAGMA journal_mode = WAL"))
            self.write(self._create)
        self.read(lambda db: db.execute("PRAGMA synchronous = FULL"))

    def _create(self, db: sqlite3.Connection) -> None:
        """Make the tables, unless another process has meanwhile."""
        if _head(db)[1]:
            return
        for statement in self._kind.schema.split(";"):
            db.execute(statement)
        db.execute(f"PRAGMA application_id = {self._kind.application}")
        db.execute(f"PRAGMA user_version = {self._kind.format}")

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
        whole = f"the {self._kind.what} {self._path}"
        primary = None if code is None else code & 0xFF
        if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return Busy(f"{whole} is held by another process for longer than it takes to write")
        if primary in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            return ConfigurationError(f"{self._path} is no {self._kind.what} of Chimera's, or is damaged: {error}")
        if primary in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
            return ConfigurationError(f"{whole} cannot be written: {error}")
        if primary == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_WRITE:
            return NoSpaceError(f"{whole} cannot grow: the disk is full")
        return RunError(f"{whole}: {error}")


def _head(db: sqlite3.Connection) -> tuple[int, int, int]:
    """Return the format, whose file it is, and how many tables it has; inside of a transaction, as others may be writing it."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return version, application, tables
