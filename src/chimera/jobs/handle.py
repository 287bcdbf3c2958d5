"""Jobs from Python: submitted, and looked at again whenever somebody wants to know."""

from __future__ import annotations

import getpass
import inspect
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from chimera.core.address import Address
from chimera.core.errors import ConfigurationError, RunError
from chimera.jobs.bundle import of_experiment, of_function
from chimera.jobs.client import Client
from chimera.jobs.folder import DEFAULT, TOKEN, ClusterFolder
from chimera.jobs.local import LocalJobs, Reader
from chimera.jobs.records import Submission
from chimera.jobs.requirements import versions
from chimera.jobs.results import read_results
from chimera.jobs.states import State
from chimera.jobs.tar import MOST_BYTES
from chimera.training.experiment.experiment import Experiment
from chimera.training.trainer import Trainer

_FIRST_S = 1.0  # at a wrong address nobody ever answers
_NUMBER = re.compile("[0-9]{1,20}", re.ASCII)


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
        """Yield what it tells until it is over: ``{"job": row}``, ``{"log": line}`` or ``{"told": what}``.

        ``what`` is its progress, an event, what it waits for, or its summary.
        """
        return self._client.follow(self.id, from_start=from_start)

    def wait(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Return its `status` once it is over.

        Raises
        ------
        TimeLimitError : it is not, in time.
        """
        return self._client.wait(self.id, timeout_s)

    def result(self, out: str | os.PathLike[str] | None = None, timeout_s: float | None = None) -> Any:
        """Return what came of it, once it is done: the folder of the run, fetched, or the results of a function by rank.

        Parameters
        ----------
        out : where to; by default ``runs/job-<number>``, and for a function a folder that does not stay.

        Raises
        ------
        RunError : it failed or was cancelled; the message says why. `fetch` has what it left.
        TimeLimitError : it is not over, in time.
        """
        row = self.wait(timeout_s)
        if row["state"] != State.DONE:
            why = f": {row['reason']}" if row["reason"] else ""
            raise RunError(f"job {self.id} is {row['state']}{why}")
        if row["kind"] == "experiment":
            return self.fetch(out)
        with tempfile.TemporaryDirectory(prefix="chimera-job-") as folder:
            return read_results(self.fetch(folder if out is None else out))

    def fetch(self, out: str | os.PathLike[str] | None = None, most_bytes: int = MOST_BYTES) -> Path:
        """Return the folder of its run, fetched as far as it is there.

        Parameters
        ----------
        out : where to, a new or an empty folder, or one that was fetched before; by default ``runs/job-<number>``.
        most_bytes : that the files may have in all: a cluster is not to fill the disk.

        Raises
        ------
        RunError : they have more, or their archive holds what no run has.
        """
        return fetch_run(self._client, self.id, out, most_bytes)

    def cancel(self) -> None:
        """Let it go no further; what it has left stays."""
        self._client.cancel(self.id)

    def retry(self) -> None:
        """Let it go on from its checkpoint, after it failed or was cancelled."""
        self._client.retry(self.id)


def submit(
    what: str | os.PathLike[str] | Callable[..., Any],
    *args: Any,
    workers: int | None = None,
    name: str | None = None,
    after: str | JobHandle | Sequence[str | JobHandle] = (),
    priority: int = 0,
    settings: Sequence[str] = (),
    include: Sequence[str | os.PathLike[str]] = (),
    cluster: str | os.PathLike[str] = DEFAULT,
) -> JobHandle:
    """Hand an experiment or a function in to a cluster (`chimera cluster up`); returns at once.

    Parameters
    ----------
    what : the file of an experiment, or a function of a file, which each worker runs as `chimera.remote.run` lets it.
    args : of the function, plain ones: numbers, text, bytes, lists, dicts.
    workers : how many it needs; by default as many as the file says, and 2 for a function.
    name : what to call it; by default as its file or the function is called.
    after : jobs that must be done before.
    priority : higher ones go first.
    settings : changes of the experiment, as of ``chimera train --set``.
    include : further files or folders that are to travel with it.
    cluster : its folder, or its address, ``https://host:port``; then its token is taken from
        ``CHIMERA_CLUSTER_TOKEN``.

    Raises
    ------
    ConfigurationError : something of this cannot be used, or the cluster is not up.
    UnavailableError : it does not answer.
    """
    client = client_of(cluster)
    earlier = [after] if isinstance(after, str | JobHandle) else after
    given: dict[str, Any] = {
        "user": user(),
        "priority": priority,
        "after": tuple(one.id if isinstance(one, JobHandle) else str(one) for one in earlier),
        "versions": versions(),
    }
    if callable(what):
        function, bundle = of_function(what, *args)
        given |= {"kind": "function", "function": function, "workers": workers or 2, "name": name or what.__name__}
    else:
        if args:
            raise ConfigurationError("an experiment takes no arguments: change it by settings")
        changes = [*settings, *([] if workers is None else [f"train.workers={workers}"])]
        bundle = of_experiment(Path(what), changes, include=list(map(Path, include)))
        given |= {"experiment": bundle.experiment, "settings": bundle.settings, "name": name or Path(what).stem}
        from chimera.training.experiment.validation import check  # imports every family: other commands need none

        experiment = Experiment.load(Path(what)).with_settings(changes)
        check(experiment)
        given["workers"] = _slots(experiment)
    submission = Submission(manifest=bundle.manifest, requires=bundle.requires, **given)
    return JobHandle(client, client.submit(submission, bundle.sources))


def fetch_run(
    reader: Reader, job: str, out: str | os.PathLike[str] | None = None, most_bytes: int = MOST_BYTES
) -> Path:
    """Return the folder of a job's run, fetched as `JobHandle.fetch` does."""
    if out is None and not _NUMBER.fullmatch(job):
        raise RunError(f"the cluster calls the job {job!a}, which is no number: say where to put its files")
    folder = Path(out) if out is not None else Path("runs") / f"job-{job}"
    reader.fetch(job, folder, most_bytes)
    return folder


def reader_of(cluster: str | os.PathLike[str]) -> Reader:
    """Return the client of a cluster; of one of this machine that is down, what reads its files.

    Raises
    ------
    ConfigurationError : as of `client_of`, or there are no jobs in the folder.
    """
    where = os.fspath(cluster)
    if "://" not in where:
        folder = ClusterFolder(Path(where))
        folder.token()
        if folder.claimant() is None:
            return LocalJobs(folder)
    return client_of(cluster)


def client_of(cluster: str | os.PathLike[str]) -> Client:
    """Return the client of a cluster by its folder, or by its address.

    Raises
    ------
    ConfigurationError : there is none in that folder, it is not up, or there is no token for the address.
    """
    where = os.fspath(cluster)
    if "://" not in where:
        return Client.of(ClusterFolder(Path(where)))
    Address.of(where, "the address of the cluster").check_token_is_protected()
    token = os.environ.get(TOKEN, "")
    if not token:
        other = " (CHIMERA_TOKEN is the token of REST nodes)" if os.environ.get("CHIMERA_TOKEN") else ""
        raise ConfigurationError(
            f"the cluster at {where} asks for its token: set {TOKEN} to what its 'token' file has{other}"
        )
    return Client(lambda: where.rstrip("/"), token, first_s=_FIRST_S)


def _slots(experiment: Experiment) -> int:
    """Return how many workers of the cluster a run needs: one where the engine's are elsewhere, or none but a program."""
    engine = experiment.tables.get("engine", {"name": "local"})["name"]
    if engine not in ("local", "ray"):
        return 1
    workers = experiment.tables["train"].get("workers")
    return int(inspect.signature(Trainer).parameters["workers"].default if workers is None else workers)


def user() -> str:
    """Return who submits."""
    try:
        return getpass.getuser()
    except (OSError, KeyError) as error:
        raise ConfigurationError(f"who submits is unknown; set LOGNAME: {error}") from error
