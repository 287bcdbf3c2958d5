"""Attempts on Ray: the driver submits an attempt as a Ray job, waits for it and stops it.

Daemon, store and workers are the same as on one machine. The Ray job runs `chimera.jobs.driver.ray_job` on Ray's head
node. This program drives the training on Ray actors, for which it reserves all resources at once or none.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import msgspec

from chimera.core.errors import ConfigurationError, MissingExtraError
from chimera.core.private import write
from chimera.core.user_code import CHIMERA, stage
from chimera.engines.ray.session import check_reachable
from chimera.jobs.cluster.folder import JobFolder, Outcome
from chimera.jobs.files.bundle import OUTSIDE
from chimera.jobs.store.records import Submission

_POLL_S = 0.2
_TIMEOUT_S = 60.0  # longest time without an answer of Ray's job server
_PROGRAM = "chimera.jobs.driver.ray_job"


def connect(address: str) -> Any:
    """Return a client of Ray's job server.

    Parameters
    ----------
    address : address of Ray, ``auto`` or ``host:port``, or of its dashboard, ``http://host:8265``.

    Raises
    ------
    MissingExtraError : Ray is not installed.
    ConfigurationError : there is no Ray at the address, or it accepts no jobs.
    """
    try:
        from ray.exceptions import AuthenticationError
        from ray.job_submission import JobSubmissionClient
    except ImportError as error:
        raise MissingExtraError("a cluster on Ray", "ray", "ray") from error
    logging.getLogger("ray.dashboard.modules.dashboard_sdk").setLevel(logging.ERROR)
    if "://" not in address:
        check_reachable(address)
    try:
        return JobSubmissionClient(address)
    except AuthenticationError as error:
        raise ConfigurationError(f"the Ray at {address!r} asks for Ray's token: set RAY_AUTH_MODE=token") from error
    except (ConnectionError, RuntimeError, ValueError) as error:
        message = str(error).strip().partition("\n")[0]
        raise ConfigurationError(
            f"no Ray that accepts jobs answers at {address!r}: {message}. 'ray start --head' starts one; it needs ray[default]"
        ) from error


def run_on_ray(folder: JobFolder, attempt: int, submission: Submission, address: str) -> Outcome:
    """Run an attempt as a Ray job and return its outcome; an interrupt stops the Ray job."""
    name = f"chimera-{folder.path.name}-{attempt}-{uuid.uuid4().hex[:8]}"
    command = [sys.executable, "-m", _PROGRAM, str(folder.path.absolute()), str(attempt), str(os.getpid())]
    write(submission_file(folder), msgspec.json.encode(submission))
    with tempfile.TemporaryDirectory(prefix="chimera-code-") as code:
        try:
            stage(Path(code), [folder.code, *(folder.code / OUTSIDE).glob("*")])
        except ConfigurationError as error:
            return Outcome("failed", str(error))
        request = {
            "entrypoint": shlex.join(command),
            "submission_id": name,
            "runtime_env": {"working_dir": code, "py_modules": [str(CHIMERA)]},
            "metadata": {"name": submission.name, "user": submission.user, "workers": str(submission.workers)},
        }
        try:
            client = _submit(address, request)
        except (ConfigurationError, ConnectionError, RuntimeError) as error:
            return Outcome("broke", f"Ray accepted no job: {str(error).strip().partition(chr(10))[0]}")
    try:
        message = _await_end(client, name)
    except BaseException:
        client.stop_job(name)
        _await_end(client, name)
        raise
    return folder.outcome(attempt) or Outcome("broke", f"Ray's job {name} ended: {message}")


def _submit(address: str, request: dict[str, Any]) -> Any:
    """Submit a job to Ray, which may still be starting, and return the client; raises the last error after `_TIMEOUT_S`."""
    began_s = time.monotonic()
    while True:
        try:
            client = connect(address)
            client.submit_job(**request)
            return client
        except (ConfigurationError, ConnectionError, RuntimeError) as error:
            if "already exists" in str(error):  # the answer to the last request was lost
                return client
            if time.monotonic() > began_s + _TIMEOUT_S:
                raise
        time.sleep(_POLL_S)


def submission_file(folder: JobFolder) -> Path:
    """Return the file from which the Ray job reads its submission."""
    return folder.path / "submission.json"


def _await_end(client: Any, name: str) -> str:
    """Wait until a Ray job has ended and return its message."""
    answered_s = time.monotonic()
    while True:
        try:
            info = client.get_job_info(name)
            if info.status.is_terminal():
                return str(info.message).strip().partition("\n")[0].partition(", last available logs")[0]
            answered_s = time.monotonic()
        except (ConnectionError, RuntimeError) as error:
            if time.monotonic() > answered_s + _TIMEOUT_S:
                return f"Ray has not answered for {_TIMEOUT_S:g} s: {error}"
        time.sleep(_POLL_S)
