"""Workers as Docker containers: one image, one network, one container for each worker.

A container runs as a non-root user without capabilities on a read-only file system. It mounts its own data and the folder of
worker files, both read-only.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chimera.core.address import is_loopback
from chimera.core.errors import ConfigurationError
from chimera.nodes.launchers.image import reason, worker_image
from chimera.nodes.launchers.launcher import Echo, LauncherError, Worker
from chimera.nodes.settings import Settings

if TYPE_CHECKING:
    from docker import DockerClient

ANSWER_S = 3.0  # timeout of the first request to a daemon
STOP_S = 5
RESTARTS = 3
SECOND_NS = 10**9
LABEL, FOLDER_LABEL, RUN_LABEL = "chimera.node", "chimera.folder", "chimera.run"
DATA, FILES = "/data", "/workers"  # in the containers


def connect() -> DockerClient:
    """Return a client of the Docker daemon, at the address that the environment sets.

    Raises
    ------
    LauncherError : the SDK is not installed, or no daemon answers.
    """
    try:
        import docker
    except ModuleNotFoundError:
        raise LauncherError("the Docker SDK is not installed: pip install 'chimera-dml[nodes]'") from None
    from docker.constants import DEFAULT_UNIX_SOCKET
    from docker.errors import DockerException

    host = docker.utils.kwargs_from_env().get("base_url") or DEFAULT_UNIX_SOCKET
    try:
        if "unix://" in host:  # without a daemon, the SDK fails slowly and leaves its socket open
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(host.partition("unix://")[2])
        client = docker.from_env(timeout=ANSWER_S)
        client.ping()
    except (DockerException, OSError) as error:
        raise LauncherError(f"no Docker daemon answers at {host} ({reason(error)})") from error
    client.api.timeout = 120
    return client


class DockerLauncher:
    """Runs each worker in a container, with its own address on a common network and its name as the host name.

    A worker's port is published on 127.0.0.1; with a token, and masters that listen beyond loopback, on all addresses of this
    machine. The worker gets this as ``CHIMERA_PUBLISHED_ON_LOOPBACK``. If this process dies without stopping its containers, a
    reaper process removes them.

    Parameters
    ----------
    settings : settings of the nodes.
    client : from `connect`.
    echo : prints a line for the user.
    """

    name = "docker"

    def __init__(self, settings: Settings, client: DockerClient, echo: Echo) -> None:
        self._settings, self._client, self._echo = settings, client, echo
        self._run = uuid.uuid4().hex
        self._containers: dict[str, Any] = {}
        self._reaper: subprocess.Popen[bytes] | None = None

    def clear(self, workers: Sequence[Worker]) -> None:
        """Remove containers with these names that an earlier run of this folder left."""
        with _translated("cannot look for containers of an earlier run"):
            for worker in workers:
                self._remove_stale(self.container_name(worker))

    def start(self, workers: Sequence[Worker]) -> None:
        """Build the image if necessary, create the network, and start a container for each worker."""
        settings = self._settings
        with _translated("cannot start the workers' containers"):
            image = worker_image(self._client, settings.base_image, settings.image_packages, self._echo)
            self._reaper = start_reaper(self._run)
            self._make_network()
            for number, worker in enumerate(workers):
                options = self.container_options(worker, number, image)
                self._containers[worker.name] = container = self._client.containers.create(**options)
                container.start()

    def container_name(self, worker: Worker) -> str:
        """Return the name of a worker's container, which is unique on this machine."""
        return f"{self._settings.network_name}-{worker.name}"

    def container_options(self, worker: Worker, number: int, image: str) -> dict[str, Any]:
        """Return the arguments of the SDK's ``containers.create`` for a worker; ``number`` is its index, from 0."""
        from docker.types import Mount

        settings = self._settings
        port = settings.workers_port or 80
        beyond = settings.token is not None and not is_loopback(settings.workers_host)
        environment = {
            **settings.worker_environment(),
            "CHIMERA_TRAIN_DATA": DATA,
            "CHIMERA_WORKERS_HOST": "0.0.0.0",  # noqa: S104 - inside the container's own network; published below
            "CHIMERA_WORKERS_PORT": str(port),
            "CHIMERA_WORKER_NAME": worker.name,
            "CHIMERA_PUBLISHED_ON_LOOPBACK": str(int(not beyond)),  # 0.0.0.0 is this container's own network
        }
        mounts = {f"{DATA}/{worker.name}": str(worker.data), FILES: str(worker.file.parent)}
        for variable in ("CHIMERA_TLS_CERT", "CHIMERA_TLS_KEY", "CHIMERA_TLS_CLIENT_CA"):
            if variable in environment:
                inside = f"/tls/{variable.lower()}.pem"  # one file may be used by two variables
                mounts[inside], environment[variable] = environment[variable], inside
        endpoint = self._client.api.create_endpoint_config(
            aliases=[worker.name], ipv4_address=str(settings.network[number + 2])
        )
        return {
            "image": image,
            "command": ["python", f"{FILES}/{worker.file.name}"],
            "name": self.container_name(worker),
            "hostname": worker.name,
            "labels": self._labels("worker"),
            "user": f"{os.getuid()}:{os.getgid()}" if os.getuid() else "10001:10001",
            "environment": environment,
            "mounts": [Mount(inside, here, type="bind", read_only=True) for inside, here in mounts.items()],
            "ports": {f"{port}/tcp": ("0.0.0.0" if beyond else "127.0.0.1", worker.port)},  # noqa: S104 - only with a token
            "network": settings.network_name,
            "networking_config": {settings.network_name: endpoint},
            "cpu_shares": worker.cpu_shares,
            "restart_policy": {"Name": "on-failure", "MaximumRetryCount": RESTARTS},
            "healthcheck": {
                "test": ["CMD", "python", "-m", "chimera.nodes.health"],
                "interval": 10 * SECOND_NS,
                "timeout": 6 * SECOND_NS,
                "start_period": 30 * SECOND_NS,
                "retries": 3,
            },
            "read_only": True,
            "tmpfs": {"/tmp": "mode=1777", "/home/chimera": "mode=1777"},  # noqa: S108 - inside the container
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges"],
            "sysctls": {"net.ipv4.ip_unprivileged_port_start": "0"},  # port 80 without root
            "init": True,
            "log_config": {"type": "json-file", "config": {"max-size": "10m", "max-file": "2"}},
        }

    def exited(self) -> dict[str, str]:
        """Return how the ended containers ended, by name of the worker. A container that Docker restarts counts as running."""
        how = {}
        with _translated("cannot read the state of the workers from Docker"):
            for name, container in self._containers.items():
                container.reload()
                if container.status not in ("created", "running", "restarting"):
                    how[name] = f"{container.status} with code {container.attrs['State']['ExitCode']}"
        return how

    def log(self, name: str, lines: int) -> str:
        """Return the last lines of a worker's log."""
        return container_log(self._client, self._containers[name].name, lines) if name in self._containers else ""

    def log_locations(self) -> dict[str, str]:
        """Return the container of each log."""
        return {name: f"container:{container.name}" for name, container in self._containers.items()}

    def stop(self) -> None:
        """Stop and remove the containers, and the network unless another run uses it."""
        with _translated("cannot stop the workers' containers"):
            remove_run(self._client, self._run)
        self._containers = {}
        if self._reaper is not None and self._reaper.stdin is not None:
            self._reaper.stdin.close()  # the reaper then finds nothing to remove
            self._reaper.wait()
            self._reaper = None

    def _labels(self, what: str) -> dict[str, str]:
        return {LABEL: what, FOLDER_LABEL: str(Path.cwd()), RUN_LABEL: self._run}

    def _remove_stale(self, name: str) -> None:
        from docker.errors import NotFound

        try:
            stale = self._client.containers.get(name)
        except NotFound:
            return
        if LABEL not in stale.labels:
            raise ConfigurationError(
                f"another program has a container {name!r}: remove or rename it, or set CHIMERA_NETWORK_NAME"
            )
        elsewhere = stale.labels.get(FOLDER_LABEL)
        if stale.status == "running" and elsewhere != str(Path.cwd()):
            raise ConfigurationError(
                f"the container {name!r} belongs to the nodes of {elsewhere}: stop them, or set other values of "
                "CHIMERA_NETWORK_NAME, CHIMERA_NETWORK_PREFIX and CHIMERA_WORKERS_MAPPED_PORTS"
            )
        self._echo(f"replacing the container {name} of an earlier run ({stale.status})")
        stale.remove(force=True)

    def _make_network(self) -> None:
        from docker.types import IPAMConfig, IPAMPool

        name, subnet = self._settings.network_name, str(self._settings.network)
        for network in self._client.networks.list(names=[f"^{name}$"]):
            pools = [pool.get("Subnet") for pool in (network.attrs["IPAM"]["Config"] or [])]
            if pools == [subnet]:
                return
            network.reload()
            if LABEL not in (network.attrs["Labels"] or {}) or network.containers:
                raise ConfigurationError(
                    f"the Docker network {name!r} exists with {', '.join(map(str, pools)) or 'no subnet'} instead of "
                    f"{subnet}: set another CHIMERA_NETWORK_NAME, or the prefix and mask of the existing network"
                )
            self._echo(f"replacing the network {name} of an earlier run")
            network.remove()
        pool = IPAMPool(subnet=subnet, gateway=str(self._settings.network[1]))
        self._client.networks.create(
            name, driver="bridge", ipam=IPAMConfig(pool_configs=[pool]), labels=self._labels("network")
        )


