"""Processes that fail at their start: workers run without modules that fail, and no process is restarted without pauses."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from chimera.core.processes import SHORT_RUNS
from chimera.inference.cluster_folder import ClusterFolder
from chimera.inference.failing import FailingProcesses
from chimera.inference.managed_process import ManagedProcess
from chimera.inference.worker.fork_client import ForkClient
from chimera.inference.worker.worker import InferenceWorker
from inference.running import cluster, until
from inference.test_fork_server import answers, computing, table

MODULES = {
    "lethal": "import os; os.kill(os.getpid(), 9)",
    "ending": "raise SystemExit(3)",
    "broken": "raise RuntimeError('a broken module')",
}


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Modules that fail, on the import path of new processes."""
    folder = tmp_path / "modules"
    folder.mkdir()
    for name, code in MODULES.items():
        (folder / f"{name}.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{Path(__file__).parents[2] / 'src'}:{Path(__file__).parents[1]}")
    return folder


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no_such_module", "'no_such_module' cannot be imported: ModuleNotFoundError"),
        ("broken", "'broken' cannot be imported: RuntimeError: a broken module"),
        ("ending", "the process that imported 'csv', 'ending' exited with code"),
        (
            "lethal",
            "the process that imported 'csv', 'lethal' was killed by SIGKILL; the usual cause is too little memory",
        ),
    ],
)
@pytest.mark.usefixtures("modules")
def test_a_worker_computes_without_a_module_that_fails_and_reports_why(name: str, why: str) -> None:
    forks = ForkClient()
    worker = InferenceWorker("w0", on_exit=print, preload=["csv", name], forks=forks)
    try:
        assert why in worker.without
        assert worker.state().without == worker.without
        assert answers(worker, table("Echo"), "a") == ["a"]
        assert len(computing(forks)) == 1
    finally:
        worker.close()


def test_a_worker_with_all_modules_reports_nothing() -> None:
    worker = InferenceWorker("w0", on_exit=print, preload=["csv"])
    assert worker.without == ""
    worker.close()


def test_an_unknown_module_ends_the_command_with_one_line(tmp_path: Path) -> None:
    options = ["--preload", "json,no_such_module", "--cluster", str(tmp_path / "cluster")]
    done = subprocess.run(
        [sys.executable, "-m", "chimera", "infer", "up", *options], capture_output=True, check=False, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert f"--preload: there is no module 'no_such_module' on {socket.gethostname()}" in done.stderr
    assert not (tmp_path / "cluster").exists()


def test_a_process_that_ends_repeatedly_at_its_start_is_reported_until_it_is_dismissed(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path / "cluster")
    folder.create()
    failing, said = FailingProcesses(folder.failing), list[str]()
    process = ManagedProcess("w0", ["json.tool", "/no/such/file"], folder, {})
    process.start()
    until(lambda: process.check(said.append) or len(said) == SHORT_RUNS - 1)
    assert not failing.states()
    assert all(line.endswith("; it is restarted") for line in said)
    until(lambda: process.check(said.append) or len(said) == SHORT_RUNS)
    assert "exited with code" in said[-1]
    assert f"{SHORT_RUNS} times within seconds of its start; it is restarted after 0.4 s" in said[-1]
    (row,) = failing.states().values()
    assert (row.role, row.name) == ("worker", "w0")
    assert row.state == f"fails: {said[-1].removeprefix('w0 ')}"
    process.end(0.0)
    assert not failing.states()


@pytest.mark.long
@pytest.mark.usefixtures("modules")
def test_console_views_and_health_show_failing_processes_and_the_cluster_computes(tmp_path: Path) -> None:
    log = tmp_path / "up.log"
    with cluster(tmp_path, workers=2, standbys=0, options=("--preload", "lethal")) as running:
        until(lambda: log.read_text().count("warning: w") == 2)
        for name in ("w0", "w1"):
            assert f"warning: {name} on {socket.gethostname()} runs without modules of --preload: " in log.read_text()
        assert "exited" not in log.read_text()
        assert all("'lethal' was killed by SIGKILL" in row["error"] for row in running.client.rows("workers"))
        job = running.client.submit(running.model(), [1, 2, 3])
        assert running.client.wait(job, 60)["state"] == "done"
        assert running.answers(job) == [2, 4, 6]

        ended = subprocess.Popen(["true"])
        ended.wait()
        FailingProcesses(running.folder / "failing").report("w7", ended.pid, "fails: exited with code 1")
        (row,) = [row for row in running.client.rows("members") if row["name"] == "w7"]
        assert row["state"] == "fails: exited with code 1"
        with urlopen(f"{ClusterFolder(running.folder).leader()}/health") as answer:
            assert json.load(answer)["failing"] == ["w7"]
