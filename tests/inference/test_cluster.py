"""A cluster of real processes: each query gets one result, even if workers or coordinators die or hang."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

import inference_kit
from chimera.core.errors import ConfigurationError, TimeLimitError
from chimera.inference import models
from chimera.web.client import PATIENCE_S
from inference.running import RunningCluster, cluster, command, signalled, until


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """A cluster without faults."""
    with cluster(tmp_path_factory.mktemp("quiet")) as running:
        yield running


def test_each_query_has_its_result_in_order_and_jobs_can_be_looked_at(quiet: RunningCluster) -> None:
    job = quiet.client.submit(quiet.model(seconds=0.001), list(range(300)), name="numbers")
    row = quiet.client.wait(job, 60)
    assert (row["state"], row["finished"], row["errors"]) == ("done", 300, 0)
    assert quiet.answers(job) == [2 * number for number in range(300)]
    (rate,) = [row for row in quiet.client.rows("rate") if row["job"] == job]
    assert rate["processed"] == 300
    (stats,) = [row for row in quiet.client.rows("stats") if row["job"] == job]
    assert 0.001 <= stats["median_s"] <= stats["p90_s"] <= stats["p95_s"] <= stats["p99_s"]
    assert {row["role"] for row in quiet.client.rows("members")} == {"coordinator", "standby", "worker"}
    assert quiet.client.job("numbers")["job"] == job


def test_a_query_that_fails_has_an_error_and_the_others_their_results(quiet: RunningCluster) -> None:
    job = quiet.client.submit(quiet.model(seconds=0.001), [1, 2, "broken", 4], batch_size=4)
    assert quiet.client.wait(job, 60)["errors"] == 1
    answers = quiet.answers(job)
    assert [answers[0], answers[1], answers[3]] == [2, 4, 8]
    assert "a broken query" in answers[2]


def test_results_are_readable_whatever_the_queries_contain(quiet: RunningCluster) -> None:
    queries = [{"a": np.zeros(2)}, [{"b": [np.int64(3)]}], (np.array([1j]), np.nan), b"bytes", 2**70]
    job = quiet.client.submit(quiet.model(), queries)
    quiet.client.wait(job, 60)
    rows = list(quiet.client.results(job))
    assert [row["query"] for row in rows] == [{"a": [0, 0]}, [{"b": [3]}], [[None], None], None, 2**70]
    assert rows[4]["result"] == 2**71


def test_a_model_that_cannot_be_loaded_is_the_error_of_its_queries(quiet: RunningCluster) -> None:
    job = quiet.client.submit({"kind": "factory", "factory": f"{quiet.model_file}:nothing", "options": {}}, [1, 2])
    row = quiet.client.wait(job, 60)
    assert (row["state"], row["errors"]) == ("failed", 2)
    assert all("nothing" in answer for answer in quiet.answers(job))


@pytest.mark.long
def test_a_job_is_changed_and_cancelled(quiet: RunningCluster) -> None:
    job = quiet.client.submit(quiet.model(seconds=0.02), list(range(5000)), batch_size=5)
    quiet.processed(job, 10)
    assert command(quiet, "set", job, "--batch-size", "3", "--weight", "2")[0]["job"] == job
    assert quiet.client.job(job)["batch_size"] == 3
    with pytest.raises(TimeLimitError):
        quiet.client.wait(job, 0.1)
    assert command(quiet, "cancel", job) == [{"job": job}]
    assert quiet.client.job(job)["state"] == "cancelled"
    until(lambda: all(row["state"] == "free" for row in quiet.client.rows("workers")))
    kept = [row["index"] for row in quiet.client.results(job)]
    assert kept == sorted(set(kept))  # a batch that was under way may be missing between two that were done
    assert 10 <= len(kept) < 5000


def test_the_fork_server_of_all_workers_is_started_again(quiet: RunningCluster) -> None:
    def servers() -> list[psutil.Process]:
        found = []
        for one in psutil.Process(quiet.up.pid).children():
            with contextlib.suppress(psutil.Error):  # it has just ended
                found += [one] if "chimera.inference.worker.fork_server" in one.cmdline() else []
        return found

    quiet.client.wait(quiet.client.submit(quiet.model(seconds=0.002), list(range(20))), 60)
    (server,) = servers()
    assert 1 <= len(server.children()) <= 8  # two workers with four models at most
    server.kill()
    until(lambda: [one.pid for one in servers()] not in ([], [server.pid]))
    row = quiet.client.wait(quiet.client.submit(quiet.model(seconds=0.003), list(range(20))), 60)
    assert (row["state"], row["errors"]) == ("done", 0)


@pytest.mark.takes("torch and transformers are imported once")
@pytest.mark.long
def test_libraries_are_imported_before_a_job_and_once_for_all_workers(tmp_path: Path) -> None:
    folder = inference_kit.tiny_bert(tmp_path / "bert")
    with cluster(tmp_path, workers=2, standbys=0, options=("--preload", "auto")) as running:

        def with_torch() -> list[psutil.Process]:
            there = psutil.Process(running.up.pid).children(recursive=True)
            return [one for one in there if "libtorch" in Path(f"/proc/{one.pid}/maps").read_text()]

        (ahead,) = until(with_torch)
        table = {"kind": "transformers", "task": "fill-mask", "model": str(folder)}
        job = running.client.submit(models.read(table), ["the cat sat on the [MASK] ."] * 400, batch_size=4)
        assert running.client.wait(job, 60)["errors"] == 0
        found = with_torch()
        computing = [one for one in found if os.getsid(one.pid) == one.pid]
        loaders = {one.parent() for one in computing}
        assert len(computing) == len([row for row in running.client.rows("workers") if row["models"]])
        assert {*found} == {ahead, *loaders, *computing}
        assert [one.parent() for one in loaders if one is not None] == [ahead]


@pytest.mark.takes("the processes of hung workers are replaced")
def test_a_job_that_hangs_is_cancelled_and_its_workers_are_free_for_others(quiet: RunningCluster) -> None:
    hung = quiet.client.submit(quiet.model(seconds=1000.0), [1, 2, 3], batch_size=1)
    until(lambda: all(row["job"] == hung for row in quiet.client.rows("workers")))
    assert quiet.client.cancel(hung) == hung
    job = quiet.client.submit(quiet.model(seconds=0.001), [1, 2, 3])
    assert quiet.client.wait(job, 60)["state"] == "done"
    assert quiet.answers(job) == [2, 4, 6]


@pytest.mark.long
def test_a_query_that_hangs_gets_an_error_after_the_time_limit_of_its_job(quiet: RunningCluster) -> None:
    hung = quiet.client.submit(quiet.model(seconds=1000.0), [1], batch_timeout_s=1000)
    until(lambda: any(row["job"] == hung for row in quiet.client.rows("workers")))
    assert command(quiet, "set", hung, "--batch-timeout-s", "0.3") == [{"job": hung, "batch_timeout_s": 0.3}]
    quiet.client.cancel(hung)
    job = quiet.client.submit(quiet.model(seconds=1000.0), [1], batch_timeout_s=0.3)
    assert quiet.client.job(job)["batch_timeout_s"] == 0.3
    assert quiet.client.wait(job, 60)["errors"] == 1
    assert quiet.answers(job)[0].endswith(": the batch took longer than 0.3 s")
    with pytest.raises(ConfigurationError, match="batch_timeout_s must be 'auto' or a number above 0, not -1"):
        quiet.client.change(job, batch_timeout_s=-1)


@pytest.mark.long
def test_workers_are_drained_and_restarted_also_if_they_are_stopped(tmp_path: Path) -> None:
    with cluster(tmp_path, workers=2, standbys=0) as running:
        job = running.client.submit(running.model(seconds=0.02), list(range(300)), batch_size=5)
        running.processed(job, 10)
        assert command(running, "drain", "w1")[0]["worker"] == "w1"
        until(lambda: {row["worker"]: row["state"] for row in running.client.rows("workers")}["w1"] == "drained")
        pids = {name: running.pid(name) for name in ("w0", "w1")}
        signalled(pids["w0"], signal.SIGSTOP)
        for name in ("w0", "w1"):
            assert command(running, "restart", name) == [{"worker": name, "state": "restarting"}]
        assert running.client.wait(job, 60)["state"] == "done"
        until(lambda: all(running.pid(name) != pid for name, pid in pids.items()))
        until(lambda: all(row["state"] == "free" for row in running.client.rows("workers")))
        assert running.answers(job) == [2 * number for number in range(300)]
        with pytest.raises(ConfigurationError, match="there is no worker 'w9'; the workers: w0, w1"):
            running.client.restart("w9")


@pytest.mark.long
def test_the_commands_print_json(quiet: RunningCluster) -> None:
    job = quiet.client.submit(quiet.model(seconds=0.001), [1, 2, 3])
    assert command(quiet, "wait", job)[0]["state"] == "done"
    assert command(quiet, "results", job) == [{"index": i, "query": i + 1, "result": 2 * i + 2} for i in range(3)]
    for view, keys in {
        "rate": {"job", "rate", "processed"},
        "stats": {"job", "mean_s", "std_s", "median_s", "p90_s", "p95_s", "p99_s"},
        "list": {"job", "state", "queries"},
        "workers": {"worker", "state", "job"},
        "members": {"role", "name", "host", "pid", "state", "epoch", "heartbeat_age_s"},
    }.items():
        (rows,) = command(quiet, view)
        assert rows
        assert all(keys <= row.keys() for row in rows)


@pytest.mark.long
def test_mistakes_are_told_in_one_line(quiet: RunningCluster) -> None:
    with pytest.raises(ConfigurationError, match="there is no job '77'"):
        quiet.client.cancel("77")
    began_s = time.monotonic()
    with pytest.raises(ConfigurationError, match="there is no job '77'"):
        list(quiet.client.results("77"))
    assert time.monotonic() - began_s < PATIENCE_S
    with pytest.raises(ConfigurationError, match="weight must be a number above 0"):
        quiet.client.submit(quiet.model(), [1], weight=-1)
    with pytest.raises(ConfigurationError, match="at least one query"):
        quiet.client.submit(quiet.model(), [])
    with pytest.raises(ConfigurationError, match="a job at most 1073741824: submit several jobs"):
        quiet.client.submit(quiet.model(), [np.zeros(1 << 28)])


@pytest.mark.long
def test_two_jobs_of_unequal_speed_progress_at_equal_rates(quiet: RunningCluster) -> None:
    slow = quiet.client.submit(quiet.model(seconds=0.024), list(range(400)))
    fast = quiet.client.submit(quiet.model(seconds=0.01), list(range(400)))
    quiet.processed(slow, 200)
    finished = [quiet.client.job(job)["finished"] for job in (slow, fast)]
    largest = 0.75 / 0.01  # queries in a batch of the fast one, which takes 0.75 s
    assert abs(finished[0] - finished[1]) <= 2 * largest
    for job in (slow, fast):
        quiet.client.cancel(job)


@pytest.mark.takes("workers are killed and stopped for 3 s")
def test_killed_and_hung_workers_cost_no_result(tmp_path: Path) -> None:
    with cluster(tmp_path, workers=3) as running:
        job = running.client.submit(running.model(seconds=0.01), list(range(600)), batch_size=20)
        running.processed(job, 40)
        signalled(running.pid("w0"), signal.SIGKILL)
        hung = running.pid("w1")
        signalled(hung, signal.SIGSTOP)
        until(lambda: any(row["state"] == "hung" for row in running.client.rows("workers")))
        signalled(hung, signal.SIGCONT)
        assert running.client.wait(job, 60)["state"] == "done"
        assert running.answers(job) == [2 * number for number in range(600)]


@pytest.mark.long
def test_a_killed_coordinator_is_replaced_and_no_finished_batch_runs_again(tmp_path: Path) -> None:
    log = tmp_path / "answered"
    with cluster(tmp_path, workers=2, standbys=1) as running:
        job = running.client.submit(running.model(seconds=0.01, log=str(log)), list(range(400)), batch_size=20)
        running.processed(job, 60)
        first = running.member("coordinator")
        signalled(first["pid"], signal.SIGKILL)
        until(lambda: running.member("coordinator")["epoch"] > first["epoch"])
        assert running.client.wait(job, 60)["state"] == "done"
        assert running.answers(job) == [2 * number for number in range(400)]
    assert Counter(log.read_text().split()) == Counter(map(str, range(400)))  # workers live: each was computed once


@pytest.mark.long
def test_a_coordinator_that_wakes_up_late_does_no_harm(tmp_path: Path) -> None:
    log = tmp_path / "answered"
    with cluster(tmp_path, workers=2, standbys=1) as running:
        job = running.client.submit(running.model(seconds=0.01, log=str(log)), list(range(400)), batch_size=20)
        running.processed(job, 60)
        first = running.member("coordinator")
        signalled(first["pid"], signal.SIGSTOP)
        until(lambda: running.member("coordinator")["epoch"] > first["epoch"])
        running.processed(job, 160)
        signalled(first["pid"], signal.SIGCONT)
        assert running.client.wait(job, 60)["state"] == "done"
        assert running.answers(job) == [2 * number for number in range(400)]
    assert Counter(log.read_text().split()) == Counter(map(str, range(400)))


@pytest.mark.long
def test_a_query_that_kills_workers_gets_an_error_and_the_others_of_its_batch_their_results(tmp_path: Path) -> None:
    with cluster(tmp_path, workers=2, standbys=0) as running:
        job = running.client.submit(running.model(seconds=0.001, lethal=57), list(range(100)), batch_size=10)
        assert running.client.wait(job, 60)["errors"] == 1
        answers = running.answers(job)
        assert answers[:57] + answers[58:] == [2 * number for number in range(100) if number != 57]
        assert re.match(r"this query has no result after [3-5] attempts .*was killed by SIGKILL", answers[57])


@pytest.mark.long
def test_jobs_go_on_after_the_whole_cluster_was_down(tmp_path: Path) -> None:
    with cluster(tmp_path, workers=2, standbys=0) as running:
        job = running.client.submit(running.model(seconds=0.01), list(range(200)), batch_size=10)
        running.processed(job, 30)
    with cluster(tmp_path, workers=1, standbys=0) as running:
        assert running.client.wait(job, 60)["state"] == "done"
        assert running.answers(job) == [2 * number for number in range(200)]


@pytest.mark.long
def test_a_job_is_forgotten_when_its_days_are_over(tmp_path: Path) -> None:
    with cluster(tmp_path, workers=1, standbys=0, options=["--keep-days", "0"]) as running:
        jobs = [running.client.submit(running.model(seconds=0.001), [1, 2]) for _ in range(2)]
        running.client.wait(jobs[1], 60)
        until(lambda: [row["job"] for row in running.client.rows("jobs")] == jobs[1:])
        assert running.answers(jobs[1]) == [2, 4]
        with pytest.raises(ConfigurationError, match=f"no job '{jobs[0]}'"):
            running.answers(jobs[0])
