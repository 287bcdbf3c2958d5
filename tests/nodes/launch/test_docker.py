"""The Docker launcher with real containers, if a daemon answers; `.ci/docker` starts one and builds the base image."""

import json
import os
import signal
import urllib.error

import pytest

from chimera.core.errors import ConfigurationError
from chimera.nodes.launchers.docker import LABEL, DockerLauncher, connect
from chimera.nodes.launchers.launcher import LauncherError, choose_launcher, configured_workers
from chimera.nodes.run import wait_until_healthy
from chimera.nodes.settings import read_settings
from chimera.nodes.startup_display import StartupDisplay
from nodes.launch.folders import get, wait_for

pytestmark = pytest.mark.long

STOPPED_S = 40.0


@pytest.fixture
def network(docker_base):
    """Return settings of a network that no other test uses."""
    unique = os.urandom(2)
    return {
        "network_name": f"chimera-test-{unique.hex()}",
        "network_prefix": f"10.{unique[0]}.{unique[1]}",
        "base_image": docker_base,
    }


@pytest.fixture
def settings(folder, network, monkeypatch):
    """Return the settings of two plain workers in containers, in their folder as the working folder."""
    monkeypatch.chdir(folder.path)
    return read_settings(
        workers_nodes_names=folder.names, workers_cpu_shares=[2, 6], workers_mapped_ports=folder.ports, **network
    )


@pytest.fixture
def client():
    """Return a Docker client."""
    made = connect()
    yield made
    made.close()


@pytest.fixture
def launcher(settings, client):
    """Return a launcher that is stopped after the test."""
    lines = []
    made = DockerLauncher(settings, client, lines.append)
    made.lines = lines
    yield made
    made.stop()


def start(launcher, settings):
    workers = configured_workers(settings)
    launcher.clear(workers)
    launcher.start(workers)
    with StartupDisplay([]) as display:
        display.ready = lambda *_: None
        wait_until_healthy(workers, launcher, settings, display)


def of_network(client, settings):
    """Return the names of all containers and networks that this test could have left."""
    of_name = {"name": settings.network_name}
    containers = client.containers.list(all=True, filters=of_name, ignore_removed=True)
    networks = client.networks.list(names=[settings.network_name])
    return [each.name for each in (*containers, *networks)]


def python(container, code):
    code, out = container.exec_run(["python", "-c", code])
    return code, out.decode()


