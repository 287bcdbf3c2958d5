"""Verification of an audit log: a changed, removed, moved or missing line is named."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from chimera.core.errors import ConfigurationError
from chimera.federation.audit.line import FIRST, MAX_LINE_BYTES, AuditError, Line, decode, digest
from chimera.federation.audit.log import FILE_NAME, full_files, head

_TIME_CHARACTERS = 30  # an altered line may have any text as its time


class Verified(NamedTuple):
    """A log whose lines follow one another.

    Attributes
    ----------
    lines : the number of the last line.
    head : SHA-256 of the last line.
    unwritten : lines of the ledger that are not in the file yet; the next start of the program writes them.
    compared : whether the end of the file was compared with a ledger.
    removed : number of the first lines, which the program removed to keep the bound of the log.
    """

    lines: int
    head: str
    unwritten: int
    compared: bool
    removed: int = 0


def verify(path: Path) -> Verified:
    """Verify an audit log.

    Parameters
    ----------
    path : the file, or the folder with the file and its ledger. Without the ledger, lines that were cut off the end of the
        file are not noticed.

    Raises
    ------
    AuditError : a line was changed, removed, moved or added. The message names the file, the number of the first such line, and
        the time in that line; or, if it has none that can be read, the time in the line before.
    ConfigurationError : there is no such file, or the ledger cannot be read.
    """
    if not path.is_dir():
        return _verified([path], None)
    while True:
        files = _files_of(path)
        try:
            return _verified(files, path)
        except (AuditError, ConfigurationError):
            if files == _files_of(path):  # otherwise the program has begun another file meanwhile
                raise


def _files_of(folder: Path) -> list[Path]:
    """Return the files of a log. The newest one is missing if the program ended after it had renamed the one before."""
    full, newest = full_files(folder), folder / FILE_NAME
    return [*full, newest] if newest.exists() or not full else full


def _verified(files: Sequence[Path], folder: Path | None) -> Verified:
    expected = None if folder is None else _ledger_of(folder)
    begin = end = (0, FIRST) if expected is None else _begin_of(files[0], expected)
    at_ledger = end  # the line that was the last of the ledger before the file was read
    time = time_at_ledger = added_time = ""
    for file in files:
        try:
            with file.open("rb") as opened:
                for number, last, line_time in _lines_of(opened, *end, time, whole=file != files[-1]):
                    end, time = (number, last), line_time
                    if expected is not None and number <= expected.sequence:
                        at_ledger, time_at_ledger = end, time
                    added_time = added_time or (time if expected and number > expected.sequence else "")
        except OSError as error:
            raise ConfigurationError(f"there is no audit log {str(file)!r}: {error.strerror}") from error
        except _AlteredError as error:
            raise AuditError(f"the audit log {file} was altered at {error}") from None
    if expected is None or folder is None:
        return Verified(*end, 0, False)
    log, (sequence, last) = f"the audit log {files[-1]} was altered", at_ledger
    if end[0] > expected.sequence and end[0] > _ledger_of(folder).sequence:  # a running program adds lines
        added = expected.sequence + 1
        raise AuditError(
            f"{log} at line {added}{_at(added_time)}: line {added} was added, since the ledger has {expected.sequence} lines"
        )
    known = expected.digests.get(sequence)
    if known is None:
        raise AuditError(
            f"{log} at line {sequence + 1}{_after(time_at_ledger)}: the end is missing: line {sequence + 1} and all lines up "
            f"to {expected.sequence}, the last of the ledger"
        )
    if known != last:
        raise AuditError(
            f"{log} at line {sequence}{_at(time_at_ledger)}: line {sequence} was changed: the ledger has another one"
        )
    return Verified(sequence, last, expected.sequence - sequence, True, begin[0])


class _AlteredError(Exception):
    """A line does not follow the line before it; the message begins with its number."""


def _at(time: str) -> str:
    return f" of {time[:_TIME_CHARACTERS]}" if time else ""


def _after(time: str) -> str:
    return f", after the line of {time[:_TIME_CHARACTERS]}" if time else ""


def _lines_of(file: BinaryIO, number: int, before: str, time: str, *, whole: bool) -> Iterator[tuple[int, str, str]]:
    """Yield number, hash and time of each line, in order.

    Parameters
    ----------
    number, before, time : number, hash and time of the line before the first one; 0, `FIRST` and "": there is none.
    whole : whether the file must end with a whole line.

    Raises
    ------
    _AlteredError : a line does not follow the line before it.
    """
    while data := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if not data.endswith(b"\n"):
            changed = f"line {number}{_after(time)}: line {number} was changed:"
            if len(data) > MAX_LINE_BYTES:
                raise _AlteredError(f"{changed} it is longer than any line of an audit log")
            if whole:
                raise _AlteredError(f"{changed} it ends with its file")
            return  # a part of a line: the program ended while it wrote, and writes the line again at its next start
        line = _read(data[:-1], number, time)
        time = line.entry.time
        where = f"line {number}{_at(time)}:"
        if line.sequence != number:
            raise _AlteredError(
                f"{where} line {number} has the number {line.sequence}, so a line before it was removed, added or moved"
            )
        if line.before != before:
            raise _AlteredError(
                f"{where} line {number} does not follow line {number - 1}, so one of the two was changed"
                if number > 1
                else f"{where} line 1 was changed: it follows another line"
            )
        before = digest(data[:-1])
        yield number, before, time


def _read(data: bytes, number: int, time: str) -> Line:
    try:
        return decode(data)
    except ValueError as error:
        raise _AlteredError(f"line {number}{_after(time)}: line {number} was changed: {error}") from None


def _begin_of(file: Path, expected: _Ledger) -> tuple[int, str]:
    """Return number and hash of the last line that the program has removed; 0 and `FIRST` if it has all lines."""
    with contextlib.suppress(OSError, ValueError), file.open("rb") as opened:
        number = decode(opened.readline(MAX_LINE_BYTES + 1).removesuffix(b"\n")).sequence - 1
        if number in expected.removed:
            return number, expected.removed[number]
    return 0, FIRST


class _Ledger(NamedTuple):
    sequence: int
    digests: dict[int, str]  # digests of the lines after which the file may end
    removed: dict[int, str]  # digests of the lines before the files that the program has kept


def _ledger_of(folder: Path) -> _Ledger:
    """Return the end of the log by the SQLite file of a folder."""
    for file in sorted(folder.glob("*.sqlite")):
        try:
            with contextlib.closing(sqlite3.connect(f"file:{file.resolve().as_posix()}?mode=ro", uri=True)) as db:
                db.execute("BEGIN")  # all reads see one state
                if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'audit_head'").fetchone():
                    continue  # another file of the same program
                sequence, last = head(db)
                rows = db.execute("SELECT sequence, line FROM audit_lines ORDER BY 1").fetchall()
                several = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'audit_files'").fetchone()
                query = "SELECT last, digest FROM audit_files WHERE removed"
                removed = dict(db.execute(query).fetchall()) if several else {}
                break
        except sqlite3.Error as error:
            raise ConfigurationError(f"the ledger {file} cannot be read: {error}") from error
    else:
        raise ConfigurationError(
            f"the folder {str(folder)!r} has no ledger (a file *.sqlite): name the file of the log"
        )
    digests = {sequence: last}
    try:
        digests |= {number - 1: decode(line).before for number, line in rows}
    except ValueError as error:
        raise ConfigurationError(f"the ledger {file} was changed: {error}") from None
    return _Ledger(sequence, digests, removed)
