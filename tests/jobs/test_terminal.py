"""Output of the commands for jobs in a terminal, on a cluster of real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.jobs.cluster_kit import Running, experiment, running

import chimera
from chimera.core.errors import RunError
from terminal_kit import WIDTHS, run_in_terminal

pytestmark = pytest.mark.long
PATIENCE_S = 60.0
REASON = "the inputs have 64 columns and the first layer takes 784: " * 4


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("jobs") / "cluster") as started:
        yield started


def test_a_failed_job_leaves_all_columns_of_the_others(cluster: Running, tmp_path: Path) -> None:
    file = experiment(tmp_path, rounds=2)
    (tmp_path / "mine.py").write_text(f"def broken(**options):\n    raise ValueError({REASON!r})\n")
    failed = chimera.submit(file, settings=[f"model.name={tmp_path / 'mine.py'}:broken"], cluster=cluster.folder.path)
    with pytest.raises(RunError, match="64 columns"):
        failed.result(tmp_path / "failed", PATIENCE_S)
    done = chimera.submit(file, cluster=cluster.folder.path)
    done.result(tmp_path / "done", PATIENCE_S)
    for width in WIDTHS:
        code, lines = run_in_terminal(width, "jobs", "--folder", cluster.folder.path, cwd=tmp_path)
        assert code == 0
        assert lines[0].split() == ["job", "name", "user", "state", "progress", "workers", "since"]
        rows = {line.split()[0]: line.split()[3] for line in lines[1:] if line[:3].strip().isdecimal()}
        assert rows == {failed.id: "failed", done.id: "done"}
        assert REASON.strip() in " ".join(" ".join(lines).split())


def test_follow_shows_what_a_job_waits_for(cluster: Running, tmp_path: Path) -> None:
    file = experiment(tmp_path, rounds=2)
    code, lines = run_in_terminal(100, "submit", file, "--follow", "--folder", cluster.folder.path, cwd=tmp_path)
    assert code == 0
    assert "starting, waits for 2 workers on the engine" in "\n".join(lines)
