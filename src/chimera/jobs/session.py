"""Start and end of a cluster for jobs on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

import msgspec

from chimera.core.address import INSECURE, is_insecure_accepted, is_loopback
from chimera.core.counted import counted
from chimera.core.errors import ConfigurationError, RunError, UnavailableError
from chimera.core.extras import require_web
from chimera.core.processes import THREAD_VARIABLES
from chimera.jobs.client.client import Client
from chimera.jobs.cluster.folder import ClusterFolder, Options
from chimera.jobs.driver.driver import stop
from chimera.jobs.supervisor import STOP_S

START_S = 60.0
_CONFIGURATION_ERROR = 2  # exit code


def up(folder: ClusterFolder, options: Options) -> Client:
    """Start a cluster in the background, and return its client once all workers are up; keep one that is up already.

    Raises
    ------
    MissingExtraError : a required package is not installed.
    ConfigurationError : the cluster is up with other options, or the options are not valid.
    RunError : the cluster did not start.
    """
    require_web("a cluster for jobs")
    if not (is_loopback(options.host) or is_insecure_accepted()):
        raise ConfigurationError(
            f"{options.address}: tokens would travel to it in clear: listen on 127.0.0.1, and let other machines use a TLS "
            f"server or `ssh -L`; or set {INSECURE}=1 if you accept that"
        )
    folder.create()
    if folder.lock_holder() is not None:
        return _existing(folder, options)
    started = subprocess.run(  # noqa: S603 - this Python, a module of the project, no shell
        [sys.executable, "-m", "chimera.jobs.supervisor", str(folder.path), msgspec.json.encode(options).decode()],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, start_new_session=True, check=False,
        env={**dict.fromkeys(THREAD_VARIABLES, "1"), **os.environ, "OPENBLAS_NUM_THREADS": "1"},  # no threads before forks
    )  # fmt: skip
    if started.returncode:
        message = started.stderr.strip().rpartition("\n")[2]
        raise (ConfigurationError if started.returncode == _CONFIGURATION_ERROR else RunError)(
            f"the cluster did not start: {message}"
        )
    deadline_s = time.monotonic() + START_S
    client = Client.of(folder)
    while time.monotonic() < deadline_s:
        with contextlib.suppress(UnavailableError):  # a busy machine; the daemon answers later
            if sum(row["role"] == "worker" for row in client.processes()) == options.workers:
                return client
        if folder.lock_holder() is None:
            raise RunError(f"the cluster has ended while it started; see {folder.log}")
        time.sleep(0.02)
    raise RunError(f"the cluster's workers did not start within {START_S:g} s; see {folder.log}")


def down(folder: ClusterFolder) -> bool:
    """End a cluster with all its processes, and return whether it was up; running jobs resume with the next cluster.

    Raises
    ------
    RunError : the cluster does not end.
    """
    claimant = folder.lock_holder()
    if claimant is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(claimant, signal.SIGTERM)
            os.kill(claimant, signal.SIGCONT)  # a stopped process would not receive the first signal
        if not folder.await_end(4 * STOP_S):
            raise RunError(f"process {claimant}, which runs the cluster, has not ended within {4 * STOP_S:g} s")
    for lock in folder.path.glob("jobs/*/driver.lock"):
        job = folder.job(lock.parent.name)
        pid = job.driver_pid()
        if pid is not None:  # of a worker that was killed
            stop(job, pid)
    return claimant is not None


def _existing(folder: ClusterFolder, options: Options) -> Client:
    present = folder.options()
    if present is not None and present != msgspec.structs.replace(
        options, port=options.port or present.port, pid=present.pid
    ):
        raise ConfigurationError(
            f"the cluster in {folder.path} is up with {counted(present.workers, 'worker')} at {present.address}: "
            f"end it with {folder.down!r} to start another one"
        )
    return Client.of(folder)
