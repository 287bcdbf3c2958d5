"""The commands in order: up, submit, follow, jobs, fetch, down; on real processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.jobs.cluster_kit import chimera, experiment, json_output, running
from typer.testing import CliRunner

from chimera.cli.main import app
from chimera.jobs.cluster.folder import ClusterFolder


@pytest.mark.takes("it starts a cluster, a job and seven commands")
def test_a_job_is_submitted_followed_and_fetched_and_no_process_remains(tmp_path: Path) -> None:
    file = experiment(tmp_path, rounds=40)
    with running(tmp_path / "runs" / "cluster"):  # the default folder of the commands
        status = json_output("cluster", "status", cwd=tmp_path)
        assert [row["role"] for row in status] == ["supervisor", "daemon", "worker", "worker"]
        assert all({"role", "host", "pid", "state"} <= set(row) for row in status)
        followed = chimera("submit", file, "--follow", cwd=tmp_path)
        assert followed.returncode == 0, followed.stderr
        assert followed.stdout.startswith("job 1\n")
        assert "accuracy" in followed.stdout
        assert followed.stdout.rstrip().endswith("job 1 is done")
        (row,) = json_output("jobs", cwd=tmp_path)
        assert (row["job"], row["state"], row["progress"], row["workers"], row["reason"]) == ("1", "done", 1.0, 2, "")
        assert chimera("fetch", "1", "-o", "mine", cwd=tmp_path).returncode == 0
    for name in ("log", "metrics.jsonl", "trace.jsonl", "weights.safetensors", "report.html", "summary.json"):
        assert (tmp_path / "mine" / name).exists(), name
    assert json.loads((tmp_path / "mine" / "summary.json").read_bytes())["rounds"] == 40


@pytest.mark.parametrize("command", [("submit", "digits.toml"), ("jobs",), ("fetch", "1"), ("cluster", "status")])
@pytest.mark.parametrize("was_up", [False, True])
def test_without_a_cluster_the_error_names_the_command_that_starts_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], was_up: bool
) -> None:
    experiment(tmp_path)
    if was_up:
        ClusterFolder(tmp_path / "runs" / "cluster").create()
    monkeypatch.chdir(tmp_path)
    ran = CliRunner().invoke(app, command)
    assert ran.exit_code == 2
    (line,) = ran.output.splitlines()
    assert line.startswith("error: ")
    assert "'chimera cluster up'" in line
