"""Jobs on a cluster of real processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from tests.jobs.cluster_kit import Running, experiment, json_output, running

import chimera
from chimera.core.errors import ConfigurationError, RunError
from chimera.jobs.client.client import Client
from chimera.jobs.client.handle import JobHandle
from chimera.jobs.daemon.streams import MAX_FOLLOWERS
from chimera.jobs.scheduling.requirements import versions
from chimera.jobs.session import down
from chimera.jobs.store.records import Submission

pytestmark = pytest.mark.long
PATIENCE_S = 60.0
STRATEGY = """
from itertools import count
from turns import turn
from chimera.strategies.strategy import Round, Strategy

class Cyclic(Strategy):
    family = "synchronous"

    def rounds(self, cluster):
        (server,) = cluster.servers(1)
        weights = [server.weights()]
        for step in count(cluster.round):
            worker = turn(cluster.workers, step)
            (gradient,) = worker.gradient(*weights, returns=1)
            updated, done = server.update(gradient, returns=2)
            weights = [updated]
            yield Round([done])

    def batches_per_round(self, workers):
        return 1
"""


def ranks(worker: Any, factor: int) -> list[int]:
    """Return the scaled rank and the sum over all workers."""
    return [worker.rank * factor, int(worker.all_reduce(worker.rank + 1))]


def fails(worker: Any) -> None:
    """Fail on the last worker."""
    if worker.rank:
        raise ValueError("the well is dry")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("jobs") / "cluster") as started:
        yield started


@pytest.fixture
def submit(cluster: Running) -> Callable[..., JobHandle]:
    return lambda what, *args, **options: chimera.submit(what, *args, cluster=cluster.folder.path, **options)


def until(known: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not known():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_code_beside_the_experiment_is_uploaded(submit: Any, tmp_path: Path) -> None:
    file = experiment(tmp_path / "mine", rounds=20, strategy="cyclic.py:Cyclic")
    (tmp_path / "mine" / "cyclic.py").write_text(STRATEGY)
    (tmp_path / "mine" / "turns.py").write_text("def turn(workers, step):\n    return workers[step % len(workers)]\n")
    run = submit(file).result(tmp_path / "run", PATIENCE_S)
    assert msgspec.json.decode((run / "summary.json").read_bytes())["rounds"] == 20


def test_a_function_runs_on_each_worker_and_returns_its_results(submit: Any) -> None:
    assert submit(ranks, 10).result(timeout_s=PATIENCE_S) == [[0, 3], [10, 3]]


def test_an_exception_of_a_function_is_the_reason_of_the_failure(submit: Any) -> None:
    with pytest.raises(RunError, match=r"is failed: ValueError.*the well is dry"):
        submit(fails).result(timeout_s=PATIENCE_S)


def test_a_cancelled_and_retried_job_has_the_bits_of_an_undisturbed_one(
    submit: Any, cluster: Running, tmp_path: Path
) -> None:
    file = experiment(tmp_path, rounds=600)
    alone = submit(file)
    alone.result(tmp_path / "alone", PATIENCE_S)
    job, waiting = submit(file), submit(file)
    checkpoints = cluster.folder.job(job.id).run / "checkpoints"
    until(lambda: len(list(checkpoints.glob("*.safetensors"))) > 1)
    waiting.cancel()
    job.cancel()
    assert waiting.status["state"] == job.status["state"] == "cancelled"
    until(lambda: not cluster.pids("driver"))
    partial = job.fetch(tmp_path / "partial")
    assert (partial / "metrics.jsonl").exists()
    assert not (partial / "summary.json").exists()
    job.retry()
    job.result(tmp_path / "run", PATIENCE_S)
    assert job.status["attempt"] == 2
    updated = [row["told"] for row in job.follow() if "told" in row]
    starts = [row["start"]["rounds"] for row in updated if "start" in row]
    assert starts[0] == 0 < starts[1]
    assert cluster.weights(job.id) == cluster.weights(alone.id)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the threads of a process in /proc")
def test_processes_that_fork_have_one_thread(cluster: Running) -> None:
    for pid in (*cluster.pids("supervisor"), *cluster.pids("worker")):
        threads = [task.joinpath("comm").read_text().strip() for task in Path(f"/proc/{pid}/task").iterdir()]
        assert len([name for name in threads if name != "jemalloc_bg_thd"]) == 1  # jemalloc's thread is safe for forks


def test_a_job_running_at_the_end_of_its_cluster_resumes_with_the_next(tmp_path: Path) -> None:
    with running(tmp_path / "cluster") as cluster:
        job = chimera.submit(experiment(tmp_path, rounds=600), cluster=cluster.folder.path)
        checkpoints = cluster.folder.job(job.id).run / "checkpoints"
        until(lambda: len(list(checkpoints.glob("*.safetensors"))) > 1)
    with running(tmp_path / "cluster") as cluster:
        row = cluster.client.wait(job.id, PATIENCE_S)
        assert (row["state"], row["attempt"]) == ("done", 2)


def test_a_cluster_whose_supervisor_is_stopped_ends(tmp_path: Path) -> None:
    with running(tmp_path / "cluster") as cluster:
        (pid,) = cluster.pids("supervisor")
        os.kill(pid, signal.SIGSTOP)
        try:
            assert down(cluster.folder)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def test_a_damaged_store_of_jobs_is_refused_at_once_and_leaves_no_process(tmp_path: Path) -> None:
    with running(tmp_path / "cluster", workers=1) as cluster:
        chimera.submit(experiment(tmp_path, rounds=10), workers=1, cluster=cluster.folder.path).wait(PATIENCE_S)
        assert down(cluster.folder)
        store, began_s = cluster.folder.store, time.monotonic()
        with contextlib.closing(sqlite3.connect(store)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        content = store.read_bytes()
        for damaged in (b"no database".ljust(4096), content[: len(content) // 2]):
            store.write_bytes(damaged)
            with pytest.raises(ConfigurationError, match=r"the cluster did not start: .*jobs\.sqlite is .*damaged"):
                cluster.restart()
            assert cluster.folder.lock_holder() is None
        assert time.monotonic() < began_s + PATIENCE_S / 2
        store.write_bytes(content)
        cluster.restart()
        assert [row["state"] for row in cluster.client.jobs()] == ["done"]


@pytest.mark.parametrize("change", ["deleted", "moved"])
def test_a_cluster_whose_folder_is_gone_ends_with_its_job(change: str, tmp_path: Path) -> None:
    with running(tmp_path / "cluster") as cluster:
        job = chimera.submit(experiment(tmp_path, rounds=100_000), cluster=cluster.folder.path)
        until(lambda: job.status["progress"] > 0)
        pids = [row["pid"] for row in cluster.client.processes()]
        left = [each for pid in pids for each in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True))]
        assert len(left) > 5
        if change == "deleted":
            shutil.rmtree(cluster.folder.path, ignore_errors=True)  # the job writes meanwhile
        else:
            cluster.folder.path.rename(tmp_path / "elsewhere")
        assert psutil.wait_procs(left, timeout=PATIENCE_S)[1] == []


def test_files_of_a_running_job_can_be_fetched(submit: Any, cluster: Running, tmp_path: Path) -> None:
    job = submit(experiment(tmp_path, rounds=100_000))
    until(lambda: (cluster.folder.job(job.id).run / "metrics.jsonl").exists() and job.status["progress"] > 0)
    partial = job.fetch(tmp_path / "partial")
    rows = (partial / "metrics.jsonl").read_bytes()
    assert rows.endswith(b"\n")
    assert all(map(msgspec.json.decode, rows.splitlines()))
    assert (partial / "experiment.toml").exists()
    assert not (partial / "summary.json").exists()
    job.cancel()


def test_an_uploaded_file_is_not_uploaded_again(submit: Any, cluster: Running, tmp_path: Path) -> None:
    file = experiment(tmp_path, rounds=10)
    (tmp_path / "large.bin").write_bytes(bytes(range(256)) * 20_000)
    first = submit(file, include=[tmp_path / "large.bin"])
    files = {place: place.stat().st_ino for place in cluster.folder.files.iterdir()}
    second = submit(file, include=[tmp_path / "large.bin"])
    assert {place: place.stat().st_ino for place in cluster.folder.files.iterdir()} == files
    for job in (first, second):
        job.wait(PATIENCE_S)
        assert (cluster.folder.job(job.id).code / "large.bin").read_bytes() == (tmp_path / "large.bin").read_bytes()


def test_a_job_starts_after_its_dependencies_and_fails_with_them(submit: Any, tmp_path: Path) -> None:
    file = experiment(tmp_path, rounds=40)
    first = submit(file)
    second = submit(file, after=first, priority=5)
    broken = submit(fails)
    third = submit(file, after=[second, broken])
    second.result(tmp_path / "second", PATIENCE_S)
    assert first.status["state"] == "done"
    assert first.status["since_s"] <= second.status["since_s"]
    with pytest.raises(RunError, match=f"job {broken.id}, which it depends on, is failed: ValueError.*the well is dry"):
        third.result(timeout_s=PATIENCE_S)


def test_the_waiting_job_of_highest_priority_is_next(submit: Any, tmp_path: Path) -> None:
    file = experiment(tmp_path, rounds=60)
    blocking = submit(file)
    low, high = submit(file), submit(file, priority=1)
    for job in (blocking, low, high):
        job.result(tmp_path / job.id, PATIENCE_S)
    assert high.status["since_s"] < low.status["since_s"]


def test_a_missing_module_is_an_error_before_the_job_starts(submit: Any, cluster: Running, tmp_path: Path) -> None:
    file = experiment(tmp_path, strategy="mine.py:Mine")
    (tmp_path / "mine.py").write_text("import no_such_library\nfrom chimera.strategies.fed_avg import FedAvg as Mine\n")
    before = len(cluster.client.jobs())
    with pytest.raises(ConfigurationError, match="no_such_library"):
        submit(file)
    assert len(cluster.client.jobs()) == before


def test_another_version_is_refused_before_the_start(cluster: Running, tmp_path: Path) -> None:
    text = experiment(tmp_path).read_text()
    other = {**versions(), "chimera": "0.0.1"}
    job = cluster.client.submit(Submission(name="old", user="ada", experiment=text, workers=2, versions=other), {})
    row = cluster.client.wait(job, PATIENCE_S)
    assert row["state"] == "failed"
    assert "0.0.1" in row["reason"]
    assert not cluster.folder.job(job).log.exists()


def test_more_workers_than_the_cluster_has_are_an_error(submit: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="needs 3 workers, and the cluster has 2"):
        submit(experiment(tmp_path), workers=3)


def test_a_user_has_at_most_the_limit_of_workers(tmp_path: Path) -> None:
    text = experiment(tmp_path, rounds=4000).read_text()
    with running(tmp_path / "cluster", workers=4, limit_per_user=2) as cluster:

        def submitted(user: str, rounds: int) -> str:
            given = {"settings": (f"train.rounds={rounds}",), "workers": 2, "experiment": text}
            return cluster.client.submit(Submission(name="digits", user=user, **given), {})

        first, second, other = submitted("ada", 4000), submitted("ada", 10), submitted("bob", 10)
        assert cluster.client.wait(other, PATIENCE_S)["state"] == "done"
        row = cluster.client.job(second)
        assert row["state"] == "queued"
        assert "ada may have 2 workers at once" in row["reason"]
        cluster.client.cancel(first)
        assert cluster.client.wait(second, PATIENCE_S)["state"] == "done"


def test_a_stopped_worker_does_not_hold_up_a_job_for_which_another_one_is_free(tmp_path: Path) -> None:
    with running(tmp_path / "cluster", workers=2) as cluster:
        pids = {row["name"]: row["pid"] for row in cluster.client.processes()}

        def state(name: str) -> str:
            return next(row["state"] for row in cluster.client.processes() if row["name"] == name)

        os.kill(pids["w0"], signal.SIGSTOP)
        try:
            job = chimera.submit(experiment(tmp_path, rounds=10), workers=1, cluster=cluster.folder.path)
            row = job.wait(PATIENCE_S)
            assert (row["state"], row["on"], row["attempt"]) == ("done", ["w1"], 2)
            assert state("w0") == "silent"
        finally:
            os.kill(pids["w0"], signal.SIGCONT)
        until(lambda: state("w0") == "free")


def test_followers_need_no_thread_each_and_are_limited(tmp_path: Path) -> None:
    with running(tmp_path / "cluster") as cluster:
        job = chimera.submit(experiment(tmp_path, rounds=1_000_000), cluster=cluster.folder.path)
        options = cluster.folder.options()
        assert options is not None
        daemon = psutil.Process(*cluster.pids("daemon"))
        url = f"{options.address}/v1/jobs/{job.id}/follow?now"
        headers = {"Authorization": f"Bearer {cluster.folder.token()}"}

        def follower() -> Any:
            return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=PATIENCE_S)

        with contextlib.ExitStack() as stack:
            before = daemon.num_threads()
            for _ in range(MAX_FOLLOWERS):
                assert stack.enter_context(follower()).readline()
            assert daemon.num_threads() - before < MAX_FOLLOWERS // 2  # threads of the shared pool
            with pytest.raises(urllib.error.HTTPError, match="503"):
                follower()
            assert cluster.client.job(job.id)["job"] == job.id  # the daemon answers other clients
        until(lambda: _answers(follower))
        job.cancel()


def _answers(follower: Callable[[], Any]) -> bool:
    try:
        follower().close()
    except urllib.error.HTTPError:
        return False
    return True


def test_without_the_token_nothing_can_be_read_or_changed(
    cluster: Running, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = cluster.folder.options()
    assert options is not None
    url = f"{options.address}/v1/jobs"
    for path in ("", "/processes", "/1", "/1/run", "/1/live", "/1/follow"):
        for headers in ({}, {"Host": "pages.example.com"}, {"Authorization": "Bearer wrong"}):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(urllib.request.Request(url + path, headers=headers))
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(urllib.request.Request(f"{url}/1/cancel", method="POST"))
    with pytest.raises(ConfigurationError, match="token"):
        Client(lambda: options.address, "wrong").jobs()
    with pytest.raises(ConfigurationError, match="set CHIMERA_CLUSTER_TOKEN"):
        chimera.submit(experiment(tmp_path), cluster=options.address)
    monkeypatch.setenv("CHIMERA_TOKEN", cluster.folder.token())
    with pytest.raises(ConfigurationError, match="CHIMERA_TOKEN is the token of REST nodes"):
        chimera.submit(experiment(tmp_path), cluster=options.address)
    monkeypatch.setenv("CHIMERA_CLUSTER_TOKEN", cluster.folder.token())
    assert json_output("jobs", "--folder", options.address, cwd=tmp_path) == cluster.client.jobs()


@pytest.mark.long
def test_no_request_causes_a_500_and_all_answers_match_the_schema(cluster: Running, tmp_path: Path) -> None:
    options = cluster.folder.options()
    assert options is not None
    command = [str(Path(sys.executable).with_name("schemathesis")), "run", f"{options.address}/openapi.json"]
    command += ["-H", f"Authorization: Bearer {cluster.folder.token()}", "--phases", "examples,coverage,fuzzing"]
    command += ["--max-examples", "10", "--seed", "1", "--continue-on-failure", "--checks", "all", "--exclude-checks"]
    # No schema expresses all requirements on a job.
    command += ["positive_data_acceptance,missing_required_header"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_a_daemon_on_all_interfaces_requires_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIMERA_INSECURE", "1")  # tokens in clear text beyond loopback
    with running(tmp_path / "cluster", workers=1, host="0.0.0.0") as cluster:
        options = cluster.folder.options()
        assert options is not None
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"http://127.0.0.1:{options.port}/v1/jobs")
        assert Client(lambda: f"http://127.0.0.1:{options.port}", cluster.folder.token()).jobs() == []


@pytest.mark.takes("the daemon waits 5 s for the store, and is restarted")
def test_a_job_starts_after_another_process_held_the_store_while_it_was_starting(tmp_path: Path) -> None:
    with running(tmp_path / "cluster", workers=1) as cluster:
        (worker,), (daemon,) = cluster.pids("worker"), cluster.pids("daemon")
        psutil.Process(worker).suspend()
        with contextlib.closing(sqlite3.connect(cluster.folder.store, isolation_level=None)) as other:
            job = chimera.submit(
                experiment(tmp_path, rounds=20), cluster=cluster.folder.path, settings=["train.workers=1"]
            )
            while job.status["state"] != "starting":
                pass
            other.execute("BEGIN IMMEDIATE")  # the commit of the start cannot be recorded
            psutil.Process(worker).resume()
            psutil.Process(daemon).wait(PATIENCE_S)
            other.execute("ROLLBACK")
        assert job.wait(PATIENCE_S)["state"] == "done"
        assert "the daemon restarts: the store of jobs" in cluster.folder.log.read_text()
