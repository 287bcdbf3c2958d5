"""Connections to SQLite files of Chimera, with errors translated to Chimera's."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from chimera.core.errors import ConfigurationError, NoSpaceError, RunError
from chimera.core.private import FILE, make_folder

_BUSY_S = 5.0

T = TypeVar("T")


class Busy(RunError):  # noqa: N818 - it says what is the matter
    """Another process writes to the file, and did not finish in time."""


@dataclass(frozen=True)
class SQLiteFormat:
    """The type of a file.

    Attributes
    ----------
    what : its name in messages, such as ``journal``.
    application : the number in the file's header that identifies the type.
    format : the version of the tables that this version of Chimera supports.
    schema : statements that create the tables.
    """

    what: str
    application: int
    format: int
    schema: str


class SQLiteConnection:
    """One connection to a file, used by all threads of this process in turn.

    Every method raises `Busy` if another process locks the file for too long, NoSpaceError if the disk is full,
    ConfigurationError if the file has another type or is not writable, and RunError for other failures.

    Parameters
    ----------
    path : the file; `prepare` creates it.
    """

    def __init__(self, path: Path, kind: SQLiteFormat) -> None:
        self._path, self._kind = path, kind
        self._lock = threading.Lock()
        self._durable, self._busy_s = True, _BUSY_S
        try:
            make_folder(path.parent)
            with contextlib.suppress(FileExistsError):
                path.touch(
                    FILE, exist_ok=False
                )  # SQLite would use the umask; its further files get the mode of this file
        except OSError as error:
            raise ConfigurationError(f"the {kind.what} {path} cannot be written: {error.strerror}") from error
        with self._translated():
            self._db = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)

    def prepare(self) -> None:
        """Create the tables if there are none, in a file whose readers do not block writers and which can shrink.

        Raises
        ------
        ConfigurationError : the file is not Chimera's, is damaged, or was written by a later version.
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
            self._write_ahead()
            self.write(self._create)
        self.read(lambda db: db.execute("PRAGMA synchronous = FULL"))

    def _write_ahead(self) -> None:
        """Change the journal mode. SQLite refuses this at once during another transaction, so wait for its end and repeat."""
        deadline_s = time.monotonic() + _BUSY_S
        while True:
            try:
                self.read(lambda db: db.execute("PRAGMA journal_mode = WAL"))
                return
            except Busy:
                if time.monotonic() > deadline_s:
                    raise
                self.read(lambda db: db.executescript("BEGIN EXCLUSIVE; ROLLBACK"))  # waits for all other transactions

    def _create(self, db: sqlite3.Connection) -> None:
        """Create the tables, unless another process has done so meanwhile."""
        if _head(db)[1]:
            return
        for statement in self._kind.schema.split(";"):
            db.execute(statement)
        db.execute(f"PRAGMA application_id = {self._kind.application}")
        db.execute(f"PRAGMA user_version = {self._kind.format}")

    def write(self, work: Callable[[sqlite3.Connection], T], *, busy_s: float = _BUSY_S, durable: bool = True) -> T:
        """Run ``work`` in a transaction: if it raises, nothing changes.

        Parameters
        ----------
        durable : whether this transaction and all earlier ones are on the disk when this returns. Without it, a crash
            of the process loses no transaction, but a crash of the machine can lose those after the last durable one.
        """
        with self._lock, self._translated():
            if busy_s != self._busy_s:
                self._db.execute(f"PRAGMA busy_timeout = {round(busy_s * 1000)}")
                self._busy_s = busy_s
            if durable != self._durable:  # SQLite ignores it within a transaction
                self._db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                self._durable = durable
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
        """Return the result of ``work``."""
        with self._lock, self._translated():
            return work(self._db)

    def snapshot(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return the result of several reads of one consistent state."""
        with self._lock, self._translated():
            self._db.execute("BEGIN")
            try:
                return work(self._db)
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    def settle(self) -> None:
        """Return once all transactions are on the disk, also those that were not durable."""
        self.read(lambda db: db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall())

    def rows(self, query: str, values: Sequence[Any]) -> list[Any]:
        """Return the rows of a query."""
        return self.read(lambda db: db.execute(query, values).fetchall())

    def close(self) -> None:
        """Close the connection."""
        with self._lock, self._translated():
            self._db.close()

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._translate(error) from error

    def _translate(self, error: sqlite3.Error) -> Exception:
        """Return the error of Chimera for an error of the library."""
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
    """Return format, application number and number of tables, in a transaction: other processes may be writing."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return version, application, tables
