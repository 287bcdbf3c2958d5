"""``chimera watch``: what it follows, its mistakes, and where it writes the address."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.jobs.cluster_kit import experiment, json_output, running
from typer.testing import CliRunner

import chimera
from chimera.cli.main import app
from chimera.cli.train import page_of
from chimera.cli.watched import followed
from chimera.core.errors import ConfigurationError
from chimera.jobs.session import down
from chimera.web.live.description import SMALL, describe
from chimera.web.live.pieces import FILES, read_piece
from chimera.web.live.server import LivePage
from web.live_kit import write_run


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["nowhere"], "there is no run folder 'nowhere'; give the folder of a run"),
        (["7"], "there is no cluster at"),
        (["7", "--folder", "http://127.0.0.1:1"], "the cluster at http://127.0.0.1:1 asks for its token"),
        (["memory://no-such-store/run"], "there is no run in memory://no-such-store/run"),
        (["s3:/bucket/run"], "has one slash after s3"),
        (["."], "'.' is not a run folder: it has neither experiment.toml"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(app, ["watch", *arguments])
    assert ended.exit_code == 2
    assert error in ended.output
    assert ended.output.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_comparison_is_followed_by_its_runs(tmp_path: Path) -> None:
    (tmp_path / "grid.json").write_text("{}")
    with (
        pytest.raises(ConfigurationError, match="the folder of a comparison: give the folders"),
        followed(str(tmp_path), ""),
    ):
        pass


def test_a_folder_with_the_name_of_a_job_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "7")
    monkeypatch.chdir(tmp_path)
    with followed("7", "runs/cluster") as run:
        assert (run.name, run.folder.resolve()) == ("7", tmp_path / "7")
    with pytest.raises(ConfigurationError, match="no cluster"), followed("8", "runs/cluster"):
        pass


@pytest.mark.takes("it starts the program, which imports the web server")
def test_it_serves_until_a_signal_and_keeps_the_token_out_of_logs(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    command = [sys.executable, "-m", "chimera", "watch", str(run)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as watch:
        try:
            assert watch.stderr is not None
            lines = [watch.stderr.readline(), watch.stderr.readline()]
            found = re.search(r"the page: (\S+) .* is in (\S+)\)", lines[0])
            assert found, lines
            link = Path(found[2]).read_text().strip()
            token = link.partition("#token=")[2]
            assert link.startswith(found[1])
            assert len(token) > 30
            assert token not in "".join(lines)
            asked = urllib.request.Request(f"{found[1]}v1/live/state", headers={"Authorization": f"Bearer {token}"})
            with urllib.request.urlopen(asked, timeout=30) as answer:
                assert b'"name": "run"' in answer.read()
            watch.send_signal(signal.SIGTERM)
            assert watch.wait(30) == 0
            assert not Path(found[2]).exists()
        finally:
            watch.kill()


@pytest.mark.long
@pytest.mark.takes("it runs a job on a cluster")
def test_a_job_is_followed_in_the_folder_of_its_cluster(tmp_path: Path) -> None:
    with running(tmp_path / "cluster") as cluster:
        job = json_output("submit", experiment(tmp_path, rounds=40), "--folder", tmp_path / "cluster", cwd=tmp_path)[
            "job"
        ]
        assert cluster.client.wait(job, 60)["state"] == "done"
        with followed(job, str(tmp_path / "cluster")) as run:
            assert run.name == f"job {job}: digits"
            assert describe(run.folder)["summary"]["rounds"] == 40
            assert read_piece(run.folder, "metrics").lines
    with followed(job, str(tmp_path / "cluster")) as run:  # the cluster is down
        assert read_piece(run.folder, "trace").lines
    with pytest.raises(ConfigurationError, match="no job"), followed("99", str(tmp_path / "cluster")):
        pass


@pytest.mark.long
@pytest.mark.takes("it runs a job on a cluster")
def test_a_job_is_followed_at_the_address_of_its_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path / "cluster") as cluster:
        address, token = cluster.folder.address(), cluster.folder.token()
        assert address is not None
        with pytest.raises(ConfigurationError, match="set CHIMERA_CLUSTER_TOKEN"), followed("1", address):
            pass
        monkeypatch.setenv("CHIMERA_CLUSTER_TOKEN", token)
        with pytest.raises(ConfigurationError, match="no job"), followed("1", address):
            pass
        job = json_output("submit", experiment(tmp_path, rounds=40), "--folder", address, cwd=tmp_path)["job"]
        with followed(job, address) as run, contextlib.closing(LivePage([run])) as page:
            page.start()
            assert run.name == f"job {job}: digits"
            assert cluster.client.wait(job, 60)["state"] == "done"
            own = cluster.folder.job(job).run
            deadline_s = time.monotonic() + 30
            while not _same(own, run.folder):  # a copy is updated once a second
                state = json.loads(_asked(page, "state"))["runs"][0]
                assert (state["note"], time.monotonic() < deadline_s) == ("", True)
            assert json.loads(_asked(page, "run?run=0"))["summary"]["rounds"] == 40
            assert _asked(page, "rows?run=0&file=metrics") == (own / "metrics.jsonl").read_bytes()
            assert {path.name for path in run.folder.iterdir()} <= {*SMALL, *(f"{name}.jsonl" for name in FILES)}
            down(cluster.folder)
            while not (note := json.loads(_asked(page, "state"))["runs"][0]["note"]):
                assert time.monotonic() < deadline_s
            assert f"the daemon at {address} does not answer" in note
        assert not run.folder.exists()


def _same(run: Path, copy: Path) -> bool:
    names = ["summary.json", *(f"{name}.jsonl" for name in FILES if (run / f"{name}.jsonl").stat().st_size)]
    return all((copy / name).is_file() and (run / name).read_bytes() == (copy / name).read_bytes() for name in names)


def _asked(page: LivePage, path: str) -> bytes:
    asked = urllib.request.Request(f"{page.address}v1/live/{path}", headers={"Authorization": f"Bearer {page.token}"})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        content: bytes = answer.read()
    return content


def test_the_page_of_a_run_whose_folder_another_run_took_follows_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given: dict[str, Any] = {"engine": "simulated", "workers": 1, "evaluate_every": 100, "name": "same"}
    first, second = (chimera.Trainer("mlp", "digits", rounds=rounds, **given) for rounds in (2, 3))
    assert first.run_dir == second.run_dir
    with page_of(second, is_fixed=False) as page:
        first.fit()
        assert not json.loads(_asked(page, "state"))["runs"][0]["exists"]
        second.fit()
        assert json.loads(_asked(page, "state"))["runs"][0]["name"] == second.run_dir.name != first.run_dir.name
        assert json.loads(_asked(page, "run?run=0"))["summary"]["rounds"] == 3
