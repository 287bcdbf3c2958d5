"""A cluster on Ray: the same commands; attempts are Ray jobs, and resume as on one machine."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.jobs.cluster_kit import Running, chimera, experiment, json_output, running

from chimera.core.errors import ConfigurationError
from chimera.core.registry import load_object
from chimera.jobs.client.handle import submit
from chimera.jobs.store.states import Event, State
from chimera.jobs.store.store import Store
from chimera.web.folder import lock_holder

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'chimera-dml[ray]'"
    ),
]
WAIT_S = 240.0
ROUNDS = 3000  # enough for three kills
FUNCTION = """
def total(worker, count):
    return worker.all_reduce(sum(range(worker.rank, count, worker.world_size)))
"""


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a Ray cluster with ``ray start``, and yield its address."""
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_AUTH_MODE", "disabled")  # also if there is a token in the user's home
    folder = tmp_path_factory.mktemp("ray")
    port, page, agent, listens = free_ports(4)
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--node-ip-address=127.0.0.1"]
    command += [f"--port={port}", f"--dashboard-port={page}", f"--dashboard-agent-grpc-port={agent}", "--num-cpus=4"]
    command += [f"--dashboard-agent-listen-port={listens}", f"--temp-dir={folder}", "--object-store-memory=100000000"]
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen([*command, "--disable-usage-stats"], stdout=out, stderr=out, start_new_session=True)
    try:
        address = f"127.0.0.1:{port}"
        until(lambda: process.poll() is not None or takes_jobs(address))
        assert process.poll() is None, (folder / "out").read_text()
        yield address
    finally:
        process.terminate()
        process.wait(60)
        patch.undo()


def takes_jobs(address: str) -> bool:
    from chimera.jobs.driver.ray_submission import connect

    try:
        connect(address)
    except ConfigurationError:
        return False
    return True


def until(true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def killed_at(cluster: Running, job: str, progress: float, process: Callable[[], int | None]) -> None:
    """Kill a process of a job that has reached a progress."""
    until(lambda: cluster.client.job(job)["progress"] > progress)
    pid = process()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def test_jobs_run_on_ray_and_survive_the_death_of_the_ray_job_the_driver_and_a_worker(ray: str, tmp_path: Path) -> None:
    file = experiment(tmp_path, rounds=ROUNDS)
    with running(tmp_path / "runs" / "cluster", ray=ray, workers=3) as cluster:
        whole = json_output("submit", file, cwd=tmp_path)["job"]
        assert cluster.client.wait(whole, WAIT_S)["state"] == "done", cluster.folder.job(whole).log.read_text()
        assert chimera("fetch", whole, "-o", "mine", cwd=tmp_path).returncode == 0
        assert json.loads((tmp_path / "mine" / "summary.json").read_bytes())["rounds"] == ROUNDS
        assert json.loads((tmp_path / "mine" / "environment.json").read_bytes())
        assert 'name = "ray"' in (tmp_path / "mine" / "experiment.toml").read_text()
        killed = json_output("submit", file, cwd=tmp_path)["job"]
        place = cluster.folder.job(killed)
        killed_at(cluster, killed, 0.1, lambda: lock_holder(place.path / "ray.lock"))
        killed_at(cluster, killed, 0.4, place.driver_pid)
        killed_at(cluster, killed, 0.6, lambda: cluster.pids("worker")[0])
        row = cluster.client.wait(killed, WAIT_S)
        assert (row["state"], row["attempt"]) == ("done", 4), (row, place.log.read_text())
        assert cluster.weights(killed) == cluster.weights(whole)
        (tmp_path / "total.py").write_text(FUNCTION)
        total = load_object(f"{tmp_path / 'total.py'}:total")
        assert submit(total, 1000, workers=3, cluster=tmp_path / "runs" / "cluster").result() == [499_500] * 3
        left = json_output("submit", file, cwd=tmp_path)["job"]
        place = cluster.folder.job(left)
        until(lambda: lock_holder(place.path / "ray.lock") is not None)
        chimera("cancel", left, cwd=tmp_path)
        until(
            lambda: lock_holder(place.path / "ray.lock") is None and place.driver_pid() is None
        )  # all its processes have exited
        assert cluster.client.job(left)["state"] == "cancelled"


def test_a_job_without_room_on_ray_returns_to_the_queue_with_the_reason_until_there_is_room(
    ray: str, tmp_path: Path
) -> None:
    engine = '\n[engine]\nname = "ray"\nreserve_timeout_s = 1\n'  # two workers and a server, of Ray's four processors
    file, small = experiment(tmp_path, rounds=100_000), experiment(tmp_path / "small", more=engine)
    with running(tmp_path / "runs" / "cluster", ray=ray, workers=4) as cluster:
        first = json_output("submit", file, cwd=tmp_path)["job"]
        until(lambda: cluster.client.job(first)["progress"] > 0)
        second = json_output("submit", small, cwd=tmp_path)["job"]
        store = Store(cluster.folder.store)
        until(lambda: Event.REFUSED in [each.event for each in store.events(second)])
        (refused, *_) = [each for each in store.events(second) if each.event is Event.REFUSED]
        store.close()
        assert refused.state is State.QUEUED
        assert "CPU" in refused.reason
        assert cluster.client.job(first)["state"] == "running"  # it keeps its workers
        chimera("cancel", first, cwd=tmp_path)
        assert cluster.client.wait(second, WAIT_S)["state"] == "done", cluster.folder.job(second).log.read_text()


def test_without_a_ray_that_accepts_jobs_the_cluster_does_not_start(tmp_path: Path) -> None:
    ran = chimera("cluster", "up", "--ray", f"127.0.0.1:{free_ports(1)[0]}", cwd=tmp_path, timeout_s=120)
    assert ran.returncode == 2
    assert "no Ray could be joined at address" in ran.stderr
    assert len(ran.stderr.strip().splitlines()) == 1
