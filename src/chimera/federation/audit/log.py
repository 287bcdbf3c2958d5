"""The audit log of a program: lines are committed with what they report in SQLite, and then appended to a file."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chimera.core.errors import ConfigurationError, NoSpaceError
from chimera.core.private import make_folder, opener
from chimera.core.sqlite import SQLiteConnection
from chimera.federation.audit.line import FIRST, MAX_LINE_BYTES, AuditError, Entry, Line, decode, digest, encode

FILE_NAME = "audit.jsonl"
TABLES = """
CREATE TABLE audit_lines (sequence INTEGER PRIMARY KEY, line BLOB NOT NULL);
CREATE TABLE audit_head (
    only INTEGER PRIMARY KEY CHECK (only = 1), sequence INTEGER NOT NULL, digest TEXT NOT NULL, written INTEGER NOT NULL
)
"""
"""Tables that a file needs for its audit log; ``written`` is the number of lines that are in the file for certain."""
TABLES_OF_FILES = f"""{TABLES};
CREATE TABLE audit_files (last INTEGER PRIMARY KEY, digest TEXT NOT NULL, removed INTEGER NOT NULL)
"""
"""Tables for a log of several files: number and hash of the last line of each full file, and whether the file was removed."""
_FULL, _DIGITS = "audit-{}.jsonl", 15  # the number of the last line
_FILES = 16  # files of a log with a bound
_ALL = (1 << 63) - 1
_MAX_UNSYNCED_LINES = 64
"""Lines that may be in the file without being on the disk. Until then they are in the tables as well."""


def full_files(folder: Path) -> list[Path]:
    """Return the files of a log before the newest one, in the order of their lines."""
    return sorted(folder.glob(_FULL.format("[0-9]" * _DIGITS)))


def head(db: sqlite3.Connection) -> tuple[int, str]:
    """Return number and hash of the last line."""
    row = db.execute("SELECT sequence, digest FROM audit_head").fetchone()
    return (0, FIRST) if row is None else (row[0], row[1])


class AuditLog:
    """The file of an audit log. Several processes may use it; each line is written once.

    A line is on the disk with the transaction that it reports. The file gets a line only afterwards: otherwise, after a
    crash of the machine, the file could have lines that its tables lack.

    Parameters
    ----------
    path : the file.
    connection : a SQLite file with `TABLES`, or with `TABLES_OF_FILES`.
    max_bytes : size of all files above which the oldest one is removed; None: one file without a bound.

    Raises
    ------
    AuditError : the file is not that of the tables: lines are missing or were changed at its end.
    ConfigurationError : the file cannot be written.

    Attributes
    ----------
    last : number of the last line of `append`.
    """

    def __init__(self, path: Path, connection: SQLiteConnection, max_bytes: int | None = None) -> None:
        self._path, self._connection, self._max_bytes = path, connection, max_bytes
        # Inode and size in bytes of the file, and its last line's number, as this process left it.
        self._known: tuple[tuple[int, int], int] = ((0, -1), 0)
        self._synced = 0  # lines of the files that are on the disk
        self._dropped = -1  # lines that are not in the tables any more
        self.last = 0
        self.settle()

    def append(self, db: sqlite3.Connection, *entries: Entry) -> None:
        """Add lines, in the caller's transaction; the caller calls `flush` after a durable commit."""
        sequence, last = head(db)
        rows = []
        for sequence, entry in enumerate(entries, sequence + 1):  # noqa: B020 - the numbers continue
            line = encode(Line(sequence=sequence, before=last, entry=entry))
            last = digest(line)
            rows.append((sequence, line))
        written = self._synced  # the files have these lines, so the table does not need them
        if written != self._dropped:
            db.execute("DELETE FROM audit_lines WHERE sequence <= ?", (written,))
            self._dropped = written
        db.executemany("INSERT INTO audit_lines VALUES (?, ?)", rows)
        db.execute(
            "INSERT INTO audit_head VALUES (1, ?1, ?2, ?3) ON CONFLICT (only) "
            "DO UPDATE SET sequence = ?1, digest = ?2, written = max(written, ?3)",
            (sequence, last, written),
        )
        self.last = sequence

    def settle(self) -> None:
        """Append all committed lines, also those whose transaction was not durable; raise what `flush` raises."""
        last, _ = self._connection.read(head)
        self._connection.settle()
        self.flush(last)

    def flush(self, last: int = _ALL, *, at_once: bool = True) -> None:
        """Append the committed lines that the file lacks.

        Parameters
        ----------
        last : the last of the lines that are on the disk with their transactions; default: all are.
        at_once : whether the lines of the file are on the disk when this returns.

        Raises
        ------
        AuditError : see `AuditLog`.
        NoSpaceError : the disk is full.
        ConfigurationError : the file cannot be written.
        """
        try:
            with self._locked():
                self._append_missing(last, 1 if at_once else _MAX_UNSYNCED_LINES)
        except OSError as error:
            if error.errno in (28, 122):  # no space; quota
                raise NoSpaceError(f"the audit log {self._path} cannot grow: the disk is full") from error
            raise ConfigurationError(f"the audit log {self._path} cannot be written: {error.strerror}") from error

    def _append_missing(self, last: int, unsynced: int) -> None:
        with _opened(self._path) as file:
            size, rows = self._lacking(file, last)
            data, most = b"".join(line + b"\n" for _, line in rows), self._max_bytes
            if most is None or not size or not data or size + len(data) <= most // _FILES:
                self._extend(file, size, data, unsynced, rows)
                return
            _, at, end = _end_of(file, size, 0)
            os.fsync(file)
            self._synced = at
        self._set_aside(at, end, most)
        with _opened(self._path) as file:
            self._extend(file, 0, data, unsynced, rows)

    def _lacking(self, file: int, last: int) -> tuple[int, list[tuple[int, bytes]]]:
        """Return the size of the file without a part of a line at its end, and the lines up to ``last`` that it lacks."""
        found = os.fstat(file)
        size, at = found.st_size, self._known[1]
        if (found.st_ino, size) == self._known[0]:
            query = "SELECT sequence, line FROM audit_lines WHERE sequence > ? AND sequence <= ? ORDER BY 1"
            return size, self._connection.rows(query, (at, last))
        ((kept,),) = self._connection.rows("SELECT coalesce(sum(length(line) + 1), 0) FROM audit_lines", ())
        size, at, end = _end_of(file, size, kept)
        if not at and (full := full_files(self._path.parent)):  # a former process ended before the first line
            with _opened(full[-1]) as before:
                _, at, end = _end_of(before, os.fstat(before).st_size, 0)
        rows = [row for row in self._missing(at, end) if row[0] <= last]
        os.fsync(file)  # an earlier process may have ended between its write and this
        self._synced = at
        self._known = (found.st_ino, size), at
        return size, rows

    def _extend(self, file: int, size: int, data: bytes, unsynced: int, rows: list[tuple[int, bytes]]) -> None:
        """Write lines after the first ``size`` bytes; wait for the disk if ``unsynced`` lines are not on it."""
        if data:
            os.ftruncate(file, size)  # a part of a line that an earlier process left
            os.lseek(file, size, os.SEEK_SET)
            view = memoryview(data)
            while view:
                view = view[os.write(file, view) :]
            self._known = (os.fstat(file).st_ino, size + len(data)), rows[-1][0]
        if self._known[1] - self._synced >= unsynced:
            os.fsync(file)
            self._synced = self._known[1]

    def _set_aside(self, at: int, last: bytes, most: int) -> None:
        """Rename the file, whose last line is ``last`` with the number ``at``; remove the oldest files above the bound.

        The table records each step in advance, so that `verify` finds no fault if the process ends between two steps.
        """

        def note(statement: str, *values: Any) -> None:
            self._connection.write(lambda db: db.execute(statement, values))

        note("INSERT OR REPLACE INTO audit_files VALUES (?, ?, 0)", at, digest(last))
        self._path.rename(self._path.with_name(_FULL.format(f"{at:0{_DIGITS}}")))
        sizes = {file: file.stat().st_size for file in full_files(self._path.parent)}
        above = sum(sizes.values()) - most * (_FILES - 1) // _FILES
        for file, size in sizes.items():
            if above <= 0:
                return
            number = int(file.stem.rpartition("-")[2])
            note("UPDATE audit_files SET removed = 1 WHERE last = ?", number)
            file.unlink()
            note("DELETE FROM audit_files WHERE last < ?", number)
            above -= size

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
    def _locked(self) -> Iterator[None]:
        """Hold the folder, in which no other process extends the log meanwhile."""
        import fcntl  # not on Windows, where no node runs

        make_folder(self._path.parent)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    file = opener(str(path), os.O_RDWR | os.O_CREAT)
    try:
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
    start = max(0, size - 2 * MAX_LINE_BYTES - kept)
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
