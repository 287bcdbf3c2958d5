"""After kill -9 of any process at any time, a job ends once: with the weights of an undisturbed run, or with a reason."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.jobs.cluster_kit import Running, experiment, running

import chimera
from chimera.jobs.store.states import TERMINAL
from chimera.jobs.store.store import Store
from chimera.training.artifacts.checkpoint import Checkpoints

PATIENCE_S = 120.0
ROUNDS = 800
VICTIMS = ("daemon", "worker", "actor", "driver", "supervisor", "terminal")


class KillScenario:
    """A cluster and an experiment, with the weights and the duration of an undisturbed run."""

    def __init__(self, cluster: Running, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.file = experiment(folder, rounds=ROUNDS)
        began_s = time.monotonic()
        job = chimera.submit(self.file, cluster=cluster.folder.path)
        cluster.client.wait(job.id, PATIENCE_S)
        self.seconds = time.monotonic() - began_s
        self.weights = cluster.weights(job.id)

    def run(self, victim: str, moment: float) -> None:
        """Submit a job, kill a process at a moment of its run, and check the outcome."""
        client, known = self.cluster.client, len(self.cluster.client.jobs())
        terminal = self._terminal()
        with terminal:
            time.sleep(moment * (self.seconds + 1.0))  # includes the start of the program
            self._kill(victim, terminal)
            if victim == "supervisor":
                self.cluster.restart()
                client = self.cluster.client
            shown = terminal.wait(PATIENCE_S)
        rows = client.jobs()[known:]
        if not rows and shown != 0 and victim in ("terminal", "supervisor"):
            return  # it was killed before it submitted the job
        assert len(rows) == 1, "a job is lost or duplicated"
        row = client.wait(rows[0]["job"], PATIENCE_S)
        assert shown == {"done": 0, "failed": 1}[row["state"]] or victim == "terminal"
        if row["state"] == "done":
            assert self.cluster.weights(row["job"]) == self.weights
        else:
            assert row["state"] == "failed"
            assert row["reason"]
        store = Store(self.cluster.folder.store)
        ends = [happened for happened in store.events(row["job"]) if happened.state in TERMINAL]
        store.close()
        assert len(ends) == 1, "it ends once"

    def _terminal(self) -> subprocess.Popen[bytes]:
        """Submit in a program that follows the job."""
        return subprocess.Popen(
            [sys.executable, "-m", "chimera", "submit", self.file, "--follow", "--folder", self.cluster.folder.path],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip

    def _kill(self, victim: str, terminal: subprocess.Popen[bytes]) -> None:
        pids = [terminal.pid] if victim == "terminal" else self.cluster.pids("driver" if victim == "actor" else victim)
        if victim == "actor":
            with contextlib.suppress(psutil.NoSuchProcess):
                pids = [child.pid for pid in pids for child in psutil.Process(pid).children(recursive=True)]
        if pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(random.choice(pids), signal.SIGKILL)


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KillScenario]:
    folder = tmp_path_factory.mktemp("kills")
    with running(folder / "cluster") as cluster:
        yield KillScenario(cluster, folder)


@pytest.mark.long
@pytest.mark.parametrize("victim", VICTIMS)
def test_a_kill_at_any_moment_does_not_change_the_outcome(scenario: KillScenario, victim: str) -> None:
    for moment in (random.uniform(0.0, 0.5), random.uniform(0.5, 1.0)):
        scenario.run(victim, moment)


@pytest.mark.long
def test_a_driver_that_is_terminated_writes_a_checkpoint_and_the_job_resumes(scenario: KillScenario) -> None:
    cluster = scenario.cluster
    job = chimera.submit(scenario.file, cluster=cluster.folder.path)
    folder, deadline_s = cluster.folder.job(job.id), time.monotonic() + PATIENCE_S
    while not Checkpoints(str(folder.run / "checkpoints")).paths():
        assert time.monotonic() < deadline_s
    (driver,) = cluster.pids("driver")
    os.kill(driver, signal.SIGTERM)
    assert cluster.client.wait(job.id, PATIENCE_S)["state"] == "done"
    assert "ended by SIGTERM" in folder.log.read_text()
    assert cluster.weights(job.id) == scenario.weights


@pytest.mark.slow
@pytest.mark.parametrize("victim", VICTIMS)
def test_twenty_kills_at_random_moments_do_not_change_the_outcome(scenario: KillScenario, victim: str) -> None:
    for moment in (random.uniform(0.0, 1.0) for _ in range(20)):
        scenario.run(victim, moment)
