"""The audit log of a program that makes no decisions, such as a hub: lines are written in batches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chimera.core.sqlite import SQLiteConnection, SQLiteFormat
from chimera.federation.audit import log
from chimera.federation.audit.line import Entry

FILE_NAME = "audit.sqlite"
_KIND = SQLiteFormat("audit log", 0x43484155, 1, log.TABLES_OF_FILES)
MAX_BYTES = 1 << 30
"""Size of the files of a log above which the oldest one is removed, by default."""
_MAX_WAITING = 10_000  # entries in memory


class AuditJournal:
    """The audit log in a folder, for many entries a second. A crash loses the entries of the last moment.

    Parameters
    ----------
    folder : the folder; it is created if it does not exist.
    every_s : longest time between an entry and its line in the file, in seconds.
    max_bytes : size of all files above which the oldest one is removed. There are about 16 files.
    clock : returns seconds since 1970.

    Raises
    ------
    AuditError : the file of the log is not that of its tables.
    ConfigurationError : a file cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        *,
        every_s: float = 1.0,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock, self._every_s = clock, every_s
        self._waiting: list[Entry] = []
        self._changed, self._closed = threading.Condition(), False
        self.error: Exception | None = None
        self._connection = SQLiteConnection(folder / FILE_NAME, _KIND)
        try:
            self._connection.prepare()
            self._log = log.AuditLog(folder / log.FILE_NAME, self._connection, max_bytes)
        except BaseException:
            self._connection.close()
            raise
        self._thread = threading.Thread(target=self._write, name="chimera-audit", daemon=True)
        self._thread.start()

    def note(self, decision: str, **entry: Any) -> None:
        """Add an entry, see `Entry`. It returns at once, unless too many entries wait for the disk.

        Raises
        ------
        Exception : an earlier entry could not be written, for instance because the disk is full.
        """
        made = _entry(self._clock(), decision, entry)
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) < _MAX_WAITING or self.error is not None)
            if self.error is not None:
                raise self.error
            self._waiting.append(made)
            if len(self._waiting) in (1, _MAX_WAITING):
                self._changed.notify_all()

    def close(self) -> None:
        """Write the entries that wait, and close the files."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        self._connection.close()

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting) or self._closed)
                if not self._closed and len(self._waiting) < _MAX_WAITING:
                    self._changed.wait_for(lambda: self._closed or len(self._waiting) >= _MAX_WAITING, self._every_s)
                waiting, self._waiting = self._waiting, []
                self._changed.notify_all()
                closed = self._closed
            try:
                self._commit(waiting)
            except Exception as error:
                with self._changed:
                    self.error = error
                    self._changed.notify_all()
                return
            if closed:
                return

    def _commit(self, entries: list[Entry]) -> None:
        if entries:
            self._connection.write(lambda db: self._log.append(db, *entries))
            self._log.flush()


def add(folder: Path, decision: str, **entry: Any) -> None:
    """Add a line to the log in a folder, in which the program of the log may run meanwhile.

    Raises
    ------
    AuditError : the file of the log is not that of its tables.
    ConfigurationError : a file cannot be written.
    """
    connection = SQLiteConnection(folder / FILE_NAME, _KIND)
    try:
        connection.prepare()
        opened = log.AuditLog(folder / log.FILE_NAME, connection)
        made = _entry(time.time(), decision, entry)
        connection.write(lambda db: opened.append(db, made))
        opened.flush()
    finally:
        connection.close()


def _entry(now_s: float, decision: str, entry: dict[str, Any]) -> Entry:
    return Entry(time=datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), decision=decision, **entry)
