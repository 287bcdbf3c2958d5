"""Jobs on a real Slurm: the commands for jobs, and the same bits after each way in which Slurm interrupts a job."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.jobs.cluster_kit import chimera, experiment, json_output
from tests.jobs.slurm_kit import WAIT_S, Slurm, slurm, until

from chimera.core.engine import ENGINES
from chimera.core.errors import ConfigurationError, RunError
from chimera.jobs.client.handle import JobHandle, client_of, submit
from chimera.jobs.slurm import client, commands, states

pytestmark = pytest.mark.long
ROUNDS = 2500
SLURM = "partition=short,time=30m"
MODEL = """
import torch

def build():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    """Run a Slurm."""
    with slurm() as running:
        yield running


@pytest.fixture(autouse=True)
def empty(cluster: Slurm) -> Iterator[None]:
    """End all jobs after each test, and wait until both nodes are idle."""
    yield
    cluster.call("scancel", "--user=root")
    until(lambda: cluster.nodes("idle") == 2)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the digest of the weights of a run that was not interrupted."""
    folder = tmp_path_factory.mktemp("undisturbed")
    done = chimera("train", experiment(folder, rounds=ROUNDS), "--out", "run", "--quiet", cwd=folder)
    assert done.returncode == 0, done.stderr
    return weights(folder / "run")


def weights(run: Path) -> str:
    return hashlib.sha256((run / "weights.safetensors").read_bytes()).hexdigest()


def submitted(folder: Path, *, rounds: int = ROUNDS, slurm: str = SLURM, **given: Any) -> JobHandle:
    return submit(experiment(folder, rounds=rounds), cluster=folder / "jobs", slurm=slurm, **given)


def log_of(folder: Path, job: JobHandle) -> str:
    return (folder / "jobs" / "jobs" / job.id / "log").read_text()


def reached(job: JobHandle, progress: float) -> None:
    """Wait until a job has made progress."""
    until(lambda: job.status["progress"] >= progress)


def test_the_commands_for_jobs_work_on_slurm(cluster: Slurm, tmp_path: Path, undisturbed: str) -> None:
    file = experiment(tmp_path, rounds=ROUNDS)
    assert json_output("submit", file, "--slurm", SLURM, cwd=tmp_path) == {"job": "1"}
    until(lambda: json_output("jobs", cwd=tmp_path)[0]["state"] == "running")
    (row,) = json_output("jobs", cwd=tmp_path)
    assert row["reason"].startswith(f"Slurm job {row['slurm']} on n")
    (process,) = json_output("cluster", "status", cwd=tmp_path)
    assert (process["role"], process["job"]) == ("slurm job", "1")
    followed = chimera("follow", "1", "--json", cwd=tmp_path, timeout_s=WAIT_S)
    assert followed.returncode == 0, followed.stderr
    updates = [json.loads(line) for line in followed.stdout.splitlines()]
    told = [update["told"] for update in updates if "told" in update]
    assert "start" in told[0]
    fractions = [one["progress"]["fraction"] for one in told if "progress" in one]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert told[-1]["summary"]["rounds"] == ROUNDS
    assert updates[-1]["job"]["state"] == "done"
    assert chimera("fetch", "1", "-o", "mine", cwd=tmp_path).returncode == 0
    assert weights(tmp_path / "mine") == undisturbed
    assert (tmp_path / "mine" / "log").exists()
    assert [path for path in (tmp_path / "runs" / "cluster").rglob("*") if path.stat().st_mode & 0o077] == []
    again = chimera("cancel", "1", cwd=tmp_path)
    assert (again.returncode, again.stderr) == (1, "error: job 1: a job that is done cannot be cancelled\n")


def test_ctrl_c_ends_the_display_and_not_the_job(cluster: Slurm, tmp_path: Path) -> None:
    job = submitted(tmp_path)
    follower = subprocess.Popen(
        [sys.executable, "-m", "chimera", "follow", job.id, "--folder", "jobs"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, stdout=subprocess.PIPE, text=True,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert follower.stdout is not None
    assert follower.stdout.readline()
    reached(job, 0.01)
    follower.send_signal(signal.SIGINT)
    _, errors = follower.communicate(timeout=WAIT_S)
    assert follower.returncode == 130, errors
    assert "job 1 continues; to follow it again: chimera follow 1 --folder jobs" in errors
    assert job.status["state"] == "running"


def test_a_job_waits_for_room_and_a_cancelled_one_resumes_with_the_same_bits(
    cluster: Slurm, tmp_path: Path, undisturbed: str
) -> None:
    jobs = [submitted(tmp_path) for _ in range(3)]  # of two processors each, on two nodes of two
    until(lambda: jobs[2].status["reason"].endswith("waits: Resources"))
    assert jobs[2].status["state"] == "queued"
    jobs[2].cancel()
    assert jobs[2].status["state"] == "cancelled"
    jobs[1].cancel()
    reached(jobs[0], 0.1)
    jobs[0].cancel()
    assert jobs[0].status["state"] == "cancelled"
    kept = jobs[0].status["progress"]
    assert kept > 0
    with pytest.raises(RunError, match="job 1 is cancelled"):
        jobs[0].result()
    jobs[0].retry()
    assert weights(jobs[0].result(tmp_path / "mine", timeout_s=WAIT_S)) == undisturbed, log_of(tmp_path, jobs[0])
    assert jobs[0].status["attempt"] == 2


def test_a_signal_before_the_time_limit_requeues_the_job_with_the_same_bits(
    cluster: Slurm, tmp_path: Path, undisturbed: str
) -> None:
    job = submitted(tmp_path)
    reached(job, 0.1)
    cluster.call("scancel", "--batch", "--signal=USR1", job.status["slurm"])  # as Slurm sends it
    until(lambda: job.status["state"] == "queued")
    assert "waits: " in job.status["reason"]
    assert job.wait(WAIT_S)["state"] == "done", log_of(tmp_path, job)
    assert job.status["attempt"] == 2
    assert weights(job.fetch(tmp_path / "mine")) == undisturbed


@pytest.mark.slow
def test_a_job_longer_than_its_time_limit_ends_in_several_attempts_with_the_same_bits(
    cluster: Slurm, tmp_path: Path
) -> None:
    rounds = 10 * ROUNDS
    done = chimera(
        "train", experiment(tmp_path, rounds=rounds), "--out", "run", "--quiet", cwd=tmp_path, timeout_s=WAIT_S
    )
    assert done.returncode == 0, done.stderr
    job = submitted(tmp_path, rounds=rounds, slurm="time=1m,lead=55s")
    assert job.wait(4 * WAIT_S)["state"] == "done", log_of(tmp_path, job)
    assert job.status["attempt"] > 1
    assert weights(job.fetch(tmp_path / "mine")) == weights(tmp_path / "run")


def test_an_administrator_requeues_a_job_with_the_same_bits(cluster: Slurm, tmp_path: Path, undisturbed: str) -> None:
    job = submitted(tmp_path)
    reached(job, 0.1)
    cluster.call("scontrol", "requeue", job.status["slurm"])
    assert job.wait(WAIT_S)["state"] == "done", log_of(tmp_path, job)
    assert job.status["attempt"] == 2
    assert weights(job.fetch(tmp_path / "mine")) == undisturbed


def test_a_job_survives_the_death_of_its_node_with_the_same_bits(
    cluster: Slurm, tmp_path: Path, undisturbed: str
) -> None:
    job = submitted(tmp_path)
    reached(job, 0.1)
    (node,) = job.status["on"]
    cluster.kill_node(node)
    try:
        assert job.wait(WAIT_S)["state"] == "done", log_of(tmp_path, job)
        assert job.status["attempt"] == 2
        assert weights(job.fetch(tmp_path / "mine")) == undisturbed
    finally:
        cluster.start_node(node)


def test_a_job_cancelled_by_slurms_own_command_is_not_requeued(cluster: Slurm, tmp_path: Path) -> None:
    job = submitted(tmp_path)
    reached(job, 0.05)
    cluster.call("scancel", job.status["slurm"])
    assert job.wait(WAIT_S)["state"] == "cancelled"
    assert cluster.call("squeue", "-h", "-t", "PD,R").strip() == ""


def test_a_failure_is_shown_with_its_error_and_a_job_after_it_is_refused(cluster: Slurm, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def build():\n    raise RuntimeError('no such layer')\n")
    job = submitted(tmp_path, settings=[f"model={tmp_path / 'own.py'}:build"])
    row = job.wait(WAIT_S)
    assert row["state"] == "failed"
    assert "no such layer" in row["reason"]
    with pytest.raises(RunError, match="job 1, after which this one would run, is failed"):
        submitted(tmp_path, after=job)
    first = submitted(tmp_path, rounds=500)
    second = submitted(tmp_path, rounds=20, after=first)
    assert second.status["reason"].endswith("Dependency")
    assert second.wait(WAIT_S)["state"] == "done"
    assert first.status["state"] == "done"


@pytest.mark.skipif(
    "mpi" not in [entry.name for entry in ENGINES.entries()] or importlib.util.find_spec("mpi4py") is None,
    reason="the engine mpi is not installed: pip install 'chimera-dml[mpi]'",
)
def test_a_job_on_two_nodes_runs_on_ranks_of_mpi(cluster: Slurm, tmp_path: Path) -> None:
    job = submitted(tmp_path, rounds=100, slurm="nodes=2,time=5m")
    assert job.wait(WAIT_S)["state"] == "done", log_of(tmp_path, job)
    assert "n[1-2]" in (tmp_path / "jobs" / "jobs" / job.id / "attempts").read_text()
    assert json.loads((job.fetch(tmp_path / "mine") / "summary.json").read_bytes())["engine"] == "mpi"


def test_slurms_refusal_is_one_line_and_leaves_no_job(cluster: Slurm, tmp_path: Path) -> None:
    done = chimera("submit", experiment(tmp_path), "--slurm", "partition=nowhere", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: Slurm refuses the job: ")
    assert "nvalid partition" in done.stderr
    assert done.stderr.count("\n") == 1
    assert json_output("jobs", cwd=tmp_path) == []
    with pytest.raises(ConfigurationError, match="needs the engine mpi"):
        submitted(tmp_path, slurm="nodes=2", settings=["engine=local"])


def test_a_comparison_runs_as_an_array_survives_ctrl_c_and_equals_that_of_this_machine(
    cluster: Slurm, tmp_path: Path
) -> None:
    file, code = experiment(tmp_path, rounds=200), tmp_path / "own.py"
    code.write_text(MODEL)
    grid = [
        "compare",
        file,
        "--set",
        "model=own.py:build",
        "--vary",
        "train.batch_size=16,32",
        "--vary",
        "codec=identity,int8",
        "--quiet",
    ]
    here = compared(*grid, "--out", "here", cwd=tmp_path)
    command = [*grid, "--slurm", f"{SLURM},array_limit=1", "--out", "there"]
    waiting = subprocess.Popen(
        [sys.executable, "-m", "chimera", *map(str, command)],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until(lambda: any((tmp_path / "there").glob("*/metrics.jsonl")))
    waiting.send_signal(signal.SIGINT)
    _, errors = waiting.communicate(timeout=WAIT_S)
    assert waiting.returncode == 130, errors
    assert "the unfinished runs continue on Slurm\nto wait for them again: chimera compare " in errors
    code.write_text("def build():\n    raise RuntimeError('changed after the submission')\n")
    number = json.loads((tmp_path / "there" / "slurm" / "array.json").read_bytes())["slurm"]
    there = compared(*command, "--resume", cwd=tmp_path)
    assert json.loads((tmp_path / "there" / "slurm" / "array.json").read_bytes())["slurm"] == number
    assert [run["state"] for run in there["runs"]] == ["finished"] * 4
    assert [run["metrics"] for run in there["runs"]] == [run["metrics"] for run in here["runs"]]
    assert (tmp_path / "there" / "comparison.html").exists()


def compared(*words: object, cwd: Path) -> Any:
    """Return the output of ``chimera compare`` as JSON."""
    done = chimera(*words, "--json", cwd=cwd, timeout_s=WAIT_S)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def replace_sbatch(folder: Path, body: str) -> str:
    """Write a program ``sbatch`` in which ``$SBATCH`` is the real one, and return a search path that begins with it."""
    program = folder / "bin" / "sbatch"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nSBATCH={shutil.which('sbatch')}\n{body}\n")
    program.chmod(0o700)
    return f"{program.parent}{os.pathsep}{os.environ['PATH']}"


def numbers(cluster: Slurm) -> list[str]:
    """Return Slurm's numbers of the jobs that wait or run."""
    return cluster.call("squeue", "--noheader", "--format=%i", "--states=PD,R,CF").split()


