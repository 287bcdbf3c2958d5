"""Jobs continue after Ctrl-C, and their files are kept after the end of their cluster."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.jobs.cluster_kit import running
from typer.testing import CliRunner

from chimera.cli.main import app

EXPERIMENT = """
data = "digits"
engine = "local"
model = { name = "sklearn-sgd-classifier", loss = "log_loss" }
strategy = "parameter-server"
train = { workers = 1, rounds = %d, batch_size = 16, optimizer = { name = "sgd", lr = 1.0 } }
"""
LIMIT_S = 60.0
pytestmark = pytest.mark.long


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_job_continues_after_ctrl_c_and_its_files_are_kept_after_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    at = ["--folder", "cluster"]
    with running(tmp_path / "cluster", workers=1) as cluster:
        Path("short.toml").write_text(EXPERIMENT % 3)
        Path("long.toml").write_text(EXPERIMENT % 10_000_000)
        followed = CliRunner().invoke(app, ["submit", "short.toml", "--follow", *at])
        assert followed.exit_code == 0
        assert followed.stderr.endswith("to get its files: chimera fetch 1 --folder cluster\n")
        assert CliRunner().invoke(app, ["fetch", "1", "-o", "up", *at]).exit_code == 0

        assert CliRunner().invoke(app, ["submit", "long.toml", *at]).output == "job 2\n"
        watcher = subprocess.Popen(
            [sys.executable, "-m", "chimera", "follow", "2", *at],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert watcher.stdout is not None
        while "round " not in watcher.stdout.readline():
            assert watcher.poll() is None
        watcher.send_signal(signal.SIGINT)
        _, errors = watcher.communicate(timeout=LIMIT_S)
        assert (watcher.returncode, errors) == (
            130,
            "job 2 continues; to follow it again: chimera follow 2 --folder cluster\n",
        )
        before = cluster.client.job("2")
        deadline_s = time.monotonic() + LIMIT_S
        while cluster.client.job("2")["progress"] <= before["progress"]:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)

    listed = CliRunner().invoke(app, ["jobs", "--json", *at])
    assert (listed.exit_code, listed.stderr) == (0, "the cluster is down; its files are read\n")
    one, two = json.loads(listed.stdout)
    assert (one["state"], one["reason"]) == ("done", "")
    assert "the cluster is down: 'chimera cluster up --folder" in two["reason"]
    assert CliRunner().invoke(app, ["fetch", "1", "-o", "down", *at]).exit_code == 0
    assert files_of(Path("down")) == files_of(Path("up"))
    assert "report.html" in files_of(Path("down"))
    refused = CliRunner().invoke(app, ["fetch", "7", *at])
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "there is no job '7'" in refused.stderr
    elsewhere = CliRunner().invoke(app, ["jobs", "--folder", "nowhere"])
    assert elsewhere.exit_code == 2
