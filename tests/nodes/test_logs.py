"""The logs of a node, and the parsing of latencies."""

from __future__ import annotations

import io
import logging
import string
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import chimera
from chimera.core.errors import DataError
from chimera.utils import parse_times_file
from chimera.web.logs import close_logs, log_latency, open_logs, status, time_log

URL = "http://localhost:5001/v1/chimera/model/fit"

urls = st.builds(
    "http://localhost:{}/{}".format,
    st.integers(1, 65535),
    st.text(string.ascii_letters + string.digits + "/-_.%?=&", max_size=20),
)
seconds = st.floats(0, 1e5).map(lambda value: round(value, 4))
latencies = st.lists(st.tuples(urls, st.sampled_from(["worker", "master"]), seconds))
foreign = st.text(st.characters(exclude_categories=["Cs"])).filter(lambda text: "endpoint latency" not in text)


def test_a_latency_is_one_line_in_the_documented_format() -> None:
    open_logs()
    log_latency(URL, "worker", 0.14312)
    log_latency("http://localhost:8080/v1/chimera/aggregation/fit", "master", 12)
    assert Path("chimera_time.log").read_text() == (
        f"{URL} worker endpoint latency = 0.1431 s\n"
        "http://localhost:8080/v1/chimera/aggregation/fit master endpoint latency = 12.0000 s\n"
    )


@given(latencies, st.lists(foreign, min_size=1))
def test_logged_latencies_are_parsed_among_other_lines(
    written: list[tuple[str, str, float]], others: list[str]
) -> None:
    Path("chimera_time.log").unlink(missing_ok=True)
    open_logs()
    expected: dict[str, dict[str, list[float]]] = {"worker": {}, "master": {}}
    for index, (url, kind, value) in enumerate(written):
        log_latency(url, kind, value)
        time_log().info(others[index % len(others)])
        expected[kind].setdefault(url, []).append(value)
    close_logs()
    assert parse_times_file("chimera_time.log") == expected


@pytest.mark.parametrize(
    "line",
    [
        "",
        "worker endpoint latency = 0.1 s",
        f"{URL} client endpoint latency = 0.1 s",
        f"{URL} worker endpoint latency = fast s",
        f"{URL} worker endpoint latency = 0.1 s or so",
        f"{URL} worker endpoint latency = 0.1",
    ],
)
def test_a_line_without_a_latency_is_skipped(tmp_path: Path, line: str) -> None:
    file = tmp_path / "times.log"
    file.write_bytes(f"{line}\n{URL} worker endpoint latency = 2 s\n".encode() + b"\xff\xfe\n")
    assert parse_times_file(file) == {"worker": {URL: [2.0]}, "master": {}}


def test_lines_with_a_timestamp_are_read(tmp_path: Path) -> None:
    file = tmp_path / "times.log"
    file.write_text(f"2026-01-01 10:00:00,000 INFO {URL} worker endpoint latency = 0.5 s\n")
    assert chimera.utils.parse_times_file(str(file))["worker"] == {URL: [0.5]}


def test_a_missing_file_is_an_error_of_one_line() -> None:
    with pytest.raises(DataError, match=r"nowhere\.log cannot be read: No such file"):
        parse_times_file("nowhere.log")


def test_logs_open_once_follow_the_working_folder_and_keep_other_handlers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = logging.NullHandler()
    status().addHandler(other)
    open_logs()
    open_logs()
    status().info("once")
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    open_logs()
    status().info("twice")
    close_logs()
    assert status().handlers == [other]
    status().removeHandler(other)
    assert (tmp_path / "chimera_status.log").read_text().endswith("INFO once\n")
    assert (tmp_path / "chimera_status.log").read_text().count("\n") == 1
    assert (tmp_path / "there" / "chimera_status.log").read_text().endswith("INFO twice\n")


def test_a_node_continues_without_logs_if_the_folder_cannot_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    Path("chimera_status.log").mkdir()
    open_logs()
    assert "no log is written" in capsys.readouterr().err
    assert Path("chimera_time.log").is_file()


def test_a_full_disk_is_reported_once(capfd: pytest.CaptureFixture[str]) -> None:
    Path("chimera_time.log").symlink_to("/dev/full")
    open_logs()
    for _ in range(3):
        log_latency(URL, "worker", 0.1)
    place = Path("chimera_time.log").absolute()
    reported = f"chimera: cannot write {place}: No space left on device; its records are lost\n"
    assert capfd.readouterr().err == reported
    close_logs()
    assert not capfd.readouterr().err


def test_a_record_is_lost_silently_if_stderr_is_on_the_full_disk_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error there would replace the answer to a request."""
    Path("chimera_status.log").symlink_to("/dev/full")
    open_logs()
    with Path("/dev/full").open("wb", buffering=0) as full:
        monkeypatch.setattr("sys.stderr", io.TextIOWrapper(full, write_through=True))
        status().error("no space")
        sys.stderr.detach()  # type: ignore[attr-defined]
    close_logs()


def test_an_import_opens_no_log_and_loads_no_web_library(tmp_path: Path) -> None:
    code = (
        "import sys, chimera, chimera.nodes, chimera.nodes.workers, chimera.utils\n"
        "heavy = {'fastapi', 'pydantic', 'torch', 'docker', 'uvicorn', 'sklearn'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "from chimera.nodes.workers import SGDWorker\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    assert list(tmp_path.iterdir()) == []


def test_the_status_log_of_months_is_bounded_and_the_measured_times_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chimera.web.logs.MAX_STATUS_BYTES", 1000)
    open_logs()
    for number in range(100):
        status().info("event %d", number)
        log_latency(URL, "worker", number)
    files = sorted(Path().glob("chimera_status.log*"))
    assert [file.name for file in files] == ["chimera_status.log", "chimera_status.log.1"]
    assert all(file.stat().st_size <= 1000 for file in files)
    assert files[0].read_text().endswith("event 99\n")
    assert len(Path("chimera_time.log").read_text().splitlines()) == 100
