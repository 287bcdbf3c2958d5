"""Errors of the commands for jobs: one line, the exit code of the README, without delay."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.jobs.cluster_kit import running
from typer.testing import CliRunner, Result

from chimera.cli.main import app
from chimera.core.errors import ConfigurationError
from chimera.jobs.cluster.folder import ClusterFolder
from chimera.jobs.supervisor import _check_store
from chimera.web.folder import TOKEN

EXPERIMENT = """
data = "digits"
engine = "local"
model = { name = "sklearn-sgd-classifier", loss = "log_loss" }
strategy = "parameter-server"
train = { workers = 1, rounds = 2, batch_size = 16, optimizer = { name = "sgd", lr = 1.0 } }
"""
SOON_S = 15.0  # ten times the usual duration; retries of an unreachable address would take twice as long

CallRequest = Callable[..., Result]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterFolder]:
    """Return the folder of a cluster of two workers, of which a user may have one; its job 1 is done."""
    home = tmp_path_factory.mktemp("errors")
    with running(home / "cluster", workers=2, limit_per_user=1) as cluster:
        (home / "experiment.toml").write_text(EXPERIMENT)
        arguments = ["submit", str(home / "experiment.toml"), "--folder", str(cluster.folder.path)]
        assert CliRunner().invoke(app, arguments).output == "job 1\n"
        assert cluster.client.wait("1", 60.0)["state"] == "done"
        yield cluster.folder


@pytest.fixture
def ask(folder: ClusterFolder, monkeypatch: pytest.MonkeyPatch) -> CallRequest:
    """Run a command for that cluster, from the folder of the experiment."""
    monkeypatch.chdir(folder.path.parent)
    return lambda *words, at="cluster": CliRunner().invoke(app, [*words, "--folder", at])


def test_the_command_that_starts_a_cluster_can_be_copied_for_a_folder_with_a_space(tmp_path: Path) -> None:
    place = tmp_path / "my cluster"
    command = CliRunner().invoke(app, ["jobs", "--folder", str(place)]).stderr.split('"')[1]
    assert shlex.split(command) == ["chimera", "cluster", "up", "--folder", str(place)]


@pytest.mark.parametrize("state", ["empty, so it is damaged", "missing"])
@pytest.mark.parametrize("held", ["jobs/1/run", "files/ab"])
def test_a_lost_store_of_jobs_is_named_and_no_new_one_takes_its_place(tmp_path: Path, state: str, held: str) -> None:
    folder = ClusterFolder(tmp_path)
    folder.create()
    (tmp_path / held).mkdir(parents=True)
    if state != "missing":
        folder.store.touch()
    with pytest.raises(ConfigurationError, match="the store of jobs .* is " + state):
        _check_store(folder)  # of 'chimera cluster up'
    for command in (["jobs"], ["fetch", "1"]):
        result = CliRunner().invoke(app, [*command, "--folder", str(tmp_path)])
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert f"the store of jobs {folder.store} is {state}" in result.stderr
        assert f"put back a copy of it, or move {tmp_path} away" in result.stderr
    assert folder.store.exists() == (state != "missing")
    assert state == "missing" or folder.store.stat().st_size == 0


def test_an_empty_store_in_a_folder_without_jobs_is_new(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path)
    folder.create()
    folder.store.touch()  # a supervisor was killed after it created the file
    result = CliRunner().invoke(app, ["jobs", "--folder", str(tmp_path)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "there are no jobs in" in result.stderr
    assert folder.store.stat().st_size == 0
    _check_store(folder)
    assert folder.store.stat().st_size > 0


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("strategy=parametr-server", "unknown strategy 'parametr-server'; did you mean 'parameter-server'?"),
        ("codec=int9", "unknown codec 'int9'; did you mean 'int8'?"),
        ("engine=locl", "unknown engine 'locl'; did you mean 'local'?"),
        ("engine.preloads=[]", "engine 'local' has no option 'preloads'; did you mean 'preload'?"),
        ("data=digts", "unknown data set 'digts'; did you mean 'digits'?"),
        ("data.limits=3", "data set 'digits' has no option 'limits'; did you mean 'limit'?"),
        ("model=sklern-sgd-classifier", "unknown model 'sklern-sgd-classifier'"),
        ("model.los=hinge", "model 'sklearn-sgd-classifier' has no option 'los'; did you mean 'loss'?"),
        ("train.optimizer=sdg", "unknown optimizer 'sdg'; did you mean 'sgd'?"),
        ("train.roundz=3", "has no key 'roundz'"),
        ("train.rounds=-3", "rounds"),
        ("train.workers=2", "the job needs 2 workers, and this cluster gives a user at most 1"),
        ("train.workers=3", "the job needs 3 workers, and the cluster has 2"),
    ],
)
def test_an_invalid_experiment_is_not_submitted(
    ask: CallRequest, folder: ClusterFolder, setting: str, message: str
) -> None:
    done = ask("submit", "experiment.toml", "--set", setting)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert [row["job"] for row in json.loads(ask("jobs", "--json").stdout)] == ["1"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("words", "at", "token", "code", "message"),
    [
        ("cancel 1", "cluster", "", 1, "job 1: a job that is done cannot be cancelled"),
        ("retry 1", "cluster", "", 1, "job 1: a job that is done cannot be retried: retry a job that has failed"),
        ("cancel 7", "cluster", "", 2, "there is no job '7'"),
        ("follow x", "cluster", "", 2, "there is no job 'x'"),
        ("fetch 7", "cluster", "", 2, "there is no job '7'"),
        ("jobs", "URL", "wrong", 2, "the daemon refuses the token: give the one in the file 'token' of its folder"),
        ("submit experiment.toml", "URL", "wrong", 2, "the daemon refuses the token"),
        ("jobs", "URL", "", 2, "asks for its token: set CHIMERA_CLUSTER_TOKEN"),
        ("jobs", "http://127.0.0.1:1", "any", 1, "the daemon at http://127.0.0.1:1 does not answer"),
        ("submit experiment.toml", "http://127.0.0.1:1", "any", 1, "does not answer"),
        ("jobs", "http://127.0.0.1:99999", "any", 2, "cannot be used: Port out of range"),
        ("jobs", "ftp://127.0.0.1", "any", 2, "is not of the form 'http://host:port'"),
        ("jobs", "nowhere", "", 2, "there is no cluster at"),
        ("jobs", "experiment.toml", "", 2, "there is no cluster at"),
        ("submit nothing.toml", "cluster", "", 2, "there is no experiment file 'nothing.toml'"),
        ("submit cluster", "cluster", "", 2, "cannot be read"),
        ("cluster down", "URL", "right", 2, "is an address: give the folder of a cluster of this machine"),
        ("cluster up", "URL", "right", 2, "is an address: give the folder of a cluster of this machine"),
        ("cluster up --address 127.0.0.1:99999", "new", "", 2, "--address must be HOST:PORT"),
        ("cluster up --address 0.0.0.0:0", "new", "", 2, "tokens would travel to it in clear"),
        ("cluster up --workers 10000000", "new", "", 2, "Invalid value for '--workers'"),
        ("cancel ..", "cluster", "", 2, "there is no job '..'"),
        ("cancel a/b", "cluster", "", 2, "there is no job 'a/b'"),
    ],
)
def test_an_error_is_one_line_with_its_exit_code_and_without_delay(
    ask: CallRequest,
    folder: ClusterFolder,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    at: str,
    token: str,
    code: int,
    message: str,
) -> None:
    monkeypatch.setenv(TOKEN, token)
    began_s = time.monotonic()
    done = ask(*words.split(), at=str(folder.address()) if at == "URL" else at)
    assert time.monotonic() - began_s < SOON_S
    assert (done.exit_code, done.stdout) == (code, "")
    assert message in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert "the run failed" not in done.stderr
    assert sorted(path.name for path in Path().iterdir()) == ["cluster", "experiment.toml"]
