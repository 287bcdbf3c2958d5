"""The answers that a node keeps until their drivers have them, and the calls that it must not run again."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from chimera.core.private import make_folder, opener
from chimera.core.sqlite import SQLiteConnection, SQLiteFormat
from chimera.engines.http.hosting.hosted_actor import Reply

_INLINE = 1 << 16
"""Larger answers are files."""
_KEPT_S = 7 * 86_400.0  # the driver of an older answer does not come back
STARTED, DONE, SETTLED = range(3)
_FORMAT = SQLiteFormat(
    what="store of answers",
    application=0x43684E64,
    format=1,
    schema="""
        CREATE TABLE runs (run TEXT PRIMARY KEY, requester TEXT NOT NULL, floor INTEGER NOT NULL) WITHOUT ROWID;
        CREATE TABLE calls (
            run TEXT NOT NULL, number INTEGER NOT NULL, state INTEGER NOT NULL, status INTEGER, type TEXT, size INTEGER,
            body BLOB, PRIMARY KEY (run, number)
        ) WITHOUT ROWID
    """,
)


class Kept(NamedTuple):
    """A call that was started.

    Attributes
    ----------
    state : `STARTED`: it has no answer. `DONE`: its answer is here. `SETTLED`: the driver does not need the answer.
    body : the answer, or the file that contains it.
    """

    state: int
    status: int = 0
    type: str = ""
    size: int = 0
    body: bytes | Path = b""

    @classmethod
    def of(cls, reply: Reply) -> Kept:
        """Return an answer that is only in memory."""
        return cls(DONE, reply.status, reply.content_type, len(reply.body), reply.body)


class Store:
    """The file ``answers.sqlite`` of a node's folder, and large answers beside it.

    A crash of the process loses nothing that was written. A crash of the machine may lose the last answers; the actors that
    gave them are lost then as well.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "answers"
        make_folder(self._folder)
        self._db = SQLiteConnection(folder / "answers.sqlite", _FORMAT)
        self._db.prepare()
        self._lock = threading.Lock()
        self._runs: dict[str, tuple[str, int]] = {
            run: (requester, floor)
            for run, requester, floor in self._db.rows("SELECT run, requester, floor FROM runs", ())
        }
        calls = self._db.rows("SELECT run, number FROM calls", ())
        self._last: dict[str, int] = {}  # largest number of a call that is in the file, by run
        for run, number in calls:
            self._last[run] = max(number, self._last.get(run, 0))
        kept = {self._file(run, number) for run, number in calls}
        before_s = time.time() - _KEPT_S
        for file in self._folder.iterdir():
            if file not in kept or file.stat().st_mtime < before_s:
                file.unlink(missing_ok=True)

    def _file(self, run: str, number: int) -> Path:
        return self._folder / f"{run}.{number}"

    def owns(self, run: str, name: str, fingerprint: str) -> bool:
        """Return whether a run belongs to the driver with this certificate; a new run does from now on.

        A name alone is no owner: once its certificate is revoked, another requester can join under the name.
        """
        requester = f"{name} {fingerprint}"
        with self._lock:
            known = self._runs.get(run)
            if known is None:
                self._db.write(
                    lambda db: db.execute("INSERT INTO runs VALUES (?, ?, 0)", (run, requester)), durable=False
                )
                known = self._runs[run] = (requester, 0)
            return known[0] == requester

    def find(self, run: str, number: int) -> Kept | None:
        """Return the state of a call; None if it was not started."""
        if number < self._runs.get(run, ("", 0))[1]:
            return Kept(SETTLED)
        if number > self._last.get(run, 0):  # a new call, as most are
            return None
        query = "SELECT state, status, type, size, body FROM calls WHERE run = ? AND number = ?"
        for state, status, kind, size, body in self._db.rows(query, (run, number)):
            if state != DONE:
                return Kept(state)
            return Kept(state, status, kind, size, self._file(run, number) if body is None else body)
        return None

    def _note(self, run: str, number: int) -> None:
        with self._lock:
            self._last[run] = max(number, self._last.get(run, 0))

    def begin(self, run: str, number: int) -> None:
        """Note that a call is started which another process of the node could run again."""
        self._note(run, number)
        statement = "INSERT INTO calls (run, number, state) VALUES (?, ?, ?)"
        self._db.write(lambda db: db.execute(statement, (run, number, STARTED)), durable=False)

    def finish(self, run: str, number: int, reply: Reply) -> Kept:
        """Keep an answer, unless the driver does not need it any more; return it in the form to send."""
        body: bytes | Path = reply.body
        if len(reply.body) > _INLINE:
            body = self._file(run, number)
            with open(body, "wb", opener=opener) as file:
                file.write(reply.body)
        kept = Kept.of(reply)._replace(body=body)
        inline = body if isinstance(body, bytes) else None
        self._note(run, number)
        values = (run, number, DONE, kept.status, kept.type, kept.size, inline)

        def work(db: sqlite3.Connection) -> bool:
            """Keep the answer, unless its call was settled meanwhile; the lock of the file orders this and `settle`."""
            known = db.execute("SELECT state FROM calls WHERE run = ? AND number = ?", (run, number)).fetchone()
            if number < self._runs[run][1] or known == (SETTLED,):
                return False
            db.execute("INSERT OR REPLACE INTO calls VALUES (?, ?, ?, ?, ?, ?, ?)", values)
            return True

        if self._db.write(work, durable=False):
            return kept
        self._remove(run, number)
        return Kept(SETTLED)

    def settle(self, run: str, floor: int, numbers: list[int]) -> None:
        """Forget the answers of the calls below ``floor``, and of these calls."""
        with self._lock:
            if run not in self._runs:
                return
            requester, before = self._runs[run]
            if floor <= before and not numbers:
                return
            floor = max(floor, before)
            self._runs[run] = requester, floor

        def work(db: sqlite3.Connection) -> list[Any]:
            large = "SELECT number FROM calls WHERE run = ? AND number < ? AND state = ? AND body IS NULL"
            gone = [number for (number,) in db.execute(large, (run, floor, DONE)).fetchall()]
            db.execute("DELETE FROM calls WHERE run = ? AND number < ?", (run, floor))
            db.execute("UPDATE runs SET floor = ? WHERE run = ?", (floor, run))
            later = [(SETTLED, run, number) for number in numbers if number >= floor]
            db.executemany("UPDATE calls SET state = ?, body = NULL WHERE run = ? AND number = ?", later)
            return gone + [number for _, _, number in later]

        for number in self._db.write(work, durable=False):
            self._remove(run, number)

    def _remove(self, run: str, number: int) -> None:
        with contextlib.suppress(OSError):
            self._file(run, number).unlink()

    def close(self) -> None:
        """Close the file."""
        self._db.close()
