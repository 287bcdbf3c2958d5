"""The process that runs one attempt of a job: forked from one that has imported the heavy libraries, it lives on by itself.

It needs nobody while it runs. It holds the job's lock until its end, and writes how that came before it goes; whoever looks
after the job finds both.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from chimera.core.errors import ActorError, ActorLost, ChimeraError, RunError, TimeLimitError, TooFewWorkersError
from chimera.core.private import FILE, make_folder
from chimera.engines.local.standby import close_all_but, stand_by
from chimera.jobs.cluster.folder import TOKEN, JobFolder, Outcome
from chimera.jobs.driver.progress_file import Told
from chimera.jobs.driver.results import write_results
from chimera.jobs.files.bundle import EXPERIMENT, load_function
from chimera.jobs.store.records import Submission
from chimera.web.folder import note_holder

if TYPE_CHECKING:
    from chimera.training.experiment.experiment import Experiment

STOP_S = 5.0
"""How long a driver that is told to stop may take to a checkpoint."""


def start(folder: JobFolder, attempt: int, submission: Submission, ray: str = "") -> int | None:
    """Fork a driver and return its process; None if this attempt has run, or another process works on the job still.

    The process that calls this has one thread. With the address of a ``ray``, the driver has that run the attempt.
    """
    lock = folder.claim()
    if lock is None:
        return None
    try:
        if folder.outcome(attempt) is not None:
            return None
        pid = os.fork()
        if pid == 0:
            _become_driver(folder, attempt, submission, lock, ray)
        note_holder(lock, pid)
        return pid
    finally:
        os.close(lock)  # the driver has a copy, and holds the lock by it


def stop(folder: JobFolder, pid: int) -> None:
    """Let a driver end: with a checkpoint if it comes to one soon, else without; returns when it has ended."""
    for number, wait_s in ((signal.SIGINT, STOP_S), (signal.SIGKILL, math.inf)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline_s = time.monotonic() + wait_s
        while time.monotonic() < deadline_s:
            if folder.driver() != pid:
                return
            time.sleep(0.01)


def _become_driver(folder: JobFolder, attempt: int, submission: Submission, lock: int, ray: str) -> NoReturn:
    try:
        os.setsid()
        os.environ.pop(TOKEN, None)  # a job has no business with a cluster
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        note_holder(lock, os.getpid())
        redirect(folder)
        close_all_but(0, 1, 2, lock)
        folder.note_outcome(
            attempt, _attended(folder, attempt, submission, ray) if ray else outcome_of(folder, submission)
        )
        _flush()
        os._exit(0)
    except KeyboardInterrupt:  # told to stop: the last checkpoint is written
        sys.stderr.write("interrupted\n")
    except BaseException:
        traceback.print_exc()
    finally:
        _flush()
        os._exit(1)  # without teardown: what its parent had open, and its exit handlers, are not this process's


def redirect(folder: JobFolder) -> None:
    """Let what this process prints go into the job's log."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(folder.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE)
    for old, new in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(old, new)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def _attended(folder: JobFolder, attempt: int, submission: Submission, address: str) -> Outcome:
    from chimera.jobs.driver.ray_submission import attend

    return attend(folder, attempt, submission, address)


def outcome_of(folder: JobFolder, submission: Submission, engine: str = "local") -> Outcome:
    """Run it, in this process, and return how it ended; ``engine`` stands in for ``local``."""
    run = _KINDS[submission.kind]
    try:
        make_folder(folder.code)
        os.chdir(folder.code)
        if engine == "local":
            stand_by()  # before anything has started a thread
            _use_all_processors()
        sys.path.insert(0, str(folder.code))
        run(folder, submission, engine)
    except _LostError as error:
        return Outcome("broke", str(error))
    except (Exception, SystemExit) as error:
        if isinstance(error, TimeLimitError) and engine != "local":  # no room in time: others have it
            return Outcome("refused", str(error))
        remote = error if isinstance(error, ActorError) else error.__cause__
        if not isinstance(error, ChimeraError) or isinstance(remote, ActorError):
            traceback.print_exc()
        line = " ".join(str(remote if isinstance(remote, ActorError) else error).split("\n", 1)[0].split())
        return Outcome("failed", line if isinstance(error, ChimeraError) else f"{type(error).__name__}: {line}")
    return Outcome("done")


def _use_all_processors() -> None:
    """Let torch have them here; actors have what they ask for, and the process that this was forked from has one thread."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(os.cpu_count() or 1)


def _run_experiment(folder: JobFolder, submission: Submission, engine: str) -> None:
    from chimera.training.experiment.experiment import Experiment

    experiment = Experiment.load(folder.code / EXPERIMENT).with_settings(submission.settings)
    if "engine" not in experiment.tables or experiment.tables["engine"]["name"] == "local":
        experiment = experiment.with_table("engine", engine)
    stops = _may_stop(experiment)
    if stops:
        experiment = experiment.with_settings(["train.on_worker_loss=stop"])
    try:
        experiment.trainer(callbacks=[Told(folder.watch)], out=folder.run, resume=True).fit()
    except (TooFewWorkersError, ActorLost) as error:
        if stops:
            raise _LostError(str(error)) from error
        raise


def _may_stop(experiment: Experiment) -> bool:
    """Return whether the loss of an actor is to end the attempt, so that the next one goes on from the checkpoint.

    That has the bits of a run in which nobody died; a replaced worker has not, since a round may have done without it. Where
    the experiment says what a loss is to mean, or lets actors die by itself, and where bits are not promised, it stays so.
    """
    from chimera.strategies.strategy import STRATEGIES
    from chimera.training.plugin import named

    tables = experiment.tables
    real = tables.get("engine", {"name": "local"})["name"] in ("local", "ray")
    if not real or {"on_worker_loss", "faults"} & set(tables["train"]):
        return False
    name, _ = named(tables.get("strategy", "parameter-server"))
    return getattr(STRATEGIES.find(name).factory, "family", "") != "asynchronous"


class _LostError(RunError):
    """The attempt is lost, and not the job."""


def _run_function(folder: JobFolder, submission: Submission, engine: str) -> None:
    from chimera import remote

    assert submission.function is not None  # the store has checked it
    function, args, kwargs = load_function(submission.function, folder.code)
    called = functools.partial(function, **kwargs) if kwargs else function
    try:
        write_results(remote.run(called, *args, workers=submission.workers, engine=engine), folder.run)
    except ActorLost as error:
        raise _LostError(str(error)) from error


_KINDS: dict[str, Callable[[JobFolder, Submission, str], None]] = {
    "experiment": _run_experiment,
    "function": _run_function,
}
