"""Mistakes and accidents of operators: each has one clear line, and no command waits forever."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from chimera.cli.main import app
from chimera.core.errors import ConfigurationError, DataError
from chimera.inference.api.options import MAX_TABLE_BYTES, MAX_TEXT, checked_model
from chimera.inference.cluster_folder import ClusterFolder
from chimera.inference.inputs import queries
from inference.running import cluster, until


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (
            {"factory": "m:" + "M" * MAX_TEXT},
            f"the model's 'factory' has {MAX_TEXT + 2:,} characters; at most {MAX_TEXT:,}",
        ),
        (
            {"options": {"x": "y" * MAX_TABLE_BYTES}},
            f"the model's table has 1,048,6.. bytes; at most {MAX_TABLE_BYTES:,}",
        ),
    ],
)
def test_a_huge_table_of_a_model_is_refused_because_logs_and_lists_repeat_it(more: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason) as error:
        checked_model({"kind": "factory", "factory": "m:M", **more}, code=True)
    assert len(str(error.value)) < 200


def test_an_input_that_is_no_regular_file_is_named_so(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(DataError, match=r"pipe\.txt' is neither a regular file nor a folder"):
        list(queries(str(tmp_path / "pipe.txt")))


@pytest.mark.long
def test_a_cluster_whose_folder_was_moved_ends_with_an_error(tmp_path: Path) -> None:
    place = tmp_path / "cluster"
    up = ["infer", "up", "--workers", "1", "--standbys", "0", "--preload", "", "--cluster", str(place)]
    with subprocess.Popen([sys.executable, "-m", "chimera", *up], stderr=subprocess.PIPE, text=True) as process:
        try:
            until((place / "leader").exists)
            place.rename(tmp_path / "moved")
            _, errors = process.communicate(timeout=60)
        finally:
            process.terminate()
    assert process.returncode == 1
    assert errors == (
        f"error: the folder {place} was moved or deleted while its cluster ran: the cluster has ended; start it again with "
        "the new path of the folder\n"
    )


@pytest.mark.long
def test_a_policy_may_be_named_by_a_relative_path(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from chimera.inference.policies.policy import Policy\n"
        "class Mine(Policy):\n"
        "    def choose(self, contenders, workers):\n"
        "        return contenders[-1].job\n"
    )
    with cluster(tmp_path, workers=1, standbys=0, options=["--policy", "mine.py:Mine"]) as running:
        job = running.client.submit(running.model(), [1, 2])
        assert running.client.wait(job, 60)["state"] == "done"


def test_a_class_that_is_no_policy_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class Mine:\n    pass\n")
    options = ["--policy", f"{tmp_path / 'mine.py'}:Mine", "--cluster", str(tmp_path / "cluster")]
    done = CliRunner().invoke(app, ["infer", "up", *options])
    assert "has no method choose(contenders, workers)" in str(done.exception) + done.output
    assert not (tmp_path / "cluster").exists()


def test_a_file_is_no_cluster(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    done = CliRunner().invoke(app, ["infer", "list", "--cluster", str(tmp_path / "file")])
    assert done.exit_code == 2, done.exception
    assert "there is no cluster at" in str(done.exception) + done.output


def test_a_token_of_two_lines_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path)
    (tmp_path / "token").write_text("a\nb")
    with pytest.raises(ConfigurationError, match="is not one line without spaces"):
        folder.client()
