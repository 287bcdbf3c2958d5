"""Connections to SQLite files."""

import subprocess
import sys
from pathlib import Path

import pytest

_FILES = 500
_CREATE = f"""
import sys
from pathlib import Path

import pytest
from chimera.core.sqlite import SQLiteConnection, SQLiteFormat
journal = SQLiteFormat("journal", application=7, format=1, schema="CREATE TABLE notes (text TEXT)")
sys.stdin.readline()
for number in range({_FILES}):
    connection = SQLiteConnection(Path(sys.argv[1]) / f"{{number}}.sqlite", journal)
    connection.prepare()
    assert connection.rows("PRAGMA journal_mode", ()) == [("wal",)]
    connection.close()
"""


@pytest.mark.long
def test_several_processes_create_a_file_at_the_same_time(tmp_path: Path) -> None:
    """SQLite refuses at once to change the journal mode beside another connection that does the same."""
    command = [sys.executable, "-c", _CREATE, str(tmp_path)]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert [(process.communicate(timeout=60)[1], process.returncode) for process in processes] == [("", 0)] * 4
    assert len(list(tmp_path.glob("*.sqlite"))) == _FILES
