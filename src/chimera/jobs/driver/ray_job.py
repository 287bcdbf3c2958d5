"""The program that Ray runs as an attempt's job: a driver whose workers are Ray's actors."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import msgspec

from chimera.jobs.cluster.folder import JobFolder
from chimera.jobs.driver.driver import outcome_of, redirect
from chimera.jobs.driver.ray_submission import submitted
from chimera.jobs.store.records import Submission
from chimera.web.folder import note_holder, take

_LOOK_S = 0.5
_FREE_S = 30.0  # so long an earlier attempt may need to end


def main() -> None:
    """Run an attempt, and write down how it ended: ``python -m chimera.jobs.driver.ray_job FOLDER ATTEMPT DRIVER``."""
    folder, attempt, attendant = JobFolder(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
    try:
        submission = msgspec.json.decode(submitted(folder).read_bytes(), type=Submission)
    except FileNotFoundError:
        raise SystemExit(f"Ray's head does not see {folder.path}: type 'chimera cluster up --ray' there") from None
    lock = _alone(folder.path / "ray.lock")
    threading.Thread(target=_end_with, args=(folder, attendant), name="chimera attendant", daemon=True).start()
    redirect(folder)
    import ray

    ray.init(address="auto", logging_level="ERROR")
    signal.signal(signal.SIGTERM, _interrupt)  # Ray stops a job by it, and has just set a handler of its own
    folder.note_outcome(attempt, outcome_of(folder, submission, engine="ray"))
    os.close(lock)


def _alone(file: Path) -> int:
    """Return the descriptor of a lock, once an earlier attempt has let go of it."""
    deadline_s = time.monotonic() + _FREE_S
    while (lock := take(file)) is None:
        if time.monotonic() > deadline_s:
            raise SystemExit("an earlier attempt of this job has not ended")
    note_holder(lock, os.getpid())
    return lock


def _end_with(folder: JobFolder, attendant: int) -> None:
    """End this process when the driver that waits for it is no more: nobody would take its end into the store."""
    while folder.driver() == attendant:
        time.sleep(_LOOK_S)
    _interrupt()


def _interrupt(*_: object) -> None:
    """End as a driver does that is told to: with a checkpoint, if it comes to one soon."""
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    main()
