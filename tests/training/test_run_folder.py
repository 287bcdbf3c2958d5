from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import chimera
from chimera.core.errors import ConfigurationError, RunError
from chimera.training.artifacts import folder_lock
from chimera.training.artifacts.folder import RunFolder
from training.conftest import Fit


class Locked(torch.nn.Linear):
    """A module that no process can send to another."""

    def __init__(self) -> None:
        super().__init__(64, 10)
        self.lock = threading.Lock()


def finish(folder: RunFolder) -> None:
    folder.path.mkdir(parents=True)
    (folder.path / "summary.json").write_text("{}")


def test_runs_of_one_name_are_numbered_and_resumed_from_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for expected in ("digits", "digits-2", "digits-3"):
        folder = RunFolder.choose(None, "digits", resume=False)
        assert (folder.path, folder.resumes) == (Path("runs") / expected, False)
        finish(folder)
    assert RunFolder.choose(None, "digits", resume=True) == RunFolder(Path("runs/digits-3"), True)
    assert RunFolder.choose(None, "dig", resume=False).path == Path("runs/dig")


def test_a_folder_that_ends_in_a_digit_of_no_number_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("digits", "digits-\N{SUPERSCRIPT TWO}"):
        finish(RunFolder(Path("runs") / name, False))
    assert RunFolder.choose(None, "digits", resume=False).path == Path("runs/digits-2")


def test_a_path_as_resume_is_refused(fit: Fit) -> None:
    with pytest.raises(
        ConfigurationError, match=r"give the folder of the run as out, such as out='runs/a', resume=True"
    ):
        fit(resume="runs/a")


def test_two_runs_do_not_write_to_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, late = (RunFolder.choose(None, "digits", resume=False) for _ in range(2))  # before either has begun
    named = RunFolder.choose("runs/digits", "", resume=False)
    with first.opened():
        first.begin("", 0, None)
        assert RunFolder.choose(None, "digits", resume=False).path == Path("runs/digits-2")
        with pytest.raises(ConfigurationError, match="runs/digits already contains a run"):
            RunFolder.choose("runs/digits", "digits", resume=False)
        monkeypatch.setattr(folder_lock, "_WAIT_S", 0.0)
        with pytest.raises(RunError, match="another run writes to runs/digits: wait for its end"):
            named.begin("", 0, None)
        with late.opened():
            assert late.begin("", 0, None).path == Path("runs/digits-2")
    with named.opened():
        named.begin("", 0, None)


def test_a_run_does_not_replace_the_results_of_one_that_ended_after_its_folder_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    late, named = RunFolder.choose(None, "digits", resume=False), RunFolder.choose("runs/digits", "", resume=False)
    finish(named)
    assert late.begin("", 0, None).path == Path("runs/digits-2")
    with pytest.raises(ConfigurationError, match="runs/digits already contains a run: resume it, or choose another"):
        named.begin("", 0, None)
    assert [file.name for file in Path("runs/digits").iterdir()] == ["summary.json"]


def test_each_trainer_and_each_call_of_fit_has_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings: dict[str, Any] = {"engine": "simulated", "workers": 2, "rounds": 2}
    trainers = [chimera.Trainer("sklearn-sgd-classifier", "iris", seed=seed, **settings) for seed in (1, 2)]
    runs = [trainer.fit() for trainer in (*trainers, trainers[1])]
    assert [run.run_dir.name for run in runs] == [f"sklearn-sgd-classifier-iris{end}" for end in ("", "-2", "-3")]
    assert [chimera.Experiment.load(run.run_dir / "experiment.toml").tables["train"]["seed"] for run in runs] == [
        1,
        2,
        2,
    ]
    assert trainers[1].run_dir == runs[2].run_dir


@pytest.mark.parametrize(
    ("name", "folder"), [("../up", "up"), ("a b/c", "a-b-c"), ("...", "run"), ("häuser", "häuser")]
)
def test_a_run_name_cannot_leave_the_runs_folder(name: str, folder: str) -> None:
    assert RunFolder.choose(None, name, resume=False).path == Path("runs") / folder


@pytest.mark.long
@pytest.mark.parametrize("engine", ["simulated", "local"])
def test_a_run_that_failed_without_results_can_be_started_again(fit: Fit, engine: str) -> None:
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="lock") as caught:
            fit(model=Locked, engine=engine)
        assert "\n" not in str(caught.value)
    assert fit(engine=engine).cost.rounds == 30


def test_a_folder_that_cannot_be_created_raises_a_one_line_error(fit: Fit, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match=r"cannot be created") as caught:
        fit(out=tmp_path / "file" / "run")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--set", "engine.token=sesame"],
        ["--set", "engine.token = sesame"],
        ["--set", 'engine.tokens={ "http://127.0.0.1:1" = "sesame", "http://127.0.0.1:2" = "sesame" }'],
        ["--set", 'engine={ name = "http", token = "sesame" }'],
        ["--set", 'engine.tokens."http://127.0.0.1:1/?a=b"="sesame"'],
        ["--token", "sesame"],
    ],
)
def test_the_recorded_command_has_no_token(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["train.py", *arguments, "--set", "train.max_tokens=5"])
    folder = RunFolder(tmp_path, resumes=False)
    with folder.opened():
        folder.begin("", 0, None)
    command = json.loads((tmp_path / "environment.json").read_text())["command"]
    assert "sesame" not in command
    assert "..." in command
    assert command.startswith(f"train.py {arguments[0]} ")
    assert command.endswith(" --set train.max_tokens=5")
