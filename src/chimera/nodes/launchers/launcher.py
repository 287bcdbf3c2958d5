"""The protocol of launchers, their workers, and the choice of a launcher."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from chimera.core.errors import ConfigurationError, RunError
from chimera.nodes.settings import Settings

WORKERS_FOLDER = Path("chimera_workers")

Echo = Callable[[str], None]


class LauncherError(RunError):
    """Workers could not be started; the message states what to do."""


@dataclass(frozen=True)
class Worker:
    """One worker to start.

    Attributes
    ----------
    name : name of the worker, its container and its log.
    url : its address.
    file : its program.
    data : folder of its data.
    cpu_shares : its weight when processors are scarce.
    port : its port on this machine; None if the worker was started elsewhere, which has its own file and data.
    """

    name: str
    url: str
    file: Path = Path()
    data: Path = Path()
    cpu_shares: int = 2
    port: int | None = None


class Launcher(Protocol):
    """Starts workers, and stops the workers that it started."""

    name: str

    def clear(self, workers: Sequence[Worker]) -> None:
        """Remove remains of these workers from an earlier run, which may occupy their ports.

        Raises
        ------
        ConfigurationError : they belong to another program or folder.
        LauncherError : they cannot be removed.
        """

    def start(self, workers: Sequence[Worker]) -> None:
        """Start all workers; return before they answer. After a failure, `stop` stops the workers that were started.

        Raises
        ------
        LauncherError : a worker cannot be started; the message states what to do.
        """

    def exited(self) -> dict[str, str]:
        """Return how the ended workers ended, by name."""

    def log(self, name: str, lines: int) -> str:
        """Return the last lines of a worker's log."""

    def log_locations(self) -> dict[str, str]:
        """Return the location of each worker's log, for `read_log`: ``file:PATH``, ``container:NAME`` or ``remote:URL``."""

    def stop(self) -> None:
        """Stop all started workers, by SIGTERM first. The method may be called twice, and after a failed `start`."""


def configured_workers(settings: Settings) -> list[Worker]:
    """Return the workers of the settings, with their files and data folders, which must exist.

    Raises
    ------
    ConfigurationError : files or folders are missing; the message lists them all in one line.
    """
    if settings.workers_addresses:
        return [Worker(*pair) for pair in zip(settings.workers_nodes_names, settings.workers_urls, strict=True)]
    workers = [
        Worker(name, url, WORKERS_FOLDER.absolute() / f"{name}.py", settings.train_data.absolute() / name, shares, port)
        for name, shares, port, url in zip(
            settings.workers_nodes_names,
            settings.workers_cpu_shares,
            settings.workers_mapped_ports,
            settings.workers_urls,
            strict=True,
        )
    ]
    missing = [f"the file {_relative(w.file)}" for w in workers if not w.file.is_file()]
    missing += [f"the folder {_relative(w.data)}" for w in workers if not w.data.is_dir()]
    if missing:
        raise ConfigurationError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing in {Path.cwd()}: "
            f"each worker in CHIMERA_WORKERS_NODES_NAMES needs a file and a data folder "
            "('chimera nodes init' writes an example)"
        )
    return workers


def choose_launcher(wanted: str, settings: Settings, echo: Echo) -> Launcher:
    """Return the launcher with this name. ``auto`` means Docker if its daemon answers, otherwise processes.

    If the settings have addresses of workers, return a launcher that starts nothing.

    Raises
    ------
    ConfigurationError : no launcher has this name.
    LauncherError : the name is ``docker``, and its daemon does not answer.
    """
    from chimera.nodes.launchers.processes import ProcessLauncher
    from chimera.nodes.launchers.remote import RemoteWorkers

    if settings.workers_addresses:
        return RemoteWorkers()
    if wanted not in ("auto", "docker", "process"):
        raise ConfigurationError(f"launcher: {wanted!r} cannot be used; allowed: 'auto', 'docker' or 'process'")
    if wanted == "process":
        return ProcessLauncher(settings)
    from chimera.nodes.launchers.docker import DockerLauncher, connect

    try:
        return DockerLauncher(settings, connect(), echo)
    except LauncherError as error:
        if wanted == "docker":
            raise
        echo(f"workers run as processes of this machine: {error}")
        return ProcessLauncher(settings)


def read_log(place: str, lines: int | None) -> str:
    """Return the last lines of a log at a location from `Launcher.log_locations`; with ``lines`` None, all lines."""
    kind, _, where = place.partition(":")
    if kind == "remote":
        return f"the worker at {where} was started elsewhere: its log is there\n"
    if kind == "file":
        from chimera.nodes.launchers.processes import tail

        return tail(Path(where), lines)
    from chimera.nodes.launchers.docker import connect, container_log

    return container_log(connect(), where, lines)


def _relative(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
