"""What an operator sees of jobs on a cluster of real processes: failures, mistakes and logs."""

from __future__ import annotations

import json
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import chimera
from chimera.cli.main import app
from chimera.core.errors import ConfigurationError, ConflictError, RunError, UnavailableError
from chimera.inference.client import Client
from chimera.inference.cluster_folder import ClusterFolder
from inference.running import PATIENCE_S, RunningCluster, cluster, command


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """A cluster without faults."""
    with cluster(tmp_path_factory.mktemp("quiet"), workers=1, standbys=0) as running:
        yield running


def told(cluster: RunningCluster, *words: str) -> tuple[int, str, str]:
    """Return the exit code of a command, its stdout and its stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "chimera", "infer", *words, "--cluster", str(cluster.folder)],
        capture_output=True, check=False, timeout=PATIENCE_S, text=True,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_a_job_whose_queries_all_have_errors_has_failed_and_wait_says_why(quiet: RunningCluster) -> None:
    job = quiet.client.submit(quiet.model(seconds=0.001), ["broken"] * 4, batch_size=2)
    code, out, _ = told(quiet, "wait", job)
    assert code == 1
    assert out == f"job {job} is failed: 4 of 4 queries, 4 errors, the first: ValueError: a broken query\n"
    (rate,) = [row for row in quiet.client.rows("rate") if row["job"] == job]
    assert (rate["state"], rate["errors"], rate["error"]) == ("failed", 4, "ValueError: a broken query")
    _, shown, _ = told(quiet, "rate")
    assert "first error" in shown
    assert "ValueError: a broken query" in shown
    assert quiet.answers(job) == ["ValueError: a broken query"] * 4


@pytest.mark.parametrize(("rate", "state", "code"), [(1.0, "done", 0), (0.25, "done", 0), (0.2, "failed", 1)])
def test_wait_counts_errors_and_fails_beyond_the_permitted_rate(
    quiet: RunningCluster, rate: float, state: str, code: int
) -> None:
    queries = [1, 2, 3, "broken"]
    job = quiet.client.submit(quiet.model(seconds=0.001), queries, batch_size=4, max_error_rate=rate)
    found, out, _ = told(quiet, "wait", job)
    assert (found, f"is {state}: 4 of 4 queries, 1 error, the first: ValueError" in out) == (code, True)


def test_a_job_with_too_many_errors_ends_early_and_keeps_its_results(quiet: RunningCluster) -> None:
    queries = [1, "broken", *range(100_000)]
    job = quiet.client.submit(quiet.model(seconds=0.01), queries, batch_size=2, max_error_rate=0.0)
    row = quiet.client.wait(job, 60)
    assert (row["state"], row["finished"], row["errors"]) == ("failed", 2, 1)
    assert quiet.answers(job) == [2, "ValueError: a broken query"]
    following = quiet.client.submit(quiet.model(seconds=0.001), [4])
    assert quiet.client.wait(following, 60)["state"] == "done"


def test_a_failed_job_is_an_exception_in_python(quiet: RunningCluster) -> None:
    table = quiet.model(seconds=0.001)
    job = chimera.infer(table, ["broken"], cluster=quiet.folder)
    with pytest.raises(RunError, match="is failed: 1 of 1 queries, 1 error, the first: ValueError: a broken query"):
        job.wait(60)
    assert job.results()[0]["error"] == "ValueError: a broken query"
    assert chimera.infer(table, [2, "broken"], cluster=quiet.folder).wait(60).status["state"] == "done"
    with pytest.raises(RunError, match="is failed: "):
        chimera.infer(table, [2, "broken"], cluster=quiet.folder, max_error_rate=0.4).wait(60)
    with pytest.raises(ConfigurationError, match="max_error_rate must be a number from 0 to 1, not 3"):
        chimera.infer(table, [2], cluster=quiet.folder, max_error_rate=3)


def test_the_command_sets_the_permitted_rate_of_errors(quiet: RunningCluster, tmp_path: Path) -> None:
    model, inputs = tmp_path / "model.toml", tmp_path / "queries.jsonl"
    model.write_text(f'kind = "factory"\nfactory = "{quiet.model_file}:make"\n')
    inputs.write_text('1\n"broken"\n')
    words = ("submit", "--model", str(model), "--inputs", str(inputs))
    (submitted,) = command(quiet, *words, "--max-error-rate", "0.1")
    row = quiet.client.wait(submitted["job"], 60)
    assert (row["state"], row["max_error_rate"]) == ("failed", 0.1)
    code, _, error = told(quiet, *words, "--max-error-rate", "2")
    assert code == 2
    assert "max-error-rate" in error


def test_a_job_that_has_ended_cannot_be_changed_or_cancelled(quiet: RunningCluster) -> None:
    job = quiet.client.submit(quiet.model(seconds=0.001), [1, 2])
    quiet.client.wait(job, 60)
    for words in (("cancel", job), ("set", job, "--weight", "2")):
        assert told(quiet, *words) == (1, "", f"error: job {job} has ended already: it is done\n")
    long = quiet.client.submit(quiet.model(seconds=0.01), list(range(10_000)))
    for _ in range(2):  # a request may arrive twice
        assert quiet.client.cancel(long) == long
    with pytest.raises(ConflictError, match="it is cancelled"):
        quiet.client.change(long, weight=2.0)
    assert quiet.client.job(long)["weight"] == 1.0


def test_a_name_that_is_a_number_is_refused(quiet: RunningCluster) -> None:
    with pytest.raises(ConfigurationError, match="the name '1' is a number"):
        quiet.client.submit(quiet.model(), [1], name="1")
    with pytest.raises(ConfigurationError, match="the name '1' is a number"):
        quiet.client.serve("1", quiet.model())
    job = quiet.client.submit(quiet.model(seconds=0.001), [1], name="1a")
    assert quiet.client.job("1a")["job"] == job


def test_the_log_of_the_coordinator_names_submissions_loads_errors_and_ends(quiet: RunningCluster) -> None:
    table = quiet.model(seconds=0.001, log="/dev/null")
    job = quiet.client.submit(table, ["broken", 1], name="odd name", batch_size=2)
    quiet.client.wait(job, 60)
    log = (quiet.folder / "logs" / quiet.member("coordinator")["name"] / "chimera_status.log").read_text()
    for line in (
        f"job {job} is submitted, with 2 queries: name 'odd name', model 'factory' '{table['factory']}'",
        f"has loaded the model of job {job}, 'factory' '{table['factory']}'",
        "has its first error, in batch 0 on w0: 'ValueError: a broken query'",
        f"job {job} is done: 2 of 2 queries, 1 errors",
    ):
        assert line in log


def test_mistakes_of_a_client_are_found_before_a_request() -> None:
    client = Client(lambda: "http://127.0.0.1:1", "token", patience_s=0.0)
    for name in ("", "a/b", ".."):
        for refused in (client.cancel, client.unserve, client.drain, lambda job: list(client.results(job))):
            with pytest.raises(ConfigurationError, match=f"there is no (job|model|worker) '{name}': names have"):
                refused(name)
    for timeout_s in (float("nan"), 0.0, -1.0, float("inf")):
        with pytest.raises(ConfigurationError, match="timeout_s must be a number above 0"):
            client.ask("a", ["b"], timeout_s=timeout_s)


def test_a_query_that_is_no_json_is_refused() -> None:
    done = CliRunner().invoke(app, ["infer", "ask", "a", "NaN", "--parse", "--cluster", "http://127.0.0.1:1"])
    assert "the query 'NaN' is no JSON: NaN is no number of JSON" in done.output


def test_an_error_of_a_model_sends_no_control_characters_to_a_terminal(quiet: RunningCluster, tmp_path: Path) -> None:
    (tmp_path / "rude.py").write_text("def make():\n    raise ValueError('\\x1b]0;mine\\x07red')\n")
    job = quiet.client.submit({"kind": "factory", "factory": f"{tmp_path / 'rude.py'}:make"}, [1])
    code, out, _ = told(quiet, "wait", job)
    assert (code, out.strip().isprintable()) == (1, True)
    assert "raised ValueError:  ]0;mine red (" in out


@pytest.mark.long
def test_results_are_readable_while_the_cluster_is_down(tmp_path: Path) -> None:
    with cluster(tmp_path, workers=1, standbys=0) as running:
        done = running.client.submit(running.model(seconds=0.001), [1, 2, "broken"], name="numbers")
        running.client.wait(done, 60)
        long = running.client.submit(running.model(seconds=0.01), list(range(10_000)), batch_size=1)
        running.processed(long, 3)
    for job in (done, "numbers"):
        code, out, error = told(running, "results", job)
        assert (code, error) == (0, f"the cluster in {running.folder} is down: its journal is read\n")
        rows = [json.loads(line) for line in out.splitlines()]
        assert [row.get("result", row.get("error")) for row in rows] == [2, 4, "ValueError: a broken query"]
    assert told(running, "results", done, "-o", str(tmp_path / "out.jsonl"))[0] == 0
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 3
    (rows,) = command(running, "list")
    assert [row["state"] for row in rows] == ["done", "stopped"]
    assert rows[1]["finished"] == len(command(running, "results", long)) >= 3
    code, _, error = told(running, "results", "77")
    assert (code, "there is no job '77'; the last jobs: 1, 2" in error) == (2, True)


def test_a_refused_connection_names_the_command_that_starts_the_cluster(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path)
    folder.create()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        folder.note_leader(1, f"http://127.0.0.1:{closed.getsockname()[1]}")
    client = folder.client()
    client._patience_s = client._first_s = 0.0
    with pytest.raises(
        UnavailableError, match=rf"refused: is it up\? \('chimera infer up --cluster {tmp_path}' starts it\)"
    ):
        client.rows("jobs")


def test_the_command_that_ends_a_cluster_names_its_folder(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path / "my cluster")
    folder.create()
    with folder.locked(), pytest.raises(ConfigurationError) as caught, ClusterFolder(folder.path).locked():
        pass
    command = str(caught.value).split('"')[1]
    assert shlex.split(command) == ["chimera", "infer", "down", "--cluster", str(folder.path)]


def test_a_view_is_printed_again_in_a_pipe_when_it_has_changed(quiet: RunningCluster) -> None:
    job = quiet.client.submit(quiet.model(seconds=0.01), list(range(10_000)))
    with subprocess.Popen(
        [sys.executable, "-m", "chimera", "infer", "list", "--watch", "--cluster", str(quiet.folder)],
        stdout=subprocess.PIPE, text=True,
    ) as watching:  # fmt: skip
        assert watching.stdout is not None
        lines = iter(watching.stdout.readline, "")
        assert any(line.split()[:1] == [job] and "running" in line for line in lines)
        quiet.client.cancel(job)
        assert any(line.split()[:1] == [job] and "cancelled" in line for line in lines)
        watching.send_signal(signal.SIGINT)
        assert watching.wait(30) == 130
