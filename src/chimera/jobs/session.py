"""Starting and ending a cluster for jobs on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

import msgspec

from chimera.core.errors import ConfigurationError, RunError
from chimera.core.extras import require_web
from chimera.jobs.client.client import Client
from chimera.jobs.cluster.folder import ClusterFolder, Options
from chimera.jobs.driver.driver import stop
from chimera.jobs.supervisor import STOP_S

START_S = 60.0
_MISTAKE = 2  # the exit code
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def up(folder: ClusterFolder, options: Options) -> Client:
    """Start a cluster that lives on by itself, and return its client once it answers; one that is up already stays.

    Raises
    ------
    MissingExtraError : a package that it needs is not installed.
    ConfigurationError : it is up with other options, or they cannot be used.
    RunError : it did not start.
    """
    require_web("a cluster for jobs")
    folder.create()
    if folder.claimant() is not None:
        return _found(folder, options)
    started = subprocess.run(  # noqa: S603 - this Python, a module of the project, no shell
        [sys.executable, "-m", "chimera.jobs.supervisor", str(folder.path), msgspec.json.encode(options).decode()],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, start_new_session=True, check=False,
        env={**dict.fromkeys(_THREADS, "1"), **os.environ, "OPENBLAS_NUM_THREADS": "1"},  # which else has threads before forks
    )  # fmt: skip
    if started.returncode:
        told = started.stderr.strip().rpartition("\n")[2]
        raise (ConfigurationError if started.returncode == _MISTAKE else RunError)(f"the cluster did not start: {told}")
    deadline_s = time.monotonic() + START_S
    client = Client.of(folder)
    while time.monotonic() < deadline_s:
        if sum(row["role"] == "worker" for row in client.processes()) == options.workers:
            return client
        time.sleep(0.02)
    raise RunError(f"the cluster's workers did not start within {START_S:g} s; {folder.log} has what they wrote")


def down(folder: ClusterFolder) -> bool:
    """End a cluster with all its processes, and return whether it was up; jobs that run go on with the next one.

    Raises
    ------
    RunError : it does not end.
    """
    claimant = folder.claimant()
    if claimant is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(claimant, signal.SIGTERM)
        if not folder.await_end(4 * STOP_S):
            raise RunError(f"process {claimant}, which keeps the cluster, has not ended within {4 * STOP_S:g} s")
    for lock in folder.path.glob("jobs/*/driver.lock"):
        job = folder.job(lock.parent.name)
        pid = job.driver()
        if pid is not None:  # of a slot that was killed
            stop(job, pid)
    return claimant is not None


def _found(folder: ClusterFolder, options: Options) -> Client:
    present = folder.options()
    if present is not None and present != msgspec.structs.replace(
        options, port=options.port or present.port, pid=present.pid
    ):
        raise ConfigurationError(
            f"the cluster in {folder.path} is up with {present.workers} workers at {present.address}: "
            f"{folder.down!r} ends it, to start another one"
        )
    return Client.of(folder)
