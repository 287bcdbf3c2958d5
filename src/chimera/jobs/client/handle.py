"""Submission of jobs from Python, and handles of submitted jobs."""

from __future__ import annotations

import getpass
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from chimera.core.errors import ConfigurationError, RunError
from chimera.jobs.client.client import Client
from chimera.jobs.client.offline import OfflineJobs
from chimera.jobs.client.protocol import JobClient, JobReader
from chimera.jobs.client.workers import needed_workers
from chimera.jobs.cluster.folder import DEFAULT, ClusterFolder
from chimera.jobs.driver.results import read_results
from chimera.jobs.files.bundle import bundle_experiment, bundle_function
from chimera.jobs.files.tar import MAX_BYTES
from chimera.jobs.scheduling.requirements import versions
from chimera.jobs.slurm.client import SlurmClient
from chimera.jobs.slurm.folder import SlurmFolder
from chimera.jobs.slurm.options import read_options
from chimera.jobs.store.records import Submission
from chimera.jobs.store.states import State
from chimera.training.experiment.experiment import Experiment
from chimera.web.folder import token_for

_FIRST_TIMEOUT_S = 1.0  # short, since a wrong address never answers
_NUMBER = re.compile("[0-9]{1,20}", re.ASCII)


class JobHandle:
    """A submitted job of a cluster.

    Attributes
    ----------
    id : number of the job.
    """

    def __init__(self, client: JobClient, number: str) -> None:
        self.id = number
        self._client = client

    @property
    def status(self) -> dict[str, Any]:
        """Row of the job as in `chimera jobs`: ``state``, ``progress``, ``workers``, ``reason`` and others."""
        return self._client.job(self.id)

    def follow(self, *, from_start: bool = True) -> Iterator[dict[str, Any]]:
        """Yield the updates of the job until it ends: ``{"job": row}``, ``{"log": line}`` or ``{"told": update}``.

        ``update`` is its progress, an event, what it waits for, or its summary.
        """
        return self._client.follow(self.id, from_start=from_start)

    def wait(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Wait until the job has ended, and return its `status`.

        Raises
        ------
        TimeLimitError : it has not ended within ``timeout_s`` seconds; default: no limit.
        """
        return self._client.wait(self.id, timeout_s)

    def result(self, out: str | os.PathLike[str] | None = None, timeout_s: float | None = None) -> Any:
        """Wait for the job, and return the folder of its run, or the results of a function in rank order.

        Parameters
        ----------
        out : target folder of the run; default ``runs/job-<number>``, and for a function a temporary folder.

        Raises
        ------
        RunError : the job failed or was cancelled, with the reason. `fetch` downloads its files.
        TimeLimitError : the job has not ended within ``timeout_s`` seconds; default: no limit.
        """
        row = self.wait(timeout_s)
        if row["state"] != State.DONE:
            reason = f": {row['reason']}" if row["reason"] else ""
            raise RunError(f"job {self.id} is {row['state']}{reason}")
        if row["kind"] == "experiment":
            return self.fetch(out)
        with tempfile.TemporaryDirectory(prefix="chimera-job-") as folder:
            return read_results(self.fetch(folder if out is None else out))

    def fetch(self, out: str | os.PathLike[str] | None = None, max_bytes: int = MAX_BYTES) -> Path:
        """Download the current folder of the run, and return its path.

        Parameters
        ----------
        out : target folder: new, empty, or of an earlier fetch; default ``runs/job-<number>``.
        max_bytes : limit of the bytes of all files, so that a cluster cannot fill the disk.

        Raises
        ------
        RunError : the files exceed the limit, or their archive is not valid.
        """
        return fetch_run(self._client, self.id, out, max_bytes)

    def cancel(self) -> None:
        """Cancel the job; its files are kept."""
        self._client.cancel(self.id)

    def retry(self) -> None:
        """Resume the job from its checkpoint, after it failed or was cancelled."""
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
    slurm: str | Mapping[str, Any] | None = None,
) -> JobHandle:
    """Submit an experiment or a function to a cluster (`chimera cluster up`), and return at once.

    Parameters
    ----------
    what : experiment file, or a function of a Python file, which each worker runs as with `chimera.remote.run`.
    args : arguments of the function; plain values (numbers, text, bytes, lists, dicts).
    workers : number of workers; default: that of the experiment file, 2 for a function.
    name : name of the job; default: that of the file or the function.
    after : jobs that must be done before.
    priority : jobs of higher priority start first.
    settings : overrides of the experiment, as for ``chimera train --set``.
    include : additional files or folders to upload.
    cluster : folder of the cluster, or its address ``https://host:port`` with the token in ``CHIMERA_CLUSTER_TOKEN``.
    slurm : submit an experiment to Slurm with these options, such as ``"partition=short,time=30m"`` or a mapping. The folder
        ``cluster`` then holds the jobs on Slurm of this user.

    Raises
    ------
    ConfigurationError : an argument is not valid, or the cluster is not up.
    UnavailableError : the cluster does not answer.
    """
    client = client_of(cluster) if slurm is None else SlurmClient.create(_local(cluster), read_options(slurm))
    dependencies = [after] if isinstance(after, str | JobHandle) else after
    fields: dict[str, Any] = {
        "user": user(),
        "priority": priority,
        "after": tuple(one.id if isinstance(one, JobHandle) else str(one) for one in dependencies),
        "versions": versions(),
    }
    if callable(what):
        function, bundle = bundle_function(what, *args)
        fields |= {"kind": "function", "function": function, "workers": workers or 2, "name": name or what.__name__}
    else:
        if args:
            raise ConfigurationError("an experiment has no arguments: use 'settings' to change it")
        overrides = [*settings, *([] if workers is None else [f"train.workers={workers}"])]
        bundle = bundle_experiment(Path(what), overrides, include=list(map(Path, include)))
        fields |= {"experiment": bundle.experiment, "settings": bundle.settings, "name": name or Path(what).stem}
        from chimera.training.experiment.validation import check  # imports every family: other commands need none

        experiment = Experiment.load(Path(what)).with_settings(overrides)
        check(experiment)
        fields["workers"] = needed_workers(experiment)
    submission = Submission(manifest=bundle.manifest, requires=bundle.requires, **fields)
    return JobHandle(client, client.submit(submission, bundle.sources))


def fetch_run(
    reader: JobReader, job: str, out: str | os.PathLike[str] | None = None, max_bytes: int = MAX_BYTES
) -> Path:
    """Download the folder of a job's run and return its path, as `JobHandle.fetch` does."""
    if out is None and not _NUMBER.fullmatch(job):
        raise RunError(f"the cluster names the job {job!a}, which is not a number: give the folder for its files")
    folder = Path(out) if out is not None else Path("runs") / f"job-{job}"
    reader.fetch(job, folder, max_bytes)
    return folder


def _local(cluster: str | os.PathLike[str]) -> Path:
    if "://" in os.fspath(cluster):
        raise ConfigurationError(
            f"jobs on Slurm have their files in a folder, and {os.fspath(cluster)!r} is an address"
        )
    return Path(cluster)


def reader_of(cluster: str | os.PathLike[str]) -> JobReader:
    """Return the client of a cluster, or a reader of its files if it is on this machine and down.

    Raises
    ------
    ConfigurationError : see `client_of`; or there are no jobs in the folder.
    """
    where = os.fspath(cluster)
    if "://" not in where and not SlurmFolder(Path(where)).exists:
        folder = ClusterFolder(Path(where))
        folder.token()
        if folder.lock_holder() is None:
            return OfflineJobs(folder)
    return client_of(cluster)


def client_of(cluster: str | os.PathLike[str]) -> JobClient:
    """Return the client of a cluster, given by its folder or its address.

    Raises
    ------
    ConfigurationError : there is no cluster in the folder, it is not up, or there is no token for the address.
    """
    where = os.fspath(cluster)
    if "://" not in where:
        slurm = SlurmFolder(Path(where))
        return SlurmClient(slurm) if slurm.exists else Client.of(ClusterFolder(Path(where)))
    return Client(lambda: where.rstrip("/"), token_for(where), first_s=_FIRST_TIMEOUT_S)


def user() -> str:
    """Return the name of the current user; raises ConfigurationError if it is unknown."""
    try:
        return getpass.getuser()
    except (OSError, KeyError) as error:
        raise ConfigurationError(f"the name of the user is unknown; set LOGNAME: {error}") from error
