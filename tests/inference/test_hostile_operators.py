"""Mistakes and accidents of operators: each has one clear line, and no command waits forever."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from chimera.cli.main import app
from chimera.core.errors import ConfigurationError, DataError
from chimera.inference.api.options import MAX_TABLE_BYTES, MAX_TEXT, checked_model
from chimera.inference.cluster_folder import ClusterFolder
from chimera.inference.disk_watch import DiskWatch
from chimera.inference.inputs import queries
from chimera.inference.journal.records import Cancelled
from chimera.inference.journal.sqlite import SqliteJournal
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


FOLDER = (
    "the folder {place} was moved or deleted while it was in use: all processes have ended; start them again with its new "
    "path"
)
JOURNAL = (
    "the journal {place}/journal.sqlite was moved, deleted or replaced while it was in use: the cluster has ended; put the "
    "file back, or delete journal.sqlite-wal before you use a copy or start without its jobs"
)


@pytest.mark.long
@pytest.mark.parametrize(("name", "why"), [("", FOLDER), ("journal.sqlite", JOURNAL)])
def test_a_cluster_whose_folder_or_journal_was_moved_ends_with_an_error(name: str, why: str, tmp_path: Path) -> None:
    place = tmp_path / "cluster"
    up = ["infer", "up", "--workers", "1", "--standbys", "0", "--preload", "", "--cluster", str(place)]
    with subprocess.Popen([sys.executable, "-m", "chimera", *up], stderr=subprocess.PIPE, text=True) as process:
        try:
            until((place / "leader").exists)
            (place / name).rename(tmp_path / "moved")
            _, errors = process.communicate(timeout=60)
        finally:
            process.terminate()
    assert process.returncode == 1
    assert errors == f"error: {why.format(place=place)}\n"


def test_a_journal_that_was_moved_away_is_complete_when_it_is_back(tmp_path: Path) -> None:
    path, moved = tmp_path / "journal.sqlite", tmp_path / "moved"
    with closing(SqliteJournal(path)) as journal:
        lease = journal.acquire("c0", "", 60.0)
        assert lease is not None
        path.rename(moved)
        journal.append(lease.epoch, [Cancelled("1", "the last", 0.0)])
    with pytest.raises(ConfigurationError, match=r"is missing, and journal\.sqlite-wal has its last records: put the"):
        SqliteJournal(path)
    moved.rename(path)
    with closing(SqliteJournal(path)) as journal:
        assert [one.why for one in journal.records() if isinstance(one, Cancelled)] == ["the last"]


def test_a_journal_that_is_replaced_is_gone_and_one_that_is_hidden_briefly_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chimera.inference.disk_watch._CHECK_S", 0.0)
    journal, other = tmp_path / "journal.sqlite", tmp_path / "other"
    (tmp_path / "lock").touch()
    watch = DiskWatch(tmp_path, journal)
    watch.check(print)
    journal.touch()
    watch.check(print)
    journal.rename(other)
    for _ in range(2):
        watch.check(print)
    other.rename(journal)
    watch.check(print)
    other.touch()
    other.rename(journal)
    for gone in ("", "", JOURNAL.format(place=tmp_path)):
        watch.check(print)
        assert watch.gone == gone


@pytest.mark.long
def test_a_cluster_writes_deleted_files_about_its_processes_again(tmp_path: Path) -> None:
    with cluster(tmp_path, workers=1, standbys=0) as running:
        job = running.client.submit(running.model(seconds=0.02), list(range(100)), batch_size=5)
        running.processed(job, 10)
        (running.folder / "leader").unlink()
        shutil.rmtree(running.folder / "members")
        assert running.client.wait(job, 60)["state"] == "done"
        until(lambda: {row["name"] for row in running.client.rows("members")} == {"c0", "w0"})


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


@pytest.mark.parametrize("name", ["token", "lock"])
@pytest.mark.parametrize("words", [["up"], ["list"], ["down"]])
def test_the_cluster_of_another_user_is_refused_with_one_line(words: list[str], name: str, tmp_path: Path) -> None:
    ClusterFolder(tmp_path).create()
    (tmp_path / name).touch()
    (tmp_path / name).chmod(0)
    obeys = [] if os.geteuid() else ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    obeys += [] if os.geteuid() else ["--inh-caps=-dac_override,-dac_read_search"]
    if obeys and shutil.which(obeys[0]) is None:
        pytest.skip("root ignores modes of files: install setpriv (apt install util-linux), or run as another user")
    command = [*obeys, sys.executable, "-m", "chimera", "infer", *words, "--cluster", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    reached = name == "lock" or words != ["down"]
    reason = "cannot be opened: Permission denied: only its owner can use it"
    assert (done.returncode, done.stderr) == ((2, f"error: {tmp_path / name} {reason}\n") if reached else (0, ""))


def test_a_token_of_two_lines_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path)
    (tmp_path / "token").write_text("a\nb")
    with pytest.raises(ConfigurationError, match="is not one line without spaces"):
        folder.client()
