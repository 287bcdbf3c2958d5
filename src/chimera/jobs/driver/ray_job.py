"""Program of the Ray job of an attempt: a driver whose workers are Ray actors."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import msgspec

from chimera.core.stop_signals import terminable
from chimera.jobs.cluster.folder import JobFolder
from chimera.jobs.driver.driver import redirect_output, run_job
from chimera.jobs.driver.ray_submission import submission_file
from chimera.jobs.store.records import Submission
from chimera.web.folder import try_lock, write_lock_holder

_POLL_S = 0.5
_LOCK_TIMEOUT_S = 30.0  # time for an earlier attempt to end


def main() -> None:
    """Run an attempt and record its outcome: ``python -m chimera.jobs.driver.ray_job FOLDER ATTEMPT DRIVER``."""
    folder, attempt, driver = JobFolder(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
    try:
        submission = msgspec.json.decode(submission_file(folder).read_bytes(), type=Submission)
    except FileNotFoundError:
        raise SystemExit(f"Ray's head node does not see {folder.path}: run 'chimera cluster up --ray' there") from None
    lock = _acquire_lock(folder.path / "ray.lock")
    threading.Thread(target=_interrupt_with, args=(folder, driver), name="chimera driver watch", daemon=True).start()
    redirect_output(folder)
    import ray

    ray.init(address="auto", logging_level="ERROR")
    with terminable():  # Ray stops a job with SIGTERM, and init has set Ray's handler
        folder.write_outcome(attempt, run_job(folder, submission, engine="ray"))
    os.close(lock)


def _acquire_lock(file: Path) -> int:
    """Return the descriptor of a lock, after an earlier attempt has released it."""
    deadline_s = time.monotonic() + _LOCK_TIMEOUT_S
    while (lock := try_lock(file)) is None:
        if time.monotonic() > deadline_s:
            raise SystemExit("an earlier attempt of this job has not ended")
    write_lock_holder(lock, os.getpid())
    return lock


def _interrupt_with(folder: JobFolder, driver: int) -> None:
    """Stop this process when the driver that waits for it has exited, since no process would apply its outcome.

    This process writes a checkpoint if it reaches one soon, as when Ray stops it.
    """
    while folder.driver_pid() == driver:
        time.sleep(_POLL_S)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
