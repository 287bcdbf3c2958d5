"""Jobs on Ray: an attempt is a job of Ray's own, submitted by the job's driver, which waits for it and ends it.

The daemon, its store and its slots are the same as on one machine. What runs as Ray's job, on Ray's head, is
`chimera.jobs.driver.ray_job`: it drives the training, whose workers are Ray's actors, in places that Ray reserves all or none.
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

_LOOK_S = 0.2
_SILENT_S = 60.0  # so long Ray's server of jobs may not answer, or take no jobs
_PROGRAM = "chimera.jobs.driver.ray_job"


def connect(address: str) -> Any:
    """Return a client of Ray's own server of jobs.

    Parameters
    ----------
    address : of a Ray, ``auto`` or ``host:port``, or of its dashboard, ``http://host:8265``.

    Raises
    ------
    ConfigurationError : none is there, or it takes no jobs.
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
        said = str(error).strip().partition("\n")[0]
        raise ConfigurationError(
            f"no Ray that takes jobs answers at {address!r}: {said}. 'ray start --head' starts one, with ray[default] installed"
        ) from error


def attend(folder: JobFolder, attempt: int, submission: Submission, address: str) -> Outcome:
    """Have Ray run an attempt, and return how it ended; an interrupt ends it."""
    name = f"chimera-{folder.path.name}-{attempt}-{uuid.uuid4().hex[:8]}"
    words = [sys.executable, "-m", _PROGRAM, str(folder.path.absolute()), str(attempt), str(os.getpid())]
    write(submitted(folder), msgspec.json.encode(submission))
    with tempfile.TemporaryDirectory(prefix="chimera-code-") as code:
        try:
            stage(Path(code), [folder.code, *(folder.code / OUTSIDE).glob("*")])
        except ConfigurationError as error:
            return Outcome("failed", str(error))
        order = {
            "entrypoint": shlex.join(words),
            "submission_id": name,
            "runtime_env": {"working_dir": code, "py_modules": [str(CHIMERA)]},
            "metadata": {"name": submission.name, "user": submission.user, "workers": str(submission.workers)},
        }
        try:
            client = _submit(address, order)
        except (ConfigurationError, ConnectionError, RuntimeError) as error:
            return Outcome("broke", f"Ray took no job: {str(error).strip().partition(chr(10))[0]}")
    try:
        said = _await(client, name)
    except BaseException:
        client.stop_job(name)
        _await(client, name)
        raise
    return folder.outcome(attempt) or Outcome("broke", f"Ray's job {name} ended: {said}")


def _submit(address: str, order: dict[str, Any]) -> Any:
    """Hand a job to a Ray, which may be starting still, and return the client that did it; raises what Ray said at last."""
    began_s = time.monotonic()
    while True:
        try:
            client = connect(address)
            client.submit_job(**order)
            return client
        except (ConfigurationError, ConnectionError, RuntimeError) as error:
            if "already exists" in str(error):  # the answer to the last try was lost
                return client
            if time.monotonic() > began_s + _SILENT_S:
                raise
        time.sleep(_LOOK_S)


def submitted(folder: JobFolder) -> Path:
    """Return the file from which Ray's job reads what it is to run."""
    return folder.path / "submission.json"


def _await(client: Any, name: str) -> str:
    """Return what Ray says of a job once it is over."""
    heard_s = time.monotonic()
    while True:
        try:
            info = client.get_job_info(name)
            if info.status.is_terminal():
                return str(info.message).strip().partition("\n")[0].partition(", last available logs")[0]
            heard_s = time.monotonic()
        except (ConnectionError, RuntimeError) as error:
            if time.monotonic() > heard_s + _SILENT_S:
                return f"Ray has not answered for {_SILENT_S:g} s: {error}"
        time.sleep(_LOOK_S)
