"""Jobs from Python: submitted, and looked at again whenever somebody wants to know."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chimera.core.errors import ConfigurationError, RunError
from chimera.jobs.client import Client
from chimera.jobs.folder import DEFAULT, ClusterFolder
from chimera.jobs.records import Submission
from chimera.jobs.requirements import versions
from chimera.jobs.states import State


class JobHandle:
    """One job of a cluster.

    Attributes
    ----------
    id : its number.
    """

    def __init__(self, client: Client, number: str) -> None:
        self.id = number
        self._client = client

    @property
    def status(self) -> dict[str, Any]:
        """What `chimera jobs` shows of it: ``state``, ``progress``, ``workers``, ``reason`` and others."""
        return self._client.job(self.id)

    def follow(self, *, from_start: bool = True) -> Iterator[dict[str, Any]]:
        """Yield what it tells until it is over: ``{"job": row}``, ``{"log": line}`` or ``{"told": progress or event}``."""
        return self._client.follow(self.id, from_start=from_start)

    def result(self, out: str | os.PathLike[str] | None = None, timeout_s: float | None = None) -> Path:
        """Return the folder of its run, fetched, once it is done.

        Parameters
        ----------
        out : where to; by default ``runs/job-<number>``.

        Raises
        ------
        RunError : it failed or was cancelled; the message says why. `fetch` has what it left.
        TimeLimitError : it is not over, in time.
        """
        row = self._client.wait(self.id, timeout_s)
        if row["state"] != State.DONE:
            why = f": {row['reason']}" if row["reason"] else ""
            raise RunError(f"job {self.id} is {row['state']}{why}")
        return self.fetch(out)

    def fetch(self, out: str | os.PathLike[str] | None = None) -> Path:
        """Return the folder of its run, fetched as far as it is there."""
        folder = Path(out) if out is not None else Path("runs") / f"job-{self.id}"
        self._client.fetch(self.id, folder)
        return folder

    def cancel(self) -> None:
        """Let it go no further; what it has left stays."""
        self._client.cancel(self.id)

    def retry(self) -> None:
        """Let it go on from its checkpoint, after it failed or was cancelled."""
        self._client.retry(self.id)


def submit(
    experiment: str | os.PathLike[str],
    *,
    workers: int | None = None,
    name: str | None = None,
    after: str | JobHandle | list[str | JobHandle] | None = None,
    priority: int = 0,
    cluster: str | os.PathLike[str] = DEFAULT,
) -> JobHandle:
    """Hand an experiment in to a cluster (`chimera cluster up`); returns at once.

    Parameters
    ----------
    experiment : its file.
    workers : how many it needs; by default as many as the file says.
    name : what to call it; by default as its file is called.
    after : jobs that must be done before.
    priority : higher ones go first.
    cluster : the folder of the cluster.

    Raises
    ------
    ConfigurationError : something of this cannot be used.
    UnavailableError : the cluster is not up.
    """
    earlier = [] if after is None else after if isinstance(after, list) else [after]
    client = Client.of(ClusterFolder(Path(cluster)))
    submission, files = _bundled(
        Path(experiment),
        name=name,
        user=user(),
        workers=workers,
        priority=priority,
        after=tuple(one.id if isinstance(one, JobHandle) else str(one) for one in earlier),
    )
    return JobHandle(client, client.submit(submission, files))


def user() -> str:
    """Return who submits."""
    try:
        return getpass.getuser()
    except (OSError, KeyError) as error:
        raise ConfigurationError(f"who submits is unknown; set LOGNAME: {error}") from error


def _bundled(
    path: Path, *, name: str | None, workers: int | None, **options: Any
) -> tuple[Submission, dict[str, Path]]:
    """Return what travels."""
    from chimera.training.experiment import Experiment

    experiment = Experiment.load(path)
    count = workers or int(experiment.tables["train"].get("workers", 2))
    submission = Submission(
        name=name or path.stem, experiment=path.read_text("utf-8"), workers=count,
        settings=(f"train.workers={count}",), versions=versions(), **options,
    )  # fmt: skip
    return submission, {}
