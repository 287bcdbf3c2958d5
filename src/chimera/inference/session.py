"""Inference from Python: clusters of local processes, and jobs as objects."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import weakref
from pathlib import Path
from typing import Any, Self

from chimera.core.closing import Closing
from chimera.core.errors import ConfigurationError, RunError
from chimera.core.private import opener
from chimera.inference.client import Client, outcome
from chimera.inference.cluster_folder import ClusterFolder, client_of
from chimera.inference.inputs import queries
from chimera.inference.models import check_query, read
from chimera.inference.policies.policy import POLICIES, check_fair_by
from chimera.inference.preload import AUTO, preload_for
from chimera.web.client import PATIENCE_S
from chimera.web.retention import keep_s

WORKERS = 2
_STOP_S = 20.0
_POLL_S = 0.05


class InferenceCluster(Closing):
    """A cluster of processes on this machine. It stops at `close`, at the end of its context, or when this process exits.

    Parameters
    ----------
    folder : folder of the journal and the logs. Unfinished jobs in it are resumed. Default: a temporary folder, which `close`
        removes.
    workers : number of workers, at least 1.
    standbys : number of standby coordinators, besides the coordinator itself.
    policy : how jobs share the workers.
    fair_by : unit of their shares, ``queries`` or ``tokens``.
    preload : modules that are imported before workers join, separated by commas. ``auto``: those that models of Hugging
        Face need, while workers start.
    keep_days : days after its end until a job and its results are deleted; default: never.

    Attributes
    ----------
    folder : the folder; `chimera infer --cluster` accepts it too.
    client : all operations on the cluster (`chimera.inference.client.Client`).

    Raises
    ------
    ConfigurationError : an argument is invalid, or a cluster already runs in the folder.
    RunError : the cluster did not start.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        workers: int = WORKERS,
        standbys: int = 1,
        policy: str = "fair-share",
        fair_by: str = "queries",
        preload: str = AUTO,
        keep_days: float | None = None,
    ) -> None:
        for name, value, least in (("workers", workers, 1), ("standbys", standbys, 0)):
            if type(value) is not int or value < least:
                raise ConfigurationError(f"{name} must be a whole number of at least {least}, not {value!r}")
        keep_s(keep_days)
        POLICIES.create(policy)
        check_fair_by(fair_by)
        if folder is not None and ClusterFolder(Path(folder)).lock_holder() is not None:
            raise ConfigurationError(f"a cluster already runs in {folder}: pass the folder as cluster= to use it")
        temporary = Path(tempfile.mkdtemp(prefix="chimera-inference-")) if folder is None else None
        files = ClusterFolder(Path(folder) if folder is not None else temporary or Path())
        options = {
            "workers": workers,
            "standbys": standbys,
            "policy": policy,
            "fair_by": fair_by,
            "preload": preload,
            "keep_days": keep_days,
        }
        with contextlib.ExitStack() as if_it_fails:
            if temporary is not None:
                if_it_fails.callback(shutil.rmtree, temporary, ignore_errors=True)
            process = _start_supervisor(files, **options)
            if_it_fails.pop_all()
        self.folder = files.path
        self._stop = weakref.finalize(self, _stop_supervisor, process, temporary)
        try:
            self.client: Client = _connect(files, process)
        except BaseException:
            self.close()
            raise

    def scale(self, workers: int, most: int | None = None) -> None:
        """Set the number of workers, or with ``most`` its bounds, see `chimera.inference.client.Client.scale`."""
        self.client.scale(workers, most)

    def close(self) -> None:
        """Stop all processes. Unfinished jobs are resumed when a cluster is started in the folder again."""
        self._stop()


class InferenceJob(Closing):
    """One job of a cluster.

    Attributes
    ----------
    id : number of the job, as a text.
    """

    def __init__(self, client: Client, number: str, own: InferenceCluster | None = None) -> None:
        self.id = number
        self._client, self._own = client, own

    @property
    def status(self) -> dict[str, Any]:
        """The job's row of `chimera infer list`: ``state``, ``queries``, ``finished``, ``errors`` and others."""
        return self._client.job(self.id)

    @property
    def rate(self) -> float:
        """Queries finished per second, over the last 10 s."""
        return float(self._row("rate")["rate"])

    @property
    def stats(self) -> dict[str, Any]:
        """Seconds per query: ``mean_s``, ``std_s``, ``median_s``, ``p90_s``, ``p95_s`` and ``p99_s``."""
        return self._row("stats")

    def wait(self, timeout_s: float | None = None) -> Self:
        """Wait until the job is done or cancelled, and return it.

        Raises
        ------
        RunError : the job has failed. `results` still returns its results and errors.
        TimeLimitError : the job has not ended within ``timeout_s`` seconds.
        """
        row = self._client.wait(self.id, timeout_s)
        if row["state"] == "failed":
            raise RunError(outcome(row))
        return self

    def results(self) -> list[dict[str, Any]]:
        """Return the results so far, in input order: ``index``, ``query``, and ``result`` or ``error``."""
        return list(self._client.results(self.id))

    def set(self, **changes: Any) -> None:
        """Change ``weight``, ``batch_size``, ``max_workers`` or ``batch_timeout_s``, from the next batch on."""
        self._client.change(self.id, **changes)

    def cancel(self) -> None:
        """Cancel the job. Its results so far are kept."""
        self._client.cancel(self.id)

    def close(self) -> None:
        """Stop the cluster if `infer` started it for this job."""
        if self._own is not None:
            self._own.close()

    def _row(self, view: str) -> dict[str, Any]:
        return next(row for row in self._client.rows(view) if row["job"] == self.id)


