"""The number of workers changes while jobs run, and no batch is computed twice."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from chimera.cli.main import app
from chimera.core.errors import ConfigurationError
from chimera.inference.autoscale import ScaleCopy
from chimera.inference.cluster_folder import FIRST_VERSION, ClusterFolder, Scale
from chimera.inference.cluster_options import ClusterOptions
from chimera.inference.coordinator.coordinator import Coordinator, NotCoordinator
from chimera.inference.local_workers import AT_ONCE, LocalWorkers
from chimera.inference.session import InferenceCluster
from chimera.inference.supervisor import wanted_workers
from inference.running import RunningCluster, cluster, command, signalled, until
from inference.test_voting_cluster import free_addresses
from security.attacker import TOKEN
from security.servers import served


def test_the_number_of_workers_stays_while_it_cannot_be_read(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path)
    wanted = wanted_workers(folder, ClusterOptions(workers=2, standbys=0))
    assert wanted() == 2
    folder.set_bounds(5, 5)
    assert wanted() == 5
    (tmp_path / "workers").rename(tmp_path / "hidden")
    assert wanted() == 5


def names(running: RunningCluster) -> list[str]:
    """Return the workers that may get batches."""
    return [row["worker"] for row in running.client.rows("workers") if row["state"] in ("free", "busy", "loading")]


@pytest.mark.long
def test_workers_join_and_leave_while_a_job_runs_and_no_query_is_computed_twice(tmp_path: Path) -> None:
    log = tmp_path / "answered"
    with cluster(tmp_path, workers=1, standbys=0) as running:
        job = running.client.submit(running.model(seconds=0.01, log=str(log)), list(range(1000)), batch_size=20)
        running.processed(job, 20)
        assert command(running, "scale", "4") == [{"workers": 4, "most": 4}]
        until(lambda: names(running) == ["w0", "w1", "w2", "w3"])
        running.processed(job, 300)
        running.client.scale(2)
        until(lambda: names(running) == ["w0", "w1"])
        until(lambda: len(running.members("worker")) == 2)  # the others have exited
        assert running.client.wait(job, 60)["state"] == "done"
        assert running.answers(job) == [2 * number for number in range(1000)]
        for wrong in (-1, 1001, True, "2"):
            with pytest.raises(ConfigurationError, match="workers must be a whole number from 0 to 1000"):
                running.client.scale(wrong)  # type: ignore[arg-type]
        assert "the cluster has 4 workers now, instead of 1" in (tmp_path / "up.log").read_text()
    assert Counter(log.read_text().split()) == Counter(map(str, range(1000)))


def leads_not() -> Coordinator:
    raise NotCoordinator("another process is the coordinator")


def test_a_machine_with_a_voter_copies_newer_numbers_of_the_coordinator(tmp_path: Path) -> None:
    with served("inference", tmp_path / "a") as there:
        here = ClusterFolder(tmp_path / "b")
        here.create()
        (here.path / "token").write_text(TOKEN)
        here.set_bounds(3, 3)
        copies = ScaleCopy(leads_not, here)
        copies.copy()  # without a coordinator
        here.note_leader(1, there.url)
        client = here.client()
        until(lambda: client.scale_set()["version"] == 0)
        copies.copy()
        assert here.scale() == Scale(3, 3, 3)  # no command has set a number yet
        client.scale(5)
        copies.copy()
        first = here.scale()
        client.scale(2, 8)
        copies.copy()
        assert [(one.count, one.least, one.most) for one in (first, here.scale()) if one] == [(5, 5, 5), (5, 2, 8)]
        assert first is not None
        here.set_bounds(6, 6, first.version)  # this machine leads by now
        own = here.scale()
        copies.copy()
        assert here.scale() == own


def test_the_coordinator_gets_the_bounds_with_which_another_machine_has_started(tmp_path: Path) -> None:
    with served("inference", tmp_path / "a") as there:
        here = ClusterFolder(tmp_path / "b")
        here.create()
        (here.path / "token").write_text(TOKEN)
        here.set_bounds(1, 4, FIRST_VERSION)
        here.note_leader(1, there.url)
        copies, client = ScaleCopy(leads_not, here), here.client()
        until(lambda: client.scale_set()["version"] == 0)
        for _ in range(2):
            copies.copy()
        found = client.scale_set()
        assert (found["least"], found["most"]) == (1, 4)
        assert here.scale() == Scale(**found)


def test_bounds_at_the_start_of_machines_with_voters_follow_the_coordinator(tmp_path: Path) -> None:
    leading, other = ClusterFolder(tmp_path / "a"), ClusterFolder(tmp_path / "b")
    for folder in (leading, other):
        folder.create()
        folder.set_bounds(1, 4, FIRST_VERSION)
    for count in (3, 2):
        seen = leading.scale()
        assert seen is not None
        leading.set_workers(count, seen)
        changed = leading.scale()
        assert changed is not None
        other.copy_scale(changed)
        assert other.scale() == changed
        assert (changed.count, changed.least, changed.most) == (count, 1, 4)
    with other.locked():  # as a restart of its `up`
        other.set_bounds(1, 4, FIRST_VERSION)
    assert other.scale() == Scale(1, 1, 4, FIRST_VERSION)
    other.copy_scale(changed)
    assert other.scale() == changed


class _Started:
    """A process that has started."""

    def start(self) -> None:
        pass

    def check(self, say: Callable[[str], None]) -> None:
        pass

    def has_ended(self) -> bool:
        return False


def test_many_workers_start_a_few_at_a_time_so_that_signals_are_noticed() -> None:
    made: list[str] = []
    said: list[str] = []

    def make(name: str) -> Any:
        made.append(name)
        return _Started()

    workers = LocalWorkers(lambda: 2 * AT_ONCE + 1, make)
    workers.start()
    counts = [len(made)]
    for _ in range(3):
        workers.check(said.append)
        counts.append(len(made))
    assert counts == [AT_ONCE, 2 * AT_ONCE, 2 * AT_ONCE + 1, 2 * AT_ONCE + 1]
    assert len(set(made)) == len(made)
    assert said == []


@pytest.mark.long
@pytest.mark.takes("workers start and leave")
def test_a_cluster_with_voters_starts_with_bounds(tmp_path: Path) -> None:
    options = ["--voters", ",".join(free_addresses()), "--workers", "1:3"]
    with cluster(tmp_path, workers=1, standbys=None, options=options) as running:
        job = running.client.submit(running.model(seconds=0.05), list(range(300)), batch_size=4)
        until(lambda: len(names(running)) == 3)
        running.client.cancel(job)


@pytest.mark.long
@pytest.mark.takes("workers start and leave")
def test_workers_of_a_cluster_with_voters_are_scaled_and_the_voters_stay(tmp_path: Path) -> None:
    options = ["--voters", ",".join(free_addresses())]
    with cluster(tmp_path, workers=1, standbys=None, options=options) as running:
        job = running.client.submit(running.model(seconds=0.01), list(range(1000)), batch_size=5)
        assert command(running, "scale", "3") == [{"workers": 3, "most": 3}]
        until(lambda: names(running) == ["w0", "w1", "w2"])
        signalled(running.member("coordinator")["pid"], signal.SIGKILL)
        until(lambda: len(running.members("coordinator")) + len(running.members("standby")) == 3)
        assert names(running) == ["w0", "w1", "w2"]
        running.client.scale(1, 2)
        until(lambda: names(running) == ["w0", "w1"])
        assert running.client.wait(job, 60)["errors"] == 0
        assert running.answers(job) == [2 * number for number in range(1000)]


@pytest.mark.long
def test_a_cluster_of_python_is_scaled(tmp_path: Path) -> None:
    with InferenceCluster(tmp_path / "cluster", workers=1, standbys=0, preload="") as own:
        own.scale(2)
        until(lambda: len(own.client.rows("workers")) == 2)


@pytest.mark.long
def test_the_coordinator_adds_workers_while_queries_wait(tmp_path: Path) -> None:
    with cluster(tmp_path, workers=1, standbys=0) as running:
        job = running.client.submit(running.model(seconds=0.05), list(range(300)), batch_size=4)
        running.client.scale(1, 3)
        until(lambda: len(names(running)) == 3)
        running.client.scale(1, 2)
        until(lambda: len(names(running)) == 2)
        running.client.cancel(job)
        with pytest.raises(ConfigurationError, match="upper bound"):
            running.client.scale(3, 2)


@pytest.mark.long
def test_workers_are_spread_over_gpus(tmp_path: Path) -> None:
    seen = tmp_path / "seen.py"
    seen.write_text(
        "import os, time\n"
        "class Seen:\n"
        "    def predict(self, queries):\n"
        "        time.sleep(0.2)\n"
        "        return [os.environ['CUDA_VISIBLE_DEVICES']] * len(queries)\n"
    )
    with cluster(tmp_path, workers=2, standbys=0, options=["--gpus", "1,3"]) as running:
        model = {"kind": "factory", "factory": f"{seen}:Seen"}
        job = running.client.submit(model, list(range(20)), batch_size=1)
        assert running.client.wait(job, 60)["errors"] == 0
        assert set(running.answers(job)) == {"1", "3"}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--workers", "x"], "--workers must be N or MIN:MAX, such as 4 or 2:8, not 'x'"),
        (["--workers", "8:2"], "--workers must be N or MIN:MAX"),
        (["--workers", "1001"], "--workers: a cluster has at most 1000 workers, not 1001"),
        (["--workers", "1:1001"], "--workers: a cluster has at most 1000 workers, not 1001"),
        (["--standbys", "11"], "--standbys"),
        (["--gpus", "0,"], "--gpus must be numbers of GPUs with commas, such as 0,1, not '0,'"),
        (["--gpus", "0,1", "--ray", "auto"], "--gpus must be a number with --ray, such as 1 or 0.5, not '0,1'"),
    ],
)
def test_wrong_options_are_one_line(options: list[str], reason: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["infer", "up", *options, "--cluster", str(tmp_path / "cluster")])
    assert isinstance(done.exception, ConfigurationError | SystemExit)
    assert reason in str(done.exception) + done.output
    assert not (tmp_path / "cluster").exists()
