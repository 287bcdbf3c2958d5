"""The audit log of a program: lines are committed with what they report in SQLite, and then appended to a file."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from chimera.core.errors import ConfigurationError, NoSpaceError
from chimera.core.private import make_folder, opener
from chimera.core.sqlite import SQLiteConnection
from chimera.federation.audit.line import FIRST, MOST_LINE_BYTES, AuditError, Entry, Line, decode, digest, encode

FILE_NAME = "audit.jsonl"
TABLES = """
CREATE TABLE audit_lines (sequence INTEGER PRIMARY KEY, line BLOB NOT NULL);
CREATE TABLE audit_head (
    only INTEGER PRIMARY KEY CHECK (only = 1), sequence INTEGER NOT NULL, digest TEXT NOT NULL, written INTEGER NOT NULL
)
"""
"""Tables that a file needs for its audit log; ``written`` is the number of lines that are in the file for certain."""
_MOST_UNSYNCED = 64
"""Lines that may be in the file without being on the disk. Until then they are in the tables as well."""


def head(db: sqlite3.Connection) -> tuple[int, str]:
    """Return number and hash of the last line."""
    row = db.execute("SELECT sequence, digest FROM audit_head").fetchone()
    return (0, FIRST) if row is None else (row[0], row[1])


class AuditLog:
    """The file of an audit log. Several processes may use it; each line is written once.

    A line is on the disk with the transaction that it reports. The file gets a line only when it is: otherwise the file could
    have lines after a crash of the machine that its tables lack.

    Parameters
    ----------
    path : the file.
    connection : a SQLite file with `TABLES`.

    Raises
    ------
    AuditError : the file is not that of the tables: lines are missing or were changed at its end.
    ConfigurationError : the file cannot be written.

    Attributes
    ----------
    last : number of the last line of `append`.
    """

    def __init__(self, path: Path, connection: SQLiteConnection) -> None:
        self._path, self._connection = path, connection
        make_folder(path.parent)
        self._known = -1, 0  # size of the file in bytes and its number of lines, as this process left it
        self._synced = 0  # lines of the file that are on the disk
        self._dropped = -1  # lines that are not in the tables any more
        self.last = 0
        self.settle()

    def append(self, db: sqlite3.Connection, entry: Entry) -> None:
        """Add a line, in the caller's transaction; the caller calls `flush` after a durable commit."""
        sequence, before = head(db)
        line = encode(Line(sequence=sequence + 1, before=before, entry=entry))
        written = self._synced  # the file has these lines, and the table need not
        if written != self._dropped:
            db.execute("DELETE FROM audit_lines WHERE sequence <= ?", (written,))
            self._dropped = written
        db.execute("INSERT INTO audit_lines VALUES (?, ?)", (sequence + 1, line))
        db.execute(
            "INSERT INTO audit_head VALUES (1, ?1, ?2, ?3) ON CONFLICT (only) "
            "DO UPDATE SET sequence = ?1, digest = ?2, written = max(written, ?3)",
            (sequence + 1, digest(line), written),
        )
        self.last = sequence + 1

    def settle(self) -> None:
        """Append all committed lines, also those whose transaction was not durable; raise what `flush` raises."""
        last, _ = self._connection.read(head)
        self._connection.settle()
        self.flush(last)

    def flush(self, last: int | None = None, *, at_once: bool = True) -> None:
        """Append the committed lines that the file lacks.

        Parameters
        ----------
        last : the last of the lines that are on the disk with their transactions; None: all are.
        at_once : whether the lines of the file are on the disk when this returns.

        Raises
        ------
        AuditError : see `AuditLog`.
        NoSpaceError : the disk is full.
        ConfigurationError : the file cannot be written.
        """
        try:
            with self._locked() as file:
                self._append_missing(file, (1 << 62) if last is None else last)
                if self._known[1] - self._synced >= (1 if at_once else _MOST_UNSYNCED):
                    os.fsync(file)
                    self._synced = self._known[1]
        except OSError as error:
            if error.errno in (28, 122):  # no space; quota
                raise NoSpaceError(f"the audit log {self._path} cannot grow: the disk is full") from error
            raise ConfigurationError(f"the audit log {self._path} cannot be written: {error.strerror}") from error

    def _append_missing(self, file: int, last: int) -> None:
        size = os.fstat(file).st_size
        if size == self._known[0]:
            at = self._known[1]
            query = "SELECT sequence, line FROM audit_lines WHERE sequence > ? AND sequence <= ? ORDER BY 1"
            rows = self._connection.rows(query, (at, last))
        else:
            ((kept,),) = self._connection.rows("SELECT coalesce(sum(length(line) + 1), 0) FROM audit_lines", ())
            size, at, end = _end_of(file, size, kept)
            rows = [row for row in self._missing(at, end) if row[0] <= last]
            os.fsync(file)  # an earlier process may have ended between its write and this
            self._synced = at
        self._known = size, at
        if not rows:
            return
        data = b"".join(line + b"\n" for _, line in rows)
        os.ftruncate(file, size)  # a part of a line that an earlier process left
        os.lseek(file, size, os.SEEK_SET)
        view = memoryview(data)
        while view:
            view = view[os.write(file, view) :]
        self._known = size + len(data), rows[-1][0]

    def _missing(self, at: int, last: bytes) -> list[tuple[int, bytes]]:
        """Return the lines after number ``at``; check that ``last``, the file's last line, is the ledger's line ``at``."""

        def read(db: sqlite3.Connection) -> list[tuple[int, bytes]]:
            sequence, expected = head(db)
            query = "SELECT sequence, line FROM audit_lines WHERE sequence > ? ORDER BY 1"
            after: list[tuple[int, bytes]] = db.execute(query, (at,)).fetchall()
            if at > sequence or sequence - at != len(after):
                raise AuditError(
                    f"the audit log {self._path} has {at} lines, and its ledger {sequence}: one of them was replaced or "
                    "shortened; restore it"
                )
            if after:
                expected = decode(after[0][1]).before
            if (digest(last) if at else FIRST) != expected:
                raise AuditError(f"line {at} of the audit log {self._path} was changed; restore the file")
            return after

        return self._connection.snapshot(read)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """Open the file, which no other process extends meanwhile."""
        import fcntl  # not on Windows, where no node runs

        file = opener(str(self._path), os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)


def _end_of(file: int, size: int, kept: int) -> tuple[int, int, bytes]:
    """Return the size without a part of a line at the end, and number and bytes of the last whole line.

    Parameters
    ----------
    kept : size in bytes of the lines that are in the tables. Of lines that were not on the disk, a crash of the machine can
        leave zeros. The first zero ends the whole lines; if a line before it is not in the tables, `_missing` refuses the file.

    Raises
    ------
    AuditError : the last line is no line of an audit log.
    """
    start = max(0, size - 2 * MOST_LINE_BYTES - kept)
    tail = os.pread(file, size - start, start).partition(b"\0")[0]
    whole = tail[: tail.rfind(b"\n") + 1]
    size = start + len(whole)
    if not whole:
        return size, 0, b""
    last = whole[:-1].rpartition(b"\n")[2]
    try:
        return size, decode(last).sequence, last
    except ValueError:
        raise AuditError("the last line of the audit log cannot be read: it was changed; restore the file") from None
