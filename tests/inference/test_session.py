"""Inference from Python: clusters and jobs as objects; no process of a cluster survives the program."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import chimera
from chimera.core.errors import ConfigurationError
from inference.running import MODEL, alive, until

EXAMPLE = Path(__file__).parents[2] / "examples" / "fair_inference.py"

PROGRAM = """
import sys, time
import chimera
job = chimera.infer(sys.argv[1], range(100000), workers=1)
print(*(row["pid"] for row in job._client.rows("members")), job._own.folder, flush=True)
time.sleep(600)
"""


@pytest.fixture
def factory(tmp_path: Path) -> str:
    """A model that doubles numbers."""
    (tmp_path / "doubler.py").write_text(MODEL)
    return f"{tmp_path / 'doubler.py'}:make"


def test_a_cluster_that_cannot_be_started_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(FileNotFoundError):
        chimera.InferenceCluster()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_job_is_followed_changed_and_its_cluster_ends_with_it(factory: str) -> None:
    with chimera.infer(factory, range(100), name="numbers", weight=2.0, workers=1) as job:
        job.set(weight=1.0, batch_size=30)
        assert job.wait(60).status["state"] == "done"
        assert [row["result"] for row in job.results()] == [2 * number for number in range(100)]
        assert job.rate > 0
        assert job.stats["median_s"] >= 0.01
        assert (job.status["name"], job.status["weight"], job.status["batch_size"]) == ("numbers", 1.0, 30)
        pids = [row["pid"] for row in job._client.rows("members")]
        assert len(pids) == 3
    assert not any(map(alive, pids))


@pytest.mark.long
def test_jobs_share_a_cluster_by_object_or_by_folder(factory: str, tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    with chimera.InferenceCluster(folder, workers=1, standbys=0, preload="") as cluster:
        first = chimera.infer(factory, range(100), cluster=cluster)
        second = chimera.infer(factory, range(2000), cluster=folder)
        with pytest.raises(ConfigurationError, match="already runs in"):
            chimera.InferenceCluster(folder)
        first.wait(60)
        second.cancel()
        assert second.status["state"] == "cancelled"


def test_mistakes_are_told_before_anything_starts(factory: str, tmp_path: Path) -> None:
    for arguments, message in (
        ((f"{tmp_path}/nothing.py:make", [1]), "there is no file"),
        ((factory, []), "contains no queries"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            chimera.infer(*arguments)
    with pytest.raises(ConfigurationError, match="workers applies only to a cluster"):
        chimera.infer(factory, [1], cluster=tmp_path, workers=2)
    with pytest.raises(ConfigurationError, match="there is no cluster"):
        chimera.infer(factory, [1], cluster=tmp_path)
    with pytest.raises(ConfigurationError, match="workers must be a whole number of at least 1"):
        chimera.InferenceCluster(workers=0)
    with pytest.raises(ConfigurationError, match="keep_days must be a number of days from 0, not -1"):
        chimera.InferenceCluster(keep_days=-1)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_program(factory: str, tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, factory], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as program:  # fmt: skip
        assert program.stdout is not None
        *pids, folder = program.stdout.readline().split()
        program.send_signal(number)
        program.wait(30)
    until(lambda: not any(alive(int(pid)) for pid in pids))
    assert not (number == signal.SIGINT and Path(folder).exists())


@pytest.mark.long
def test_the_example_kills_its_coordinator_and_loses_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE)],
        capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path, env={**os.environ, "COLUMNS": "120"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for name in ("quick", "slow"):
        assert f"{name}: each of 1200 queries has exactly one result" in done.stdout
    assert re.search(r"c\d \(process \d+\) was killed half-way", done.stdout)
    assert re.search(r"coordinator: c\d, in epoch [2-9]", done.stdout)
