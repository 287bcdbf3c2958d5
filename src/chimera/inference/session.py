"""Inference from Python: a cluster for as long as a program wants it, and jobs as objects."""

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
from types import TracebackType
from typing import Any, Self

from chimera.core.errors import ConfigurationError, RunError
from chimera.core.private import opener
from chimera.inference.client import Client
from chimera.inference.cluster_folder import ClusterFolder
from chimera.inference.inputs import queries
from chimera.inference.models import read
from chimera.inference.policies.policy import POLICIES
from chimera.web.client import PATIENCE_S
from chimera.web.keeping import keep_s

WORKERS = 2
_STOP_S = 20.0
_POLL_S = 0.05


class InferenceCluster:
    """A cluster of processes on this machine; it ends with `close`, with its context, or with this process at the latest.

    Parameters
    ----------
    folder : where the journal and the logs lie; jobs that it holds go on. By default a temporary one, which is removed.
    workers, standbys : how many processes there are beside the coordinator.
    policy : how jobs share the workers.
    preload : modules that workers import before they join, separated by commas.
    keep_days : so many days after its end a job is forgotten, with its results; None is never.

    Attributes
    ----------
    folder : that folder; `chimera infer --cluster` takes it as well.
    client : all operations (`chimera.inference.client.Client`).

    Raises
    ------
    ConfigurationError : a value cannot be used, or the cluster of that folder is up already.
    RunError : it did not start.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        workers: int = WORKERS,
        standbys: int = 1,
        policy: str = "fair-share",
        preload: str = "",
        keep_days: float | None = None,
    ) -> None:
        for what, value, least in (("workers", workers, 1), ("standbys", standbys, 0)):
            if type(value) is not int or value < least:
                raise ConfigurationError(f"{what} must be a whole number from {least}, not {value!r}")
        keep_s(keep_days)
        POLICIES.create(policy)
        if folder is not None and ClusterFolder(Path(folder)).claimant() is not None:
            raise ConfigurationError(f"the cluster in {folder} is up already: name it where one is asked for")
        own = Path(tempfile.mkdtemp(prefix="chimera-inference-")) if folder is None else None
        place = ClusterFolder(Path(folder) if folder is not None else own or Path())
        process = _start(place, workers=workers, standbys=standbys, policy=policy, preload=preload, keep_days=keep_days)
        self.folder = place.path
        self._end = weakref.finalize(self, _stop, process, own)
        try:
            self.client: Client = _await(place, process)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all of its processes. Jobs that are not done go on when the folder has a cluster again."""
        self._end()

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all of its processes."""
        self.close()


class InferenceJob:
    """One job of a cluster.

    Attributes
    ----------
    id : its number.
    """

    def __init__(self, client: Client, number: str, own: InferenceCluster | None = None) -> None:
        self.id = number
        self._client, self._own = client, own

    @property
    def status(self) -> dict[str, Any]:
        """What `chimera infer list` shows of it: ``state``, ``queries``, ``finished``, ``errors`` and others."""
        return self._client.job(self.id)

    @property
    def rate(self) -> float:
        """Queries finished per second, over the last 10 s."""
        return float(self._row("rate")["rate"])

    @property
    def stats(self) -> dict[str, Any]:
        """The seconds per query: ``mean_s``, ``std_s``, ``median_s``, ``p90_s``, ``p95_s`` and ``p99_s``."""
        return self._row("stats")

    def wait(self, timeout_s: float | None = None) -> Self:
        """Return this job once it is done or cancelled.

        Raises
        ------
        TimeLimitError : it is not, in time.
        """
        self._client.wait(self.id, timeout_s)
        return self

    def results(self) -> list[dict[str, Any]]:
        """Return the results so far, in input order: ``index``, ``query``, and ``result`` or ``error``."""
        return list(self._client.results(self.id))

    def set(self, **changes: Any) -> None:
        """Change ``weight``, ``batch_size`` or ``max_workers``, from the next batch on."""
        self._client.change(self.id, **changes)

    def cancel(self) -> None:
        """Let it go no further; results that it has stay."""
        self._client.cancel(self.id)

    def close(self) -> None:
        """End the cluster that was started for this job alone, if it was."""
        if self._own is not None:
            self._own.close()

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the cluster that was started for this job alone, if it was."""
        self.close()

    def _row(self, what: str) -> dict[str, Any]:
        return next(row for row in self._client.rows(what) if row["job"] == self.id)


def infer(
    model: Any,
    inputs: Any,
    *,
    cluster: InferenceCluster | str | os.PathLike[str] | None = None,
    weight: float = 1.0,
    batch_size: int | str = "auto",
    max_workers: int | None = None,
    name: str | None = None,
    workers: int | None = None,
) -> InferenceJob:
    """Let a model answer queries; returns at once.

    Parameters
    ----------
    model : a table, a TOML file with one, the folder of a run, a ``.skops`` file, or ``file.py:factory``
        (docs/inference-models.md).
    inputs : a list, an array, a data frame, or the name of files (`chimera.inference.inputs.queries`).
    cluster : where; a folder, or one that this program keeps up. By default one is started for this job: it ends with the job's
        `close`, with its context, or with this process.
    weight : of the job's share of the query rate.
    batch_size : queries a batch; ``auto`` makes batches of about 0.6 s.
    max_workers : how many may serve the job at once; None is any number.
    name : what to call it.
    workers : of the cluster that is started; 2 by default.

    Raises
    ------
    ConfigurationError : something of this cannot be used; nothing was started then.
    """
    table, asked = read(model), list(queries(inputs))
    if cluster is not None and workers is not None:
        raise ConfigurationError("workers is for a cluster that is started for this job, not for one that is there")
    own = InferenceCluster(workers=WORKERS if workers is None else workers) if cluster is None else None
    there = own or cluster
    client = there.client if isinstance(there, InferenceCluster) else ClusterFolder(Path(there or "")).client()
    try:
        options = {"name": name, "weight": weight, "batch_size": batch_size, "max_workers": max_workers}
        return InferenceJob(client, client.submit(table, asked, **options), own)
    except BaseException:
        if own is not None:
            own.close()
        raise


def _start(place: ClusterFolder, **options: Any) -> subprocess.Popen[bytes]:
    place.create()
    given = {name: value for name, value in options.items() if value is not None}
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    with open(place.logs("supervisor") / "output.log", "wb", opener=opener) as log:
        return subprocess.Popen(  # noqa: S603 - this Python, a module of the project, no shell
            [sys.executable, "-m", "chimera.inference.supervisor", "--cluster", str(place.path), *words],
            stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip


def _await(place: ClusterFolder, process: subprocess.Popen[bytes]) -> Client:
    """Return a client once there is a coordinator."""
    deadline_s = time.monotonic() + PATIENCE_S
    while place.claimant() != process.pid and time.monotonic() < deadline_s:
        if process.poll() is not None:
            told = (place.logs("supervisor") / "output.log").read_text(errors="replace").strip().rpartition("\n")[2]
            raise RunError(f"the cluster did not start: {told}")
        time.sleep(_POLL_S)
    client = place.client()
    client.rows("jobs")
    return client


def _stop(process: subprocess.Popen[bytes], own: Path | None) -> None:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_S)
    process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
    if own is not None:
        shutil.rmtree(own, ignore_errors=True)