def test_containers_are_created_from_the_settings(launcher, settings, client, folder):
    start(launcher, settings)
    for number, (name, port) in enumerate(zip(folder.names, folder.ports, strict=True)):
        container = client.containers.get(f"{settings.network_name}-{name}")
        attributes, host = container.attrs, container.attrs["HostConfig"]
        endpoint = attributes["NetworkSettings"]["Networks"][settings.network_name]
        assert endpoint["IPAddress"] == f"{settings.network_prefix}.{number + 2}"
        assert host["CpuShares"] == settings.workers_cpu_shares[number]
        assert attributes["NetworkSettings"]["Ports"] == {"80/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(port)}]}
        assert host["RestartPolicy"]["Name"] == "on-failure"
        assert host["ReadonlyRootfs"]
        assert host["CapDrop"] == ["ALL"]
        mounts = {mount["Destination"]: mount["RW"] for mount in attributes["Mounts"] if mount["Type"] == "bind"}
        assert mounts == {f"/data/{name}": False, "/workers": False}
        answer = json.loads(get(f"http://localhost:{port}/"))
        assert answer["uid"] != 0
        assert answer["environment"]["CHIMERA_WORKER_NAME"] == name
        assert answer["path"] == "/workers"
        code, out = python(container, "open('/data/" + name + "/x', 'w')")
        assert (code, "Read-only file system" in out) == (1, True)
        assert "health" in attributes["Config"]["Healthcheck"]["Test"][-1]
        assert container.exec_run(attributes["Config"]["Healthcheck"]["Test"][1:]).exit_code == 0


def test_workers_resolve_one_another_by_name(launcher, settings, client):
    start(launcher, settings)
    container = client.containers.get(f"{settings.network_name}-tree1")
    code, out = python(container, "import urllib.request as u; print(u.urlopen('http://tree2/').read().decode())")
    assert code == 0, out
    assert json.loads(out)["environment"]["CHIMERA_WORKER_NAME"] == "tree2"


def test_all_workers_and_all_runs_share_one_image(launcher, settings, client):
    start(launcher, settings)
    first = {container.image.id for container in client.containers.list(filters={"label": f"{LABEL}=worker"})}
    launcher.stop()
    assert of_network(client, settings) == []
    launcher.lines.clear()
    start(launcher, settings)
    second = {container.image.id for container in client.containers.list(filters={"label": f"{LABEL}=worker"})}
    assert len(first) == 1
    assert first == second
    assert launcher.lines == []  # nothing was built, nothing replaced


def test_a_stale_container_is_replaced_and_a_foreign_one_refused(launcher, settings, client, docker_base):
    name = f"{settings.network_name}-tree1"
    labels = {LABEL: "worker", "chimera.folder": "/elsewhere"}
    stale = client.containers.create(docker_base, ["true"], name=name, labels=labels)
    start(launcher, settings)
    (line,) = [line for line in launcher.lines if "replacing" in line]
    assert name in line
    launcher.stop()
    assert stale.id not in {container.id for container in client.containers.list(all=True)}
    foreign = client.containers.create(docker_base, ["true"], name=name)
    try:
        with pytest.raises(ConfigurationError, match="another program has a container"):
            launcher.clear(configured_workers(settings))
        foreign.reload()
    finally:
        foreign.remove(force=True)


def test_running_containers_of_a_killed_master_are_replaced(launcher, settings, client, folder, network):
    start(launcher, settings)  # as if both their master and its reaper had been killed
    variables = {f"CHIMERA_{name.upper()}": value for name, value in network.items()}
    master = folder.start(CHIMERA_LAUNCHER="docker", **variables)
    folder.wait_until_served(master)
    master.terminate()
    out, _ = master.communicate(timeout=STOPPED_S)
    assert out.count("replacing the container") == 2


def test_a_container_of_another_folder_is_kept(launcher, settings, client, docker_base):
    labels = {LABEL: "worker", "chimera.folder": "/elsewhere"}
    name = f"{settings.network_name}-tree1"
    running = client.containers.run(docker_base, ["sleep", "600"], name=name, labels=labels, detach=True, init=True)
    try:
        with pytest.raises(ConfigurationError, match="belongs to the nodes of /elsewhere"):
            launcher.clear(configured_workers(settings))
        running.reload()
        assert running.status == "running"
    finally:
        running.remove(force=True)


def test_a_killed_worker_is_restarted(launcher, settings, client, folder):
    start(launcher, settings)
    container = client.containers.get(f"{settings.network_name}-tree1")
    pid = json.loads(get(f"http://localhost:{folder.ports[0]}/"))["pid"]
    assert python(container, f"import os; os.kill({pid}, 9)")[0] in (0, 137)

    def again():
        container.reload()
        try:
            return container.attrs["RestartCount"] == 1 and get(f"http://localhost:{folder.ports[0]}/")
        except (OSError, urllib.error.URLError):
            return False

    wait_for(again, "the worker answers again")
    assert launcher.exited() == {}


def test_a_worker_that_fails_to_start_is_named_with_the_end_of_its_log(launcher, settings, folder, client):
    folder.write("chimera_workers/tree2.py", "raise OSError('no data today')\n")
    with pytest.raises(LauncherError, match="the worker tree2 exited with code 1 before it was ready") as caught:
        start(launcher, settings)
    assert "OSError: no data today" in str(caught.value)
    launcher.stop()
    assert of_network(client, settings) == []


def test_a_foreign_network_with_another_subnet_is_refused(launcher, settings, client):
    from docker.types import IPAMConfig, IPAMPool

    pool = IPAMConfig(pool_configs=[IPAMPool(subnet="10.255.254.0/24")])
    other = client.networks.create(settings.network_name, driver="bridge", ipam=pool)
    try:
        with pytest.raises(ConfigurationError, match=r"10\.255\.254\.0/24 instead of"):
            launcher.start(configured_workers(settings))
    finally:
        other.remove()


def test_an_image_that_cannot_be_pulled_is_named(settings, client):
    nowhere = settings.model_copy(update={"base_image": "localhost:1/nothing:1"})
    launcher = DockerLauncher(nowhere, client, lambda line: None)
    with pytest.raises(
        LauncherError, match=r"image 'localhost:1/nothing:1' is not on this machine.*CHIMERA_BASE_IMAGE"
    ):
        launcher.start(configured_workers(nowhere))
    launcher.stop()


def test_auto_chooses_docker_if_its_daemon_answers(settings):
    assert choose_launcher("auto", settings, print).name == "docker"


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_containers_and_network_are_removed_when_the_master_ends_or_is_killed(folder, settings, network, client, how):
    variables = {f"CHIMERA_{name.upper()}": value for name, value in network.items()}
    master = folder.start(CHIMERA_LAUNCHER="docker", **variables)
    folder.wait_until_served(master, 300.0)
    assert len(of_network(client, settings)) == 3
    master.send_signal(how)
    master.communicate(timeout=STOPPED_S)
    if how == signal.SIGTERM:
        assert of_network(client, settings) == []
    wait_for(lambda: of_network(client, settings) == [], "the containers are removed", STOPPED_S)
