"""The audit log of a hub: entries are written in batches, in order, and none is lost when the hub ends."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from chimera.core.errors import NoSpaceError
from chimera.federation.audit import journal, log
from chimera.federation.audit.journal import AuditJournal
from chimera.federation.audit.verify import verify


def numbers(folder: Path) -> list[int]:
    return [json.loads(line)["entry"]["number"] for line in (folder / log.FILE_NAME).read_text().splitlines()]


def test_entries_are_written_in_order(tmp_path: Path) -> None:
    for begin in (0, 500):
        opened = AuditJournal(tmp_path, every_s=60.0)
        for number in range(begin, begin + 500):
            opened.note("asked", node="a", number=number)
        opened.close()
        assert verify(tmp_path)[0::2] == (begin + 500, 0)
    assert numbers(tmp_path) == list(range(1000))


def test_entries_are_written_while_the_program_runs(tmp_path: Path) -> None:
    opened = AuditJournal(tmp_path, every_s=0.01)
    opened.note("asked", number=3)
    while numbers(tmp_path) != [3]:
        threading.Event().wait(0.01)
    opened.close()


def test_a_full_queue_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_MOST_WAITING", 5)
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
