"""The journal in a SQLite file."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from chimera.core.errors import ConfigurationError, DataError, RunError
from chimera.inference.journal.journal import Journal, Output
from chimera.inference.journal.lease_file import LeaseFile
from chimera.inference.journal.records import Cancelled, Dropped
from chimera.inference.journal.sqlite import FORMAT, SqliteJournal
from inference.journal_kit import LIMIT_S, LONG_S, JournalKit, acquired, stdout

_STOPS_INSIDE = """
import os, signal, sqlite3
lease = journal.acquire("old", "", 0.1)
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("BEGIN IMMEDIATE")
print(lease.epoch, flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


class TestSqliteJournal(JournalKit):
    """All that a journal promises."""

    def opened(self, place: Path) -> Journal:
        return SqliteJournal(place)

    def source(self) -> str:
        return (
            "import sys; from pathlib import Path; from chimera.inference.journal.sqlite import SqliteJournal; "
            "journal = SqliteJournal(Path(sys.argv[1]))"
        )

    @pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports which processes are stopped: run it there")
    def test_an_owner_stopped_inside_of_a_write_keeps_nobody_out(self, journal: Journal, place: Path) -> None:
        with self.running(_STOPS_INSIDE, place) as old:
            epoch = int(stdout(old).readline())
            os.waitpid(old.pid, os.WUNTRACED)  # until it is stopped
            lease = acquired(journal, "new", LONG_S)
            assert lease.epoch > epoch
            journal.append(lease.epoch, [Cancelled("1", "", 0.0)])
            assert old.wait(LIMIT_S) == -9


def test_processes_may_make_the_file_at_once(tmp_path: Path) -> None:
    program = TestSqliteJournal().source() + "; journal.acquire(sys.argv[2], '', 60.0)"
    command = [sys.executable, "-c", program, str(tmp_path / "new" / "journal.sqlite")]
    processes = [subprocess.Popen([*command, str(i)], stderr=subprocess.PIPE, text=True) for i in range(3)]
    assert [(process.communicate(timeout=LIMIT_S)[1], process.returncode) for process in processes] == [("", 0)] * 3


def test_a_lease_from_before_a_restart_of_the_machine_is_over(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal.sqlite")
    journal.acquire("c0", "", 0.6)
    later_s = time.monotonic() + 1e6  # the clock had counted for longer then
    with sqlite3.connect(tmp_path / "journal.sqlite") as database:
        database.execute("UPDATE lease SET ends_s = ?", (later_s,))
    database.close()
    with closing(LeaseFile(tmp_path / "journal.sqlite-lease")) as leases:
        leases.write(1, later_s, 0.6)
    lease = journal.acquire("c1", "", 0.6)
    assert lease is not None
    assert lease.epoch == 2
    journal.close()


def test_a_renewal_does_not_wait_for_a_write_in_progress(tmp_path: Path) -> None:
    with closing(SqliteJournal(tmp_path / "journal.sqlite")) as journal:
        lease = acquired(journal, "c0", LONG_S)
        with closing(sqlite3.connect(tmp_path / "journal.sqlite", isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            journal.renew(lease.epoch, LONG_S + 9)  # before: "held by another process" after five seconds
        last = journal.lease()
        assert last is not None
        assert last.left_s > LONG_S


def test_a_lease_of_an_earlier_version_counts(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    SqliteJournal(path).close()
    with sqlite3.connect(path) as database:
        row = ("old", 7, "http://127.0.0.1:1", 60.0, time.monotonic() + 60.0, os.getpid(), "")
        database.execute("INSERT INTO lease VALUES (1, ?, ?, ?, ?, ?, ?, ?)", row)
    database.close()
    with closing(SqliteJournal(path)) as journal:
        assert journal.acquire("new", "", LONG_S) is None
        journal.release(7)
        assert acquired(journal, "new", LONG_S).epoch == 8


def test_what_is_no_journal_is_refused_in_one_line(tmp_path: Path) -> None:
    text, other, newer, below = (tmp_path / name for name in ("text", "other", "newer", "text/journal.sqlite"))
    text.write_text("These are not the records that you are looking for.\n" * 100)
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE birds (name TEXT)")
    database.close()
    SqliteJournal(newer).close()
    with sqlite3.connect(newer) as database:
        database.execute(f"PRAGMA user_version = {FORMAT + 1}")
    database.close()
    for path, said in ((text, "damaged"), (other, "no journal of Chimera"), (newer, "format 2"), (below, "written")):
        before = path.read_bytes() if path.exists() else None
        with pytest.raises(ConfigurationError, match=said) as caught:
            SqliteJournal(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
        assert before is None or path.read_bytes() == before


def test_damage_is_told_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    journal = SqliteJournal(path)
    epoch = acquired(journal, "c0", LONG_S).epoch
    journal.append(epoch, [Cancelled("1", "x" * 500, 0.0)] * 100)
    with pytest.raises(DataError, match="no queries 0 to 1 of job '1'"):
        journal.queries("1", 0, 1)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE records SET body = ? WHERE number = 3", (b'{"type": "Unheard"}',))
    database.close()
    with pytest.raises(DataError, match="record 3 is damaged"):
        list(journal.records())
    journal.close()  # the last connection: all is in the file itself now
    content = bytearray(path.read_bytes())
    content[4096:] = os.urandom(len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises((ConfigurationError, RunError), match=r"journal\.sqlite") as caught:
        list(SqliteJournal(path).records())
    assert "\n" not in str(caught.value)


def test_a_write_is_kept_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal.sqlite")
    epoch = acquired(journal, "c0", LONG_S).epoch
    journal.append(epoch, [], inputs=[("1", 0, b"")])
    with pytest.raises(RunError, match="UNIQUE"):
        journal.append(epoch, [Cancelled("1", "", 0.0)], inputs=[("2", 0, b""), ("1", 0, b"")])
    assert [*journal.records()] == []
    with pytest.raises(DataError):
        journal.queries("2", 0, 1)
    journal.append(epoch, [Cancelled("1", "", 0.0)])
    journal.close()


def test_the_file_of_jobs_that_come_and_go_stays_small(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    journal = SqliteJournal(path)
    epoch = acquired(journal, "c0", LONG_S).epoch
    sizes = []
    for job in map(str, range(1, 6)):
        journal.append(
            epoch, [Dropped(job, 0.0)], outputs=[Output(job, batch, batch, 1, bytes(10_000)) for batch in range(100)]
        )
        for _ in journal.drop(epoch, [job]):
            pass
        with sqlite3.connect(path) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        database.close()
        sizes.append(path.stat().st_size)
    assert max(sizes) < 200_000  # a job's results are a million bytes
    journal.close()
