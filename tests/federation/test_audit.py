"""The audit log: each line follows the one before, and the file and its ledger never disagree."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from chimera.cli.main import app
from chimera.core.errors import ConfigurationError, NoSpaceError
from chimera.core.sqlite import SQLiteConnection, SQLiteFormat
from chimera.federation.audit import log
from chimera.federation.audit.line import FIRST, AuditError, Entry, Line, decode, digest, encode
from chimera.federation.audit.verify import verify

KIND = SQLiteFormat("ledger", 0x7465, 1, log.TABLES)
TIME = "2027-01-15T12:00:00Z"


class Opened:
    """A log and its tables in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / log.FILE_NAME
        self.connection = SQLiteConnection(folder / "ledger.sqlite", KIND)
        self.connection.prepare()
        self.log = log.AuditLog(self.file, self.connection)

    def commit(self, *reasons: str) -> None:
        """Commit lines without writing them to the file."""
        for reason in reasons:
            entry = Entry(time=TIME, decision="released", reason=reason)
            self.connection.write(lambda db, entry=entry: self.log.append(db, entry))

    def write(self, *reasons: str) -> None:
        """Commit lines, and write each to the file."""
        for reason in reasons:
            self.commit(reason)
            self.log.flush()

    def close(self) -> None:
        self.connection.close()


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Return a folder with a log of six lines."""
    opened = Opened(tmp_path / "node")
    opened.write(*map(str, range(6)))
    opened.close()
    return opened.folder


def lines_of(folder: Path) -> list[bytes]:
    return (folder / log.FILE_NAME).read_bytes().splitlines(keepends=True)


def put(folder: Path, lines: list[bytes]) -> None:
    (folder / log.FILE_NAME).write_bytes(b"".join(lines))


def test_lines_follow_one_another(written: Path) -> None:
    before = FIRST
    for number, line in enumerate(lines_of(written), 1):
        read = decode(line[:-1])
        assert (read.sequence, read.before, read.entry.reason) == (number, before, str(number - 1))
        before = digest(line[:-1])
    assert verify(written) == (6, before, 0, True, 0)
    assert verify(written / log.FILE_NAME) == (6, before, 0, False, 0)


CHANGES: dict[str, tuple[Callable[[list[bytes]], list[bytes]], str]] = {
    "changed": (lambda x: [*x[:2], x[2].replace(b'"2"', b'"7"'), *x[3:]], "line 4 does not follow line 3"),
    "changed number": (lambda x: [*x[:2], x[2].replace(b':3,', b':4,'), *x[3:]], "line 3 has the number 4"),
    "first changed": (lambda x: [x[0].replace(b'"before":"0', b'"before":"1'), *x[1:]], "line 1 was changed"),
    "last changed": (lambda x: [*x[:5], x[5].replace(b'"5"', b'"7"')], "line 6 was changed"),
    "removed": (lambda x: [*x[:2], *x[3:]], "line 3 has the number 4"),
    "first removed": (lambda x: x[1:], "line 1 has the number 2"),
    "moved": (lambda x: [x[0], x[2], x[1], *x[3:]], "line 2 has the number 3"),
    "repeated": (lambda x: [*x[:3], x[2], *x[3:]], "line 4 has the number 3"),
    "added": (
        lambda x: [*x, encode(Line(sequence=7, before=digest(x[5][:-1]), entry=Entry(time="", decision="x"))) + b"\n"],
        "line 7 was added",
    ),
    "end removed": (lambda x: x[:4], "the end is missing: line 5 and all lines up to 6"),
    "all removed": (lambda x: [], "the end is missing: line 1"),
    "no line": (lambda x: [*x[:2], b"hello\n", *x[3:]], "line 3 was changed"),
    "other key": (lambda x: [*x[:2], b'{"a":1}\n', *x[3:]], "line 3 was changed"),
    "too long": (lambda x: [*x[:2], b'"' + b"a" * 100_000 + b'"\n', *x[3:]], "line 3 was changed: it is longer"),
    "nested": (lambda x: [*x[:2], b"[" * 5_000 + b"\n", *x[3:]], "line 3 was changed"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_log_names_the_line(written: Path, change: str) -> None:
    edit, said = CHANGES[change]
    put(written, edit(lines_of(written)))
    with pytest.raises(AuditError, match=said) as caught:
        verify(written)
    assert "\n" not in str(caught.value)
    number = re.search(r"line (\d+)", said)
    assert number
    at = f"the audit log {written / log.FILE_NAME} was altered at line {number[1]}"
    times = {"added": "", "all removed": "", "end removed": f", after the line of {TIME}"}
    unread = (
        f", after the line of {TIME}" if change in ("no line", "other key", "too long", "nested") else f" of {TIME}"
    )
    assert str(caught.value).startswith(f"{at}{times.get(change, unread)}: ")
    if change in ("end removed", "all removed", "last changed", "added"):
        with pytest.raises(AuditError):  # a node does not add lines to a log that was changed at its end
            Opened(written)


@given(st.data())
@settings(max_examples=60)
def test_no_change_of_a_byte_passes(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.getbasetemp() / "changed"
    if not folder.exists():
        opened = Opened(folder)
        opened.write(*map(str, range(4)))
        opened.close()
        shutil.copy(folder / log.FILE_NAME, folder / "right")
    right = (folder / "right").read_bytes()
    place = data.draw(st.integers(0, len(right) - 2))
    other = data.draw(st.integers(0, 255).filter(lambda byte: byte != right[place]))
    (folder / log.FILE_NAME).write_bytes(right[:place] + bytes([other]) + right[place + 1 :])
    with pytest.raises(AuditError):
        verify(folder)


@pytest.mark.parametrize("committed", [0, 1, 3])
@pytest.mark.parametrize("left", [b"", b'{"sequence":7,"bef', b"\x00\xff"])
def test_the_next_start_writes_what_a_killed_process_did_not(written: Path, committed: int, left: bytes) -> None:
    opened = Opened(written)
    opened.commit(*"abc"[:committed])
    opened.close()
    with (written / log.FILE_NAME).open("ab") as file:
        file.write(left)
    assert verify(written)[:3:2] == (6, committed)
    opened = Opened(written)
    opened.write("z")
    opened.close()
    assert verify(written)[:3:2] == (7 + committed, 0)
    assert [decode(line[:-1]).entry.reason for line in lines_of(written)] == [*"012345", *"abc"[:committed], "z"]


POWER = st.tuples(st.integers(0, 30), st.floats(0, 1), st.booleans())


@given(lost=POWER)
@settings(max_examples=30)
def test_a_machine_that_lost_power_loses_no_line(lost: tuple[int, float, bool]) -> None:
    """The tables have the lines that are not on the disk with the file. Of these the file loses the end, or a part in zeros."""
    count, part, zeros = lost
    with tempfile.TemporaryDirectory() as name:
        opened = Opened(Path(name))
        opened.write(*"abc")
        synced = opened.file.stat().st_size
        for number in range(count):
            opened.commit(str(number))
            opened.log.flush(opened.log.last, at_once=False)
        opened.close()
        assert verify(opened.folder)[:3:2] == (3 + count, 0)
        data = opened.file.read_bytes()
        at = synced + int(part * (len(data) - synced))
        opened.file.write_bytes(data[:at] + (b"\0" * min(4096, len(data) - at) + data[at + 4096 :] if zeros else b""))
        Opened(opened.folder).close()
        assert opened.file.read_bytes() == data


def test_zeros_in_a_line_that_was_on_the_disk_are_a_change(written: Path) -> None:
    data = (written / log.FILE_NAME).read_bytes()
    (written / log.FILE_NAME).write_bytes(data[:500] + b"\0" + data[501:])
    with pytest.raises(AuditError):
        Opened(written)


def test_a_last_line_that_was_cut_off_returns(written: Path) -> None:
    """The tables keep each line until a later one was committed."""
    put(written, lines_of(written)[:-1])
    assert verify(written).unwritten == 1
    Opened(written).close()
    assert verify(written)[:3:2] == (6, 0)


def test_two_processes_add_lines_in_turn(written: Path) -> None:
    first, second = Opened(written), Opened(written)
    for _ in range(3):
        first.write("a")
        second.write("b", "c")
        first.commit("d")
        second.log.flush()
    first.close()
    second.close()
    assert verify(written).lines == 18
    assert "".join(decode(line[:-1]).entry.reason for line in lines_of(written)) == "012345" + "abcd" * 3


def test_texts_of_requesters_are_ascii(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    opened.write("\x1b[31m é 😀 \u2028 \x7f\n")
    opened.close()
    (line,) = lines_of(tmp_path)
    assert all(32 <= byte < 127 for byte in line[:-1])
    assert decode(line[:-1]).entry.reason == "\x1b[31m é 😀 \u2028 \x7f\n"
    assert json.loads(line)["entry"]["reason"] == "\x1b[31m é 😀 \u2028 \x7f\n"


def test_lines_in_the_file_leave_the_tables(written: Path) -> None:
    opened = Opened(written)
    assert len(opened.connection.rows("SELECT * FROM audit_lines", ())) == 1
    opened.close()


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Opened(tmp_path)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    opened.commit("a")
    monkeypatch.setattr(log.os, "write", full)
    with pytest.raises(NoSpaceError):
        opened.log.flush()
    monkeypatch.undo()
    opened.log.flush()
    opened.close()
    assert verify(tmp_path).lines == 1


def test_only_the_owner_reads_the_log(written: Path) -> None:
    assert (written / log.FILE_NAME).stat().st_mode & 0o077 == 0


def test_what_is_no_log(tmp_path: Path) -> None:
    for path, said in ((tmp_path / "no", "there is no audit log"), (tmp_path, "has no ledger")):
        with pytest.raises(ConfigurationError, match=said):
            verify(path)
    (tmp_path / "a.sqlite").write_text("no database, although its name says so")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        verify(tmp_path)


def test_the_command(written: Path) -> None:
    runner = CliRunner()
    done = runner.invoke(app, ["audit", "verify", str(written)])
    assert (done.exit_code, done.stdout.splitlines()[0]) == (
        0,
        "6 lines, each follows the one before; the last is that of the ledger",
    )
    assert (
        "was not compared with a ledger" in runner.invoke(app, ["audit", "verify", str(written / log.FILE_NAME)]).stdout
    )
    put(written, lines_of(written)[:4])
    done = runner.invoke(app, ["audit", "verify", str(written)])
    assert (done.exit_code, done.stderr.count("\n")) == (3, 1)
    assert done.stderr.startswith(
        f"error: the audit log {written / log.FILE_NAME} was altered at line 5, after the line of "
    )
    assert "the end is missing: line 5" in done.stderr
    assert runner.invoke(app, ["audit", "verify", str(written / "no")]).exit_code == 2


KILLED = """
import sys
from pathlib import Path
from federation.test_audit import Opened
opened = Opened(Path(sys.argv[1]))
while True:
    opened.write("x")
    print(flush=True)
"""


def test_a_killed_process_leaves_a_log_that_continues(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["tests", *sys.path])}
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, env=environment,
            cwd=Path(__file__).parents[2],
        )  # fmt: skip
        assert process.stdout is not None
        for _ in range(20):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.stdout.close()
        process.wait()
    Opened(tmp_path).close()
    assert verify(tmp_path).lines >= 40
