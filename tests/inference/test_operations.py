"""What an operator sees of jobs on a cluster of real processes: failures, mistakes and logs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import chimera
from chimera.core.errors import ConfigurationError, RunError
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