def all_numbers(cluster: Slurm) -> set[str]:
    """Return Slurm's numbers of all jobs that it still lists, also of those that have ended."""
    return set(cluster.call("squeue", "--noheader", "--format=%i", "--states=all").split())


def test_a_submission_whose_answer_is_lost_has_one_job(
    cluster: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", replace_sbatch(tmp_path, '$SBATCH "$@" >/dev/null; exec sleep 600'))
    monkeypatch.setattr(commands, "_TIMEOUT_S", 10.0)
    before = all_numbers(cluster)
    job = submitted(tmp_path)
    first = job.status["slurm"]
    assert all_numbers(cluster) - before == {first}
    job.cancel()
    job.retry()
    assert all_numbers(cluster) - before == {first, job.status["slurm"]}
    assert job.status["slurm"] != first
    assert job.wait(WAIT_S)["state"] == "done", log_of(tmp_path, job)


def test_a_job_that_slurm_accepts_after_the_time_limit_of_sbatch_is_found(
    cluster: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = tmp_path / "go"
    late = f'(until [ -e {go} ]; do sleep 0.1; done; $SBATCH "$@") >/dev/null 2>&1 & exec sleep 600'
    with monkeypatch.context() as slow:
        slow.setenv("PATH", replace_sbatch(tmp_path, late))
        slow.setattr(commands, "_TIMEOUT_S", 3.0)
        with pytest.raises(commands.Unanswered, match=r"job 1: Slurm has not confirmed the submission .*do not submit"):
            submitted(tmp_path)
    job = JobHandle(client_of(tmp_path / "jobs"), "1")
    assert (job.status["state"], job.status["slurm"]) == ("queued", "")
    with pytest.raises(RunError, match="job 1: a job that is queued cannot be retried"):
        job.retry()
    go.touch()
    until(lambda: job.status["slurm"] != "")
    assert numbers(cluster) == [job.status["slurm"]]
    assert job.wait(WAIT_S)["state"] == "done", log_of(tmp_path, job)


@pytest.mark.parametrize("accepted", [True, False])
def test_a_submitter_killed_around_its_submission_leaves_one_job_that_is_known(
    cluster: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accepted: bool
) -> None:
    file = experiment(tmp_path, rounds=100)
    with monkeypatch.context() as killing:
        killing.setenv("PATH", replace_sbatch(tmp_path, f'{"$SBATCH" if accepted else ":"} "$@"; kill -9 $PPID'))
        assert chimera("submit", file, "--slurm", SLURM, "--folder", "jobs", cwd=tmp_path).returncode == -signal.SIGKILL
    job = JobHandle(client_of(tmp_path / "jobs"), "1")
    if not accepted:
        assert (job.status["state"], job.status["slurm"]) == ("queued", "")
        for module in (client, states):
            monkeypatch.setattr(module, "CONFIRM_S", 0.0)  # the time is over
        assert job.status["reason"] == "Slurm has not accepted the job: its submission was interrupted"
        job.retry()
    assert len(numbers(cluster)) <= 1
    row = job.wait(WAIT_S)
    assert (row["state"], row["attempt"]) == ("done", 1), log_of(tmp_path, job)
    assert row["slurm"]


def test_a_comparison_killed_around_its_submission_waits_for_its_array(
    cluster: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = ["compare", experiment(tmp_path, rounds=100), "--vary", "codec=identity,int8", "--quiet"]
    grid += ["--slurm", SLURM, "--out", "there"]
    with monkeypatch.context() as killing:
        killing.setenv("PATH", replace_sbatch(tmp_path, '$SBATCH --hold "$@"; kill -9 $PPID'))
        assert chimera(*grid, cwd=tmp_path).returncode == -signal.SIGKILL
    array = tmp_path / "there" / "slurm" / "array.json"
    assert json.loads(array.read_bytes())["slurm"] == ""
    (number,) = {each.partition("_")[0] for each in numbers(cluster)}
    resumed = subprocess.Popen(
        [sys.executable, "-m", "chimera", *map(str, grid), "--resume", "--json"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    until(lambda: json.loads(array.read_bytes())["slurm"] == number)
    cluster.call("scontrol", "release", number)
    output, _ = resumed.communicate(timeout=WAIT_S)
    assert [run["state"] for run in json.loads(output)["runs"]] == ["finished"] * 2


def test_the_commands_work_while_slurm_does_not_answer(
    cluster: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submitted(tmp_path, rounds=100)
    assert job.wait(WAIT_S)["state"] == "done"
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    reader = client_of(tmp_path / "jobs")
    assert [row["state"] for row in reader.jobs()] == ["done"]
    assert "summary.json" in reader.fetch(job.id, tmp_path / "mine")
    with pytest.raises(ConfigurationError, match=r"'sbatch' was not found on .*login node"):
        submitted(tmp_path)
