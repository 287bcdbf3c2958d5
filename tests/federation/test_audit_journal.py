"""The audit log of a hub: entries are written in batches, in order, and none is lost when the hub ends."""

from __future__ import annotations

import contextlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from chimera.core.errors import NoSpaceError
from chimera.federation.audit import journal, log
from chimera.federation.audit.journal import AuditJournal
from chimera.federation.audit.line import AuditError, Entry
from chimera.federation.audit.verify import verify


def numbers(folder: Path) -> list[int]:
    return [json.loads(line)["entry"]["number"] for line in (folder / log.FILE_NAME).read_text().splitlines()]


def test_entries_are_written_in_order(tmp_path: Path) -> None:
    for begin in (0, 500):
        opened = AuditJournal(tmp_path, every_s=60.0)
        for number in range(begin, begin + 500):
            opened.note("asked", node="a", number=number)
        opened.close()
        assert verify(tmp_path)[:3:2] == (begin + 500, 0)
    assert numbers(tmp_path) == list(range(1000))


def test_entries_are_written_while_the_program_runs(tmp_path: Path) -> None:
    opened = AuditJournal(tmp_path, every_s=0.01)
    opened.note("asked", number=3)
    while numbers(tmp_path) != [3]:
        threading.Event().wait(0.01)
    opened.close()


def test_a_full_queue_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_MAX_WAITING", 5)
    opened = AuditJournal(tmp_path, every_s=60.0)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda number: opened.note("asked", number=number), range(200)))
    opened.close()
    assert sorted(numbers(tmp_path)) == list(range(200))
    verify(tmp_path)


def test_a_full_disk_is_an_error_of_the_next_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = AuditJournal(tmp_path, every_s=0.001)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(log.os, "write", full)
    opened.note("asked")
    while opened.error is None:
        threading.Event().wait(0.01)
    with pytest.raises(NoSpaceError):
        opened.note("asked")
    opened.close()


def filled(folder: Path, numbers: range, max_bytes: int) -> None:
    """Write a line for each number, ten lines in each batch."""
    opened = AuditJournal(folder, every_s=60.0, max_bytes=max_bytes)
    for number in numbers:
        opened._commit([Entry(time="2027-01-15T12:00:00Z", decision="relayed", number=number)])
    opened.close()


def test_the_log_stays_below_its_bound_and_its_lines_go_on_through_the_files(tmp_path: Path) -> None:
    bound = 32_000
    filled(tmp_path, range(50), bound)
    filled(tmp_path, range(50, 200), bound)
    files = [*log.full_files(tmp_path), tmp_path / log.FILE_NAME]
    assert 4 < len(files) <= 17
    assert sum(file.stat().st_size for file in files) <= bound
    found = verify(tmp_path)
    assert (found.lines, found.unwritten, found.compared) == (200, 0, True)
    kept = [json.loads(line)["entry"]["number"] for file in files for line in file.read_text().splitlines()]
    assert kept == list(range(found.removed, 200))
    assert 0 < found.removed < 150
    files[0].unlink()
    with pytest.raises(AuditError, match="a line before it was removed"):
        verify(tmp_path)


def test_a_change_in_a_full_file_is_found(tmp_path: Path) -> None:
    filled(tmp_path, range(40), 64_000)
    first, *_ = log.full_files(tmp_path)
    data = first.read_bytes()
    for changed, message in (
        (data.replace(b'"number":3', b'"number":4'), "does not follow"),
        (data[: data.rindex(b"\n", 0, -1) + 1], "was removed"),
        (data + b'{"a', "ends with its file"),
    ):
        first.write_bytes(changed)
        with pytest.raises(AuditError, match=message):
            verify(tmp_path)
    first.write_bytes(data)
    verify(tmp_path)


@pytest.mark.parametrize("step", range(5))
def test_a_process_that_ends_while_it_divides_the_log_loses_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """The process ends before a step of the next division of the log: a statement, a rename, a removal."""
    filled(tmp_path, range(120), 24_000)
    steps = [0]

    def or_end(function: Any) -> Any:
        def work(*given: Any, **named: Any) -> Any:
            if log.full_files(tmp_path) and dividing[0]:
                steps[0] += 1
                if steps[0] > step:
                    raise KeyboardInterrupt
            return function(*given, **named)

        return work

    dividing = [False]
    opened = AuditJournal(tmp_path, every_s=60.0, max_bytes=24_000)
    set_aside = opened._log._set_aside

    def divide(*given: Any) -> None:
        dividing[0] = True
        set_aside(*given)

    monkeypatch.setattr(opened._log, "_set_aside", divide)
    monkeypatch.setattr(opened._connection, "write", or_end(opened._connection.write))
    monkeypatch.setattr(Path, "rename", or_end(Path.rename))
    monkeypatch.setattr(Path, "unlink", or_end(Path.unlink))
    number = 120
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            opened._commit([Entry(time="2027-01-15T12:00:00Z", decision="relayed", number=number)])
            number += 1
    monkeypatch.undo()
    opened.close()
    filled(tmp_path, range(number + 1, number + 30), 24_000)
    found = verify(tmp_path)
    assert (found.lines, found.unwritten) == (number + 30, 0)


def test_a_command_beside_the_hub_adds_its_lines(tmp_path: Path) -> None:
    hub = AuditJournal(tmp_path, every_s=60.0, max_bytes=16_000)
    for number in range(60):
        hub._commit([Entry(time="2027-01-15T12:00:00Z", decision="relayed", number=number)])
        if number % 7 == 0:
            filled(tmp_path, range(1000, 1003), 16_000)
    hub.close()
    found = verify(tmp_path)
    assert (found.lines, found.unwritten) == (60 + 9 * 3, 0)


def test_a_log_verifies_while_it_grows(tmp_path: Path) -> None:
    ended = threading.Event()
    filled(tmp_path, range(10), 16_000)

    def grow() -> None:
        filled(tmp_path, range(10, 250), 16_000)
        ended.set()

    with ThreadPoolExecutor(1) as thread:
        growing = thread.submit(grow)
        while not ended.is_set() and not growing.done():
            assert verify(tmp_path).lines >= 10
        growing.result()
    assert verify(tmp_path).lines == 250
