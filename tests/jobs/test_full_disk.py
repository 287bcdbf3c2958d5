"""A cluster on a full disk: it stays up, reports the problem, stores nothing incomplete, and resumes once there is room."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.disk_kit import fill, leave, small_disk
from tests.jobs.cluster_kit import running
from typer.testing import CliRunner

from chimera.cli.main import app

pytestmark = pytest.mark.long
LIMIT_S = 60.0
EXPERIMENT = """
data = "digits"
engine = "local"
model = { name = "sklearn-sgd-classifier", loss = "log_loss" }
strategy = "parameter-server"
train = { workers = 1, rounds = %d, batch_size = 16, optimizer = { name = "sgd", lr = 1.0 } }
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 16) as folder:
        yield folder


def until(known: Callable[[], Any]) -> Any:
    deadline_s = time.monotonic() + LIMIT_S
    while not (found := known()):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    return found


def test_a_cluster_that_has_no_room_to_begin_leaves_no_token(disk: Path) -> None:
    fill(disk)
    result = CliRunner().invoke(app, ["cluster", "up", "--folder", str(disk / "cluster")])
    assert result.exit_code == 2
    assert result.stderr.endswith("cannot be written: No space left on device\n")
    assert list((disk / "cluster").iterdir()) == []


def test_a_cluster_survives_a_full_disk(disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("short.toml").write_text(EXPERIMENT % 3)
    Path("long.toml").write_text(EXPERIMENT % 10_000_000)

    def ask(*words: str) -> Any:
        return CliRunner().invoke(app, [*words, "--folder", str(disk / "cluster")])

    with running(disk / "cluster", workers=1) as cluster:
        assert ask("submit", "long.toml").output == "job 1\n"
        until(lambda: cluster.client.job("1")["progress"] > 0)
        before = {row["name"]: row["pid"] for row in cluster.client.processes()}
        ballast = leave(disk, 804 << 10)
        stored = {file.name for file in (disk / "cluster" / "files").glob("*")}
        for words in (("submit", "short.toml"), ("retry", "1")):
            nearly = ask(*words)
            assert (nearly.exit_code, nearly.stdout, nearly.stderr.count("\n")) == (1, "", 1)
            assert "KiB are left" in nearly.stderr
            assert "4 MiB are reserved for accepted jobs" in nearly.stderr
        assert {file.name for file in (disk / "cluster" / "files").glob("*")} == stored
        assert cluster.client.job("1")["state"] == "running"
        taken = fill(disk)
        refused = [ask("submit", "short.toml") for _ in range(3)]
        for each in refused:
            assert (each.exit_code, each.stdout) == (1, "")
            assert "is nearly full: 0 KiB are left" in each.stderr
            assert each.stderr.count("\n") == 1
        assert ask("cancel", "1").exit_code in (0, 1)  # refused, or there was enough room
        until(lambda: any("disk is full" in row["state"] for row in cluster.client.processes()))
        assert "disk is full" in ask("cluster", "status").output
        assert [row["job"] for row in cluster.client.jobs()] == ["1"]

        taken.unlink()
        ballast.unlink()
        until(lambda: all("disk is full" not in row["state"] for row in cluster.client.processes()))
        assert {row["name"]: row["pid"] for row in cluster.client.processes()}["supervisor"] == before["supervisor"]
        ask("cancel", "1")
        accepted = ask("submit", "short.toml")
        assert accepted.exit_code == 0, accepted.stderr
        number = accepted.output.split()[1]
        assert cluster.client.wait(number, LIMIT_S)["state"] == "done"
        assert [row["job"] for row in cluster.client.jobs()] == ["1", number]
