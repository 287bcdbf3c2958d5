"""Workers that were started elsewhere: the master only calls them."""

from __future__ import annotations

from collections.abc import Sequence

from chimera.nodes.launchers.launcher import Worker


class RemoteWorkers:
    """A launcher that starts and stops nothing."""

    name = "remote"

    def __init__(self) -> None:
        self._workers: Sequence[Worker] = ()

    def clear(self, workers: Sequence[Worker]) -> None:
        """Do nothing; see `Launcher`, also for the other methods."""

    def start(self, workers: Sequence[Worker]) -> None:
        """Remember the workers."""
        self._workers = workers

    def exited(self) -> dict[str, str]:
        """Return nothing: a worker elsewhere may start later."""
        return {}

    def log(self, name: str, lines: int) -> str:  # noqa: ARG002 - the signature of a launcher
        """Return nothing: the log is where the worker was started."""
        return ""

    def log_locations(self) -> dict[str, str]:
        """Return where each worker is."""
        return {worker.name: f"remote:{worker.url}" for worker in self._workers}

    def stop(self) -> None:
        """Do nothing."""
