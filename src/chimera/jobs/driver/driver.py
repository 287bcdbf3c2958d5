"""Driver: the process that runs one attempt of a job, forked from a worker that has imported the large libraries.

The driver needs no other process of the cluster while it runs. It holds the job's lock until it exits, and records its
outcome before. Worker and daemon read the lock and the outcome.
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
from chimera.core.stop_signals import PREEMPTIONS, exit_code_of_stop, reason_of_stop, terminable
from chimera.engines.local.standby import close_all_but, stand_by
from chimera.jobs.cluster.folder import JobFolder, Outcome
from chimera.jobs.driver.progress_file import ProgressWriter
from chimera.jobs.driver.results import write_results
from chimera.jobs.files.bundle import EXPERIMENT, load_function
from chimera.jobs.store.records import Submission
from chimera.web.folder import TOKEN, write_lock_holder

if TYPE_CHECKING:
    from chimera.training.experiment.experiment import Experiment

STOP_S = 5.0
"""Time for a driver to reach a checkpoint after SIGINT, in seconds."""


def start(folder: JobFolder, attempt: int, submission: Submission, ray: str = "") -> int | None:
    """Fork a driver and return its process; None if this attempt has run, or another driver still works on the job.

    The caller must have only one thread.

    Parameters
    ----------
    ray : address of the Ray cluster that runs the attempt; empty to run it on this machine.
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
        write_lock_holder(lock, pid)
        return pid
    finally:
        os.close(lock)  # the driver keeps its copy, and with it the lock


def stop(folder: JobFolder, pid: int) -> None:
    """Stop a driver, after a checkpoint if it reaches one within `STOP_S`; return when it has exited."""
    for number, wait_s in ((signal.SIGINT, STOP_S), (signal.SIGKILL, math.inf)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline_s = time.monotonic() + wait_s
        while time.monotonic() < deadline_s:
            if folder.driver_pid() != pid:
                return
            time.sleep(0.01)


def _become_driver(folder: JobFolder, attempt: int, submission: Submission, lock: int, ray: str) -> NoReturn:
    code = 1
    try:
        os.setsid()
        os.environ.pop(TOKEN, None)  # a job has no access to the cluster
        signal.set_wakeup_fd(-1)
        for number in (*PREEMPTIONS, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        write_lock_holder(lock, os.getpid())
        redirect_output(folder)
        close_all_but(0, 1, 2, lock)
        with terminable():
            folder.write_outcome(
                attempt, _run_on_ray(folder, attempt, submission, ray) if ray else run_job(folder, submission)
            )
        code = 0
    except KeyboardInterrupt as error:  # the last checkpoint is written
        sys.stderr.write(f"{reason_of_stop(error)}\n")
        code = exit_code_of_stop(error)
    except BaseException:
        traceback.print_exc()
    finally:
        _flush()
        os._exit(code)  # without teardown: open files and exit handlers belong to the parent


def redirect_output(folder: JobFolder) -> None:
    """Redirect the output of this process to the job's log."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(folder.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE)
    for old, new in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(old, new)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def _run_on_ray(folder: JobFolder, attempt: int, submission: Submission, address: str) -> Outcome:
    from chimera.jobs.driver.ray_submission import run_on_ray

    return run_on_ray(folder, attempt, submission, address)


def run_job(folder: JobFolder, submission: Submission, engine: str = "local") -> Outcome:
    """Run a job in this process and return its outcome; ``engine`` replaces engine ``local`` of the experiment."""
    run = _RUNNERS[submission.kind]
    try:
        make_folder(folder.code)
        os.chdir(folder.code)
        if engine == "local":
            stand_by()  # before any thread is started
            _use_all_processors()
        sys.path.insert(0, str(folder.code))
        run(folder, submission, engine)
    except _AttemptLostError as error:
        return Outcome("broke", str(error))
    except KeyboardInterrupt:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, TimeLimitError) and engine != "local":  # Ray had no room in time
            return Outcome("refused", str(error))
        remote = error if isinstance(error, ActorError) else error.__cause__
        if not isinstance(error, ChimeraError) or isinstance(remote, ActorError):
            traceback.print_exc()
        line = " ".join(str(remote if isinstance(remote, ActorError) else error).split("\n", 1)[0].split())
        return Outcome("failed", line if isinstance(error, ChimeraError) else f"{type(error).__name__}: {line}")
    return Outcome("done")


def _use_all_processors() -> None:
    """Make torch use all processors in this process; actors set their own number, and the parent had one thread."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(os.cpu_count() or 1)


def _run_experiment(folder: JobFolder, submission: Submission, engine: str) -> None:
    from chimera.training.experiment.experiment import Experiment

    experiment = Experiment.load(folder.code / EXPERIMENT).with_settings(submission.settings)
    if "engine" not in experiment.tables or experiment.tables["engine"]["name"] == "local":
        experiment = experiment.with_table("engine", engine)
    stops = _stops_on_loss(experiment)
    if stops:
        experiment = experiment.with_settings(["train.on_worker_loss=stop"])
    try:
        experiment.trainer(callbacks=[ProgressWriter(folder.progress_file)], out=folder.run, resume=True).fit()
    except (TooFewWorkersError, ActorLost) as error:
        if stops:
            raise _AttemptLostError(str(error)) from error
        raise


def _stops_on_loss(experiment: Experiment) -> bool:
    """Return whether the loss of an actor ends the attempt, so that the next one resumes from the checkpoint.

    The result then has the same bits as a run without losses. A replaced worker would not give them, since a round may have
    run without it. The experiment's own behavior is kept if it sets ``on_worker_loss`` or ``faults``, if its engine is neither
    ``local`` nor ``ray``, or if its strategy is asynchronous and so not reproducible to the bit.
    """
    from chimera.strategies.strategy import STRATEGIES
    from chimera.training.plugin import named

    tables = experiment.tables
    real = tables.get("engine", {"name": "local"})["name"] in ("local", "ray")
    if not real or {"on_worker_loss", "faults"} & set(tables["train"]):
        return False
    name, _ = named(tables.get("strategy", "parameter-server"))
    return getattr(STRATEGIES.find(name).factory, "family", "") != "asynchronous"


class _AttemptLostError(RunError):
    """Loss of the attempt, after which the job is retried."""


def _run_function(folder: JobFolder, submission: Submission, engine: str) -> None:
    from chimera import remote

    assert submission.function is not None  # checked by the store
    function, args, kwargs = load_function(submission.function, folder.code)
    called = functools.partial(function, **kwargs) if kwargs else function
    try:
        write_results(remote.run(called, *args, workers=submission.workers, engine=engine), folder.run)
    except ActorLost as error:
        raise _AttemptLostError(str(error)) from error


_RUNNERS: dict[str, Callable[[JobFolder, Submission, str], None]] = {
    "experiment": _run_experiment,
    "function": _run_function,
}
