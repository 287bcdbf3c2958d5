"""``chimera new`` writes projects whose tests pass, and refuses what would overwrite or cannot work."""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from tests.disk_kit import leave, small_disk

import chimera
from chimera.cli.new import KINDS


def run_tests(folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")])),
    }
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", folder, folder],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_the_test_of_a_new_project_passes(invoke, tmp_path, kind):
    folder = tmp_path / "mine"
    result = invoke("new", kind, folder)
    assert result.exit_code == 0, result.output
    done = run_tests(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout


@pytest.mark.long
def test_the_call_in_a_readme_loads_the_trained_module(invoke, tmp_path):
    folder, out = tmp_path / "mine", tmp_path / "run"
    invoke("new", "images", folder)
    short = ["--engine", "simulated", "--set", "train.epochs=1", "--quiet", "--out", out]
    assert invoke("train", folder / "experiment.toml", *short).exit_code == 0
    (call,) = re.findall(r"`(chimera\.load.*?)`", (folder / "README.md").read_text())
    module = eval(call.replace("runs/...", str(out)))
    assert isinstance(module, torch.nn.Module)


@pytest.mark.parametrize("command", [("new", "torch"), ("nodes", "init")], ids=" ".join)
def test_the_next_command_can_be_copied_for_a_folder_with_a_space(invoke, tmp_path, command):
    folder = tmp_path / "it's mine"
    last = invoke(*command, folder).stdout.splitlines()[-1]
    assert shlex.split(last.partition(": ")[2])[:2] == ["cd", str(folder)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
def test_a_new_project_has_the_files_that_are_printed_and_a_next_command(invoke, tmp_path, kind):
    folder = tmp_path / "mine"
    result = invoke("new", kind, folder)
    assert result.exit_code == 0, result.output
    *files, last = result.stdout.splitlines()
    assert all(Path(file.strip()).exists() for file in files)
    assert last == f"to begin: cd {folder} && {KINDS[kind].next}"
    assert (folder / "README.md").read_text().startswith("# ")
    for file in folder.rglob("*.toml"):
        assert "my-project" not in file.read_text()


def test_data_and_target_of_the_user_are_in_the_experiment(invoke, tmp_path):
    table = tmp_path / 'the "table".csv'
    table.write_text("price,size,id\n" + "".join(f"{i % 7},{i},{i}\n" for i in range(60)))
    result = invoke("new", "tabular", tmp_path / "mine", "--data", table, "--target", "price")
    assert result.exit_code == 0, result.output
    assert not (tmp_path / "mine/make_data.py").exists()
    experiment = chimera.Experiment.load(tmp_path / "mine/experiment.toml")
    assert experiment.tables["data"]["path"] == str(table)
    assert experiment.tables["data"]["target"] == "price"
    invoke("new", "tabular", tmp_path / "last", "--data", table)
    assert "target" not in chimera.Experiment.load(tmp_path / "last/experiment.toml").tables["data"]


@pytest.mark.parametrize("kind", ["torch", "nodes"])
def test_a_loop_of_symbolic_links_is_refused_in_one_line(invoke, tmp_path, kind):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    result = invoke("new", kind, tmp_path / "loop")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith("error: cannot write the ")


@pytest.mark.parametrize(
    ("kind", "free"), [("tabular", 0), ("images", 40_000), ("nodes", 0)]
)  # images: within the data
def test_a_project_can_be_written_after_the_disk_was_full(invoke, tmp_path, kind, free):
    with small_disk(tmp_path / "disk", 1) as disk:
        full = leave(disk, free)
        failed = invoke("new", kind, disk / "mine")
        assert (failed.exit_code, failed.stderr.count("\n")) == (2, 1)
        assert failed.stderr.endswith("No space left on device\n")
        full.unlink()
        written = invoke("new", kind, disk / "mine")
        assert written.exit_code == 0, written.output


def test_a_parquet_file_of_the_user_is_read_as_one(invoke, tmp_path):
    table = tmp_path / "mine.parquet"
    pd.DataFrame({"size": [i % 9 + 0.5 for i in range(60)], "kind": ["a", "b"] * 30}).to_parquet(table)
    assert invoke("new", "tabular", tmp_path / "mine", "--data", table).exit_code == 0
    result = invoke("data", tmp_path / "mine/experiment.toml")
    assert result.exit_code == 0, result.output
    assert "mine.parquet · 48 train, 12 test" in result.stdout


def test_a_folder_with_such_files_is_left_as_it_is(invoke, tmp_path):
    (tmp_path / "model.py").write_text("mine")
    result = invoke("new", "tabular", tmp_path)
    assert result.exit_code == 2
    assert result.stderr == f"error: {tmp_path / 'model.py'} would be overwritten: choose a new folder\n"
    assert [file.name for file in tmp_path.iterdir()] == ["model.py"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tabula"], "there is no kind of project 'tabula'; did you mean 'tabular'?"),
        ([], "name what you have: chimera new tabular|images|text|torch|nodes|federation|plug-in"),
        (["torch", "--data", "x.csv"], "--data has no meaning for a project of the kind 'torch'"),
        (["images", "--target", "x"], "--target has no meaning for a project of the kind 'images'"),
        (["tabular", "--data", "missing.csv"], "--data: there is no 'missing.csv'"),
        (["tabular", "--data", "/"], "--data: '/' is a folder: a table (CSV or Parquet) is a file"),
        (["text", "--data", "/"], "--data: '/' is a folder: a text is a file"),
        (["images", "--data", __file__], f"--data: {__file__!r} is a file: images are in a folder for each class"),
    ],
)
def test_mistakes_are_answered_in_one_line(invoke, arguments, message):
    result = invoke("new", *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {message}")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.long
@pytest.mark.parametrize("answer", ["1", "tabular"])
def test_a_user_at_a_terminal_is_asked(tmp_path, answer):
    terminal, side = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "chimera", "new"],
            cwd=tmp_path,
            stdin=side,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        os.write(terminal, f"{answer}\n".encode())
        shown, _ = process.communicate(timeout=60)
    finally:
        os.close(terminal)
        os.close(side)
    assert process.returncode == 0, shown
    assert b"What do you have?" in shown
    assert (tmp_path / "chimera-tabular/experiment.toml").exists()
