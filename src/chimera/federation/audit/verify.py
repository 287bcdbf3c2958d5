"""Verification of an audit log: a changed, removed, moved or missing line is named."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from chimera.core.errors import ConfigurationError
from chimera.federation.audit.line import FIRST, MOST_LINE_BYTES, AuditError, Line, decode, digest
from chimera.federation.audit.log import FILE_NAME, head


class Verified(NamedTuple):
    """A log whose lines follow one another.

    Attributes
    ----------
    lines : their number.
    head : SHA-256 of the last line.
    unwritten : lines that the ledger has and the file has not yet; the next start of the program writes them.
    compared : whether the end of the file was compared with a ledger.
    """

    lines: int
    head: str
    unwritten: int
    compared: bool


def verify(path: Path) -> Verified:
    """Verify an audit log.

    Parameters
    ----------
    path : the file, or the folder with the file and its ledger. Without the ledger, lines that were cut off the end of the
        file are not noticed.

    Raises
    ------
    AuditError : a line was changed, removed, moved or added; the message names the first one.
    ConfigurationError : there is no such file, or the ledger cannot be read.
    """
    folder = path if path.is_dir() else None
    file = path / FILE_NAME if folder else path
    end = 0, FIRST
    expected = None if folder is None else _ledger_of(folder)
    try:
        with file.open("rb") as opened:
            for line in lines_of(opened):
                end = line
    except OSError as error:
        raise ConfigurationError(f"there is no audit log {str(file)!r}: {error.strerror}") from error
    sequence, last = end
    if expected is None:
        return Verified(sequence, last, 0, False)
    if sequence > expected.sequence:
        raise AuditError(f"line {expected.sequence + 1} was added: the ledger has {expected.sequence} lines")
    known = expected.digests.get(sequence)
    if known is None:
        raise AuditError(
            f"the end is missing: line {sequence + 1} and all lines up to {expected.sequence}, the last of the ledger"
        )
    if known != last:
        raise AuditError(f"line {sequence} was changed: the ledger has another one")
    return Verified(sequence, last, expected.sequence - sequence, True)


def lines_of(file: BinaryIO) -> Iterator[tuple[int, str]]:
    """Yield number and hash of each line, in order.

    Raises
    ------
    AuditError : a line does not follow the line before it.
    """
    number, before = 0, FIRST
    while data := file.readline(MOST_LINE_BYTES + 1):
        number += 1
        if not data.endswith(b"\n"):
            if len(data) > MOST_LINE_BYTES:
                raise AuditError(f"line {number} was changed: it is longer than any line of an audit log")
            return  # a part of a line: the program ended while it wrote, and writes the line again at its next start
        line = _read(data[:-1], number)
        if line.sequence != number:
            raise AuditError(
                f"line {number} has the number {line.sequence}: a line before it was removed, added or moved"
            )
        if line.before != before:
            raise AuditError(
                f"line {number} does not follow line {number - 1}: one of the two was changed"
                if number > 1
                else "line 1 was changed: it follows another line"
            )
        before = digest(data[:-1])
        yield number, before


def _read(data: bytes, number: int) -> Line:
    try:
        return decode(data)
    except ValueError as error:
        raise AuditError(f"line {number} was changed: {error}") from None


class _Ledger(NamedTuple):
    sequence: int
    digests: dict[int, str]  # of the lines after which the file may end


def _ledger_of(folder: Path) -> _Ledger:
    """Return the end of the log by the SQLite file of a folder."""
    for file in sorted(folder.glob("*.sqlite")):
        try:
            with contextlib.closing(sqlite3.connect(f"file:{file.resolve().as_posix()}?mode=ro", uri=True)) as db:
                if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'audit_head'").fetchone():
                    continue  # another file of the same program
                sequence, last = head(db)
                rows = db.execute("SELECT sequence, line FROM audit_lines ORDER BY 1").fetchall()
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
    return _Ledger(sequence, digests)
