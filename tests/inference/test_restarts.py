"""Processes that fail at their start: workers run without modules that fail, and no process is restarted without pauses."""

from __future__ import annotations

import json
import re
import resource
import socket
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from chimera.core.errors import ConfigurationError, UnavailableError
from chimera.core.processes import SHORT_RUNS
from chimera.inference.cluster_folder import ClusterFolder
from chimera.inference.failing import FailingProcesses
from chimera.inference.local_workers import LocalWorkers
from chimera.inference.managed_process import ManagedProcess
from chimera.inference.preload import check_exist
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


@pytest.mark.parametrize(
    "module", ["no_such_module", "chimera.no_such_module", "json.decoder.no_such_module", ".x", "a..b"]
)
def test_an_unknown_module_ends_the_command_with_one_line(module: str, tmp_path: Path) -> None:
    options = ["--preload", f"json,{module}", "--cluster", str(tmp_path / "cluster")]
    done = subprocess.run(
        [sys.executable, "-m", "chimera", "infer", "up", *options], capture_output=True, check=False, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert f"--preload: there is no module '{module}' on {socket.gethostname()}" in done.stderr
    assert not (tmp_path / "cluster").exists()


def test_modules_are_searched_without_an_import_of_their_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("own", "own/inner", "bare"):
        (tmp_path / folder).mkdir()
    for file in ("own/__init__.py", "own/inner/__init__.py", "own/inner/last.py", "bare/last.py"):
        (tmp_path / file).write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    check_exist(["own.inner.last", "bare.last", "own.inner", "os.path", "xml.etree.ElementTree", "sys"])
    for name in ("own.last", "own.inner.last.x", "bare.x"):
        with pytest.raises(ConfigurationError, match=f"there is no module '{name}'"):
            check_exist([name])


def test_modules_in_folders_without_code_are_found_and_such_a_folder_hides_no_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in ("here/bare/inner/last.py", "site/bare/other.py", "site/whole/__init__.py", "site/whole/last.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("raise SystemExit(3)")
    for folder in ("whole", "json", "sys"):  # data, for instance
        (tmp_path / "here" / folder).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.syspath_prepend(tmp_path / "site")
    check_exist(["bare.inner.last", "bare.inner", "bare.other", "whole.last", "whole", "json.tool", "marshal"])
    for name in ("bare.inner.x", "bare.x", "whole.x", "bare..last"):
        with pytest.raises(ConfigurationError, match=f"there is no module '{name}'"):
            check_exist([name])


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


def forbid_more_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))


def test_a_cluster_that_cannot_start_a_process_ends_with_one_line(tmp_path: Path) -> None:
    options = ["--preload", "", "--cluster", str(tmp_path / "cluster")]
    done = subprocess.run(
        [sys.executable, "-m", "chimera", "infer", "up", *options],
        capture_output=True, check=False, preexec_fn=forbid_more_files, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert re.fullmatch(r"error: \w+ cannot be started: Too many open files \(ulimit -n\)\n", done.stderr)


def test_a_process_that_cannot_be_started_is_tried_again(tmp_path: Path) -> None:
    folder, said = ClusterFolder(tmp_path / "cluster"), list[str]()
    folder.create()
    (folder.path / "logs").touch()
    process = ManagedProcess("w0", ["chimera.inference.supervisor", "--help"], folder, {})
    with pytest.raises(UnavailableError, match="w0 cannot be started: "):
        process.start()
    until(lambda: process.check(said.append) or len(said) == SHORT_RUNS - 1)
    assert said[0].startswith("w0 cannot be started: ")
    assert said[0].endswith("; the next attempt is in 0.2 s")
    (row,) = FailingProcesses(folder.failing).states().values()
    assert row.state == f"fails: {said[-1].removeprefix('w0 ')}"
    (folder.path / "logs").unlink()
    until(lambda: process.check(said.append) or process.process is not None)
    process.end(0.0)


def test_a_worker_that_cannot_be_started_is_reported_and_tried_again(tmp_path: Path) -> None:
    folder, said, count = ClusterFolder(tmp_path / "cluster"), list[str](), 0
    folder.create()
    (folder.path / "logs").touch()
    workers = LocalWorkers(lambda: count, lambda name: ManagedProcess(name, ["json.tool"], folder, {}), adjust_s=0.0)
    workers.start()
    count = 1
    until(lambda: workers.check(said.append) or len(said) == 2)
    assert all(line.startswith("w0 cannot be started: ") for line in said)
    (folder.path / "logs").unlink()
    until(lambda: workers.check(said.append) or not workers.have_ended())
    workers.end(0.0)