def remove_run(client: DockerClient, run: str) -> None:
    """Remove the containers and the network with this run's label."""
    from docker.errors import APIError, NotFound

    of_run = {"label": f"{RUN_LABEL}={run}"}
    containers = client.containers.list(all=True, filters=of_run, ignore_removed=True)
    for container in containers:  # signal all before waiting for the first
        with contextlib.suppress(NotFound, APIError):
            container.kill("SIGTERM")
    for container in containers:
        with contextlib.suppress(NotFound):
            with contextlib.suppress(APIError):
                container.stop(timeout=STOP_S)
            container.remove(force=True)
    for network in client.networks.list(filters=of_run):
        with contextlib.suppress(NotFound, APIError):  # another run has joined it
            network.remove()


def container_log(client: DockerClient, container: str, lines: int | None) -> str:
    """Return the last ``lines`` lines of a container's log; None: all lines. Empty if there is no such container."""
    from docker.errors import NotFound

    with _translated(f"cannot read the log of {container}"):
        try:
            return str(client.containers.get(container).logs(tail=lines or "all"), errors="replace")
        except NotFound:
            return ""


def start_reaper(run: str) -> subprocess.Popen[bytes]:
    """Start a process that waits for the end of this one, and then removes all that remains of the run."""
    command = [sys.executable, "-m", __name__, json.dumps(run)]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True)  # noqa: S603 - this Python, a module of the project, no shell


@contextlib.contextmanager
def _translated(what: str) -> Iterator[None]:
    from docker.errors import DockerException
    from requests.exceptions import RequestException  # the SDK does not translate these when the daemon disconnects

    try:
        yield
    except (DockerException, RequestException) as error:
        raise LauncherError(f"{what}: {reason(error)}") from error


if __name__ == "__main__":
    sys.stdin.buffer.read()  # returns when the parent closes the pipe or dies
    remove_run(connect(), json.loads(sys.argv[1]))
