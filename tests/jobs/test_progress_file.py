"""The progress file of a job: its writer, and readers while it grows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.jobs.driver.progress_file import INTERVAL_S, ProgressWriter, Tail, read_fraction
from chimera.training.progress.callback import Event, Progress


def progress(rounds: int, **given: object) -> Progress:
    values = {"epochs": 1.0, "samples": 1, "seconds": 1.0, "bytes_up": 0, "bytes_down": 0, "loss": None, "metrics": {}}
    return Progress(rounds=rounds, workers={}, **{**values, "fraction": rounds / 100, **given})  # type: ignore[arg-type]


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_each_line_is_read_once_however_the_file_grows(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]
) -> None:
    file = tmp_path_factory.mktemp("tail") / "log"
    tail, found = Tail(file), list[bytes]()
    with file.open("wb", buffering=0) as opened:
        for part in parts:
            opened.write(part)
            found += tail.lines()
    found += tail.lines(last=True)
    assert found == b"".join(parts).splitlines() or b"".join(found) == b"".join(b"".join(parts).splitlines())
    assert list(Tail(file, tail.at).lines(last=True)) == []


def test_progress_is_written_at_intervals_and_at_each_evaluation(tmp_path: Path) -> None:
    now_s = 0.0
    writer = ProgressWriter(tmp_path / "watch", clock=lambda: now_s)
    writer.on_start(progress(0))
    for rounds in range(1, 9):
        writer.on_progress(progress(rounds))
        now_s += INTERVAL_S / 4
    writer.on_progress(progress(9, metrics={"accuracy": 0.5}))
    writer.on_progress(progress(10, metrics={"accuracy": 0.5}))
    writer.on_event(Event("worker lost", 1.0, 10))
    writer.on_end(SimpleNamespace(summary=lambda: {"rounds": 10}))
    lines = (tmp_path / "watch").read_text().splitlines()
    assert [line.partition('"rounds":')[2].partition(",")[0] for line in lines[:-2]] == ["0", "1", "5", "9", ""]
    assert '"summary"' in lines[-1]


def test_the_last_line_with_progress_gives_the_fraction(tmp_path: Path) -> None:
    assert read_fraction(tmp_path / "watch") is None
    writer = ProgressWriter(tmp_path / "watch")
    writer.on_start(progress(7))
    writer.on_event(Event("worker lost", 1.0, 10))
    with (tmp_path / "watch").open("ab") as opened:
        opened.write(b'{"progress":{"fract')
    assert read_fraction(tmp_path / "watch") == 0.07


@pytest.mark.parametrize("at", [7, 99_999_999_999_999])
def test_an_offset_beyond_the_end_of_a_file_has_no_lines(at: int, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"a\nb\n")
    tail = Tail(tmp_path / "log", at)
    assert list(tail.lines(last=True)) == []
    assert tail.at == at