def infer(
    model: Any,
    inputs: Any,
    *,
    cluster: InferenceCluster | str | os.PathLike[str] | None = None,
    weight: float = 1.0,
    batch_size: int | str = "auto",
    max_workers: int | None = None,
    batch_timeout_s: float | str = "auto",
    max_error_rate: float = 1.0,
    name: str | None = None,
    workers: int | None = None,
) -> InferenceJob:
    """Submit queries to a model as a job, and return the job at once.

    Parameters
    ----------
    model : a table, a TOML file that holds one, the folder of a run, a ``.skops`` file, or ``file.py:factory``
        (docs/how-to/inference-models.md).
    inputs : a list, an array, a data frame, or the name of files (`chimera.inference.inputs.queries`).
    cluster : a cluster, or its folder or fixed address (`chimera infer up --port`). Default: a new cluster for this job, which
        stops at the job's `close`, at the end of its context, or when this process exits.
    weight : weight of the job's share of the query rate.
    batch_size : maximum queries per batch; ``auto`` makes batches of 0.2 to 0.6 s, smaller ones while other jobs wait.
    max_workers : maximum number of workers that serve the job at once; default: no limit.
    batch_timeout_s : time limit of a batch in seconds; ``auto`` derives it from the times of the batches before.
    max_error_rate : the job fails as soon as a larger fraction of its queries has errors. If all have, it fails in any case.
    name : name of the job.
    workers : number of workers of a new cluster; default 2.

    Raises
    ------
    ConfigurationError : an argument is invalid. Nothing was started then.
    """
    table, found = read(model), queries(inputs)
    check_query(table, found.first)
    submitted = list(found) if cluster is None else found  # an invalid input must start no cluster
    if cluster is not None and workers is not None:
        raise ConfigurationError(
            "workers applies only to a cluster that is started for this job: leave out cluster or workers"
        )
    count = WORKERS if workers is None else workers
    own = InferenceCluster(workers=count, preload=preload_for(table)) if cluster is None else None
    used = own or cluster
    client = used.client if isinstance(used, InferenceCluster) else client_of(used or "")
    try:
        options: dict[str, Any] = {
            "name": name,
            "weight": weight,
            "batch_size": batch_size,
            "max_workers": max_workers,
            "batch_timeout_s": batch_timeout_s,
            "max_error_rate": max_error_rate,
        }
        return InferenceJob(client, client.submit(table, submitted, **options), own)
    except BaseException:
        if own is not None:
            own.close()
        raise


def _start_supervisor(folder: ClusterFolder, **options: Any) -> subprocess.Popen[bytes]:
    folder.create()
    arguments = [word for name, value in options.items() if value is not None for word in (f"--{name}", str(value))]
    with open(folder.logs("supervisor") / "output.log", "wb", opener=opener) as log:
        return subprocess.Popen(  # noqa: S603 - this Python, a module of the project, no shell
            [sys.executable, "-m", "chimera.inference.supervisor", "--cluster", str(folder.path), *arguments],
            stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip


def _connect(folder: ClusterFolder, process: subprocess.Popen[bytes]) -> Client:
    """Wait until a coordinator answers, and return a client."""
    deadline_s = time.monotonic() + PATIENCE_S
    while folder.lock_holder() != process.pid and time.monotonic() < deadline_s:
        if process.poll() is not None:
            output = (folder.logs("supervisor") / "output.log").read_text(errors="replace")
            raise RunError(f"the cluster did not start: {output.strip().rpartition(chr(10))[2]}")
        time.sleep(_POLL_S)
    client = folder.client()
    client.rows("jobs")
    return client


def _stop_supervisor(process: subprocess.Popen[bytes], temporary: Path | None) -> None:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_S)
    process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
    if temporary is not None:
        shutil.rmtree(temporary, ignore_errors=True)
