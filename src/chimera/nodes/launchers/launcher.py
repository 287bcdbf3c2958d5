"""What a launcher is, which workers it is given, and how one is chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from chimera.core.errors import ConfigurationError, RunError
from chimera.nodes.settings import Settings

WORKERS_FOLDER = Path("chimera_workers")

Say = Callable[[str], None]


class LauncherError(RunError):
    """Workers that could not be started; the message says what to do."""


@dataclass(frozen=True)
class Worker:
    """One worker to start.

    Attributes
    ----------
    name : the name, also of its container and its log.
    file : the program, which serves when it is run.
    data : the folder of its data.
    cpu_shares : its weight where processors are scarce.
    port : the port at which this machine reaches it.
    url : its address.
    """

    name: str
    file: Path
    data: Path
    cpu_shares: int
    port: int
    url: str


class Launcher(Protocol):
    """Starts workers and ends all that it started."""

    name: str

    def clear(self, workers: Sequence[Worker]) -> None:
        """Remove what an earlier run left of these workers, which may hold their ports.

        Raises
        ------
        ConfigurationError : what is there is not ours to remove.
        LauncherError : it cannot be done.
        """

    def start(self, workers: Sequence[Worker]) -> None:
        """Start all of them; returns before they answer. What was started when this fails is ended by `stop`.

        Raises
        ------
        LauncherError : it cannot be done; says what to do.
        """

    def ended(self) -> dict[str, str]:
        """Return who runs no more, and how it ended."""

    def log(self, name: str, lines: int) -> str:
        """Return the last lines that a worker wrote."""

    def log_places(self) -> dict[str, str]:
        """Return where the log of each worker is, for `read_log`: ``file:<path>`` or ``container:<name>``."""

    def stop(self) -> None:
        """End everything that `start` started, gently first; may be called twice, and after a `start` that failed."""


def workers_of(settings: Settings) -> list[Worker]:
    """Return the workers that the settings name, with their files and data, which must be there.

    Raises
    ------
    ConfigurationError : files or folders that are missing, all of them in one line.
    """
    workers = [
        Worker(name, WORKERS_FOLDER.absolute() / f"{name}.py", settings.train_data.absolute() / name, shares, port, url)
        for name, shares, port, url in zip(
            settings.workers_nodes_names,
            settings.workers_cpu_shares,
            settings.workers_mapped_ports,
            settings.workers_urls,
            strict=True,
        )
    ]
    missing = [f"the file {_near(w.file)}" for w in workers if not w.file.is_file()]
    missing += [f"the folder {_near(w.data)}" for w in workers if not w.data.is_dir()]
    if missing:
        raise ConfigurationError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing in {Path.cwd()}: "
            f"each worker that CHIMERA_WORKERS_NODES_NAMES names needs a file and a folder of data "
            "('chimera nodes init' writes an example)"
        )
    return workers


def choose_launcher(wanted: str, settings: Settings, say: Say) -> Launcher:
    """Return the launcher of that name; ``auto`` takes Docker where its daemon answers, else processes.

    Raises
    ------
    ConfigurationError : no launcher has that name.
    LauncherError : Docker was asked for by name, and it does not answer.
    """
    from chimera.nodes.launchers.processes import ProcessLauncher

    if wanted not in ("auto", "docker", "process"):
        raise ConfigurationError(f"launcher: {wanted!r} cannot be used; allowed: 'auto', 'docker' or 'process'")
    if wanted == "process":
        return ProcessLauncher(settings)
    from chimera.nodes.launchers.docker import DockerLauncher, connect

    try:
        return DockerLauncher(settings, connect(), say)
    except LauncherError as error:
        if wanted == "docker":
            raise
        say(f"workers run as processes of this machine: {error}")
        return ProcessLauncher(settings)


def read_log(place: str, lines: int | None) -> str:
    """Return the end of a log that `Launcher.log_places` named, or all of it with ``lines`` None."""
    kind, _, where = place.partition(":")
    if kind == "file":
        from chimera.nodes.launchers.processes import end_of

        return end_of(Path(where), lines)
    from chimera.nodes.launchers.docker import connect, log_of

    return log_of(connect(), where, lines)


def _near(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
