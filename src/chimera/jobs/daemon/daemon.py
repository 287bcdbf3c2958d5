"""Daemon of a cluster: it accepts jobs, starts each on free workers, and records its outcome in the store.

Its state is in the store, in the folders of jobs and at the workers, so that it can fail at any time. The next daemon reads the
store, receives the lease of each worker, and finds by the job's lock whether a driver runs.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from dataclasses import replace
from typing import Any

import msgspec

from chimera.core.errors import ChimeraError, NoSpaceError
from chimera.jobs.cluster.connection import Hello
from chimera.jobs.cluster.folder import ClusterFolder, Options
from chimera.jobs.cluster.log import log
from chimera.jobs.daemon.deletion import INTERVAL_S, delete_expired
from chimera.jobs.daemon.driver_shutdown import DriverShutdown
from chimera.jobs.daemon.worker_connections import WorkerConnections
from chimera.jobs.driver.progress_file import read_fraction
from chimera.jobs.scheduling.attempt_start import AttemptStart, Phase
from chimera.jobs.scheduling.messages import (
    Attempt,
    AttemptEnded,
    CoordinatorAction,
    Limits,
    RecordCommit,
    Release,
    Requirements,
    Send,
    ToCoordinator,
)
from chimera.jobs.scheduling.queue import QueueSettings, schedule
from chimera.jobs.store.records import Job, row_of
from chimera.jobs.store.states import TERMINAL, Event, State
from chimera.jobs.store.store import Store
from chimera.web.retention import keep_s

POLL_S = 0.05
"""Interval between two checks of drivers, in seconds."""
_PROGRESS_INTERVAL_S = 0.5
_COLUMNS = ("role", "name", "pid", "state", "job")
_EVENTS = {"done": Event.ENDED, "failed": Event.FAILED, "broke": Event.BROKE, "refused": Event.REFUSED}
_SPACE_POLL_S = 1.0
_PREPARED_BYTES_PER_S = 10 << 20  # bytes that a slow disk copies and hashes in a second
_RECONNECT_S = 5.0  # time for the workers of running jobs to connect to a new daemon


class Daemon:
    """The daemon of one cluster, which coordinates its attempts.

    Parameters
    ----------
    folder, options : folder and options of the cluster.
    workers : listening socket for workers.
    limits : time limits of a start.

    Attributes
    ----------
    store : store of the jobs.
    wait_reasons : reason why each queued job waits, by id.
    problem : problem of the daemon, for users; empty if there is none.
    connections : connections to workers.
    """

    def __init__(self, folder: ClusterFolder, options: Options, workers: socket.socket, limits: Limits) -> None:
        self.folder, self.options = folder, options
        self.store = Store(folder.store)
        self.wait_reasons: dict[str, str] = {}
        self.problem = ""
        self._failure: Exception | None = None
        self._limits = limits
        self._queue_settings = QueueSettings(workers_per_user=options.limit_per_user or 0)
        self._starts: dict[str, AttemptStart] = {}
        self._shutdowns: dict[str, DriverShutdown] = {}
        self._lock, self._wake_event, self._stopped = threading.RLock(), threading.Event(), threading.Event()
        self.connections = WorkerConnections(workers, self._lock, self)
        self._started_s, self._progress_s = time.monotonic(), 0.0
        self._recover()

    def wake(self) -> None:
        """Check the store at once, after a change."""
        self._wake_event.set()

    def start_threads(self) -> None:
        """Start the threads of the daemon."""
        deletion = [] if self.options.keep_days is None else [self._delete_expired]
        for work in (self.connections.accept, self._loop, *deletion):
            threading.Thread(target=work, name=f"chimera {work.__name__}", daemon=True).start()

    def row_of(self, job: Job) -> dict[str, Any]:
        """Return the row of a job for lists, with the reason why it waits."""
        return row_of(job, self.wait_reasons.get(job.id, "") or (self.problem if job.state not in TERMINAL else ""))

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each known process of the cluster."""
        host = socket.gethostname()
        with self._lock:
            busy = {name: job.id for job in self._active_jobs() for name in job.workers}
            rows: list[tuple[str, str, int, str, str | None]] = [
                ("supervisor", "supervisor", os.getppid(), "up", None),
                ("daemon", "daemon", os.getpid(), self.problem or "up", None),
            ]
            rows += [
                ("worker", name, worker.pid, self.connections.state(name, busy), busy.get(name))
                for name, worker in sorted(self.connections.workers.items())
            ]
            for job in self.store.jobs((State.RUNNING,)):
                pid = self.folder.job(job.id).driver_pid()
                if pid is not None:
                    rows.append(("driver", f"job {job.id}", pid, "running", job.id))
        return [dict(zip(_COLUMNS, row, strict=True)) | {"host": host} for row in rows]

    def _recover(self) -> None:
        """Resume the active jobs of an earlier daemon from the store."""
        now_s = time.time()
        for job in self.store.jobs((State.STARTING,)):
            reason = "the daemon ended while the job started"
            self.store.apply(job.id, Event.REFUSED, attempt=job.attempt, reason=reason, now_s=now_s)
        running = self.store.jobs((State.RUNNING,))
        for job in running:
            self._starts[job.id] = AttemptStart.adopted(Attempt(job.id, job.attempt), job.workers, self._limits)
        for lock in self.folder.path.glob("jobs/*/driver.lock"):
            if lock.parent.name not in self._starts:
                self._shut_down_driver(Attempt(lock.parent.name, 0))

    def _delete_expired(self) -> None:
        after_s = keep_s(self.options.keep_days)
        assert after_s is not None
        while not self._stopped.is_set():
            try:
                delete_expired(self.folder, self.store, after_s, self._queue_settings.usage_window_s)
            except (ChimeraError, OSError) as error:  # for example a full disk: the next round tries again
                log(f"expired jobs could not be deleted: {error}")
            self._stopped.wait(INTERVAL_S)

    def _loop(self) -> None:
        while not self._stopped.is_set():
            self._wake_event.wait(POLL_S)
            self._wake_event.clear()
            try:
                with self._lock:
                    if self._failure is not None:
                        raise self._failure
                    self._step()
            except NoSpaceError as error:
                self._await_space(error)
            except ChimeraError as error:  # as below; for example, another process holds the store
                log(f"the daemon restarts: {error}")
                os._exit(1)
            except Exception:  # exit instead of hanging: the next daemon resumes from the store
                sys.excepthook(*sys.exc_info())
                os._exit(1)

    def _await_space(self, error: NoSpaceError) -> None:
        """Serve requests until the disk has room, then exit: after the failed step only the store is consistent."""
        self.problem = f"{error}; free some space"
        log(f"the daemon waits: {self.problem}")
        while not self._stopped.wait(_SPACE_POLL_S):
            try:
                self.store.check_space()
            except NoSpaceError:
                continue
            except ChimeraError as failure:
                log(f"the daemon restarts: {failure}")
                os._exit(1)
            log("the disk has room again: the daemon restarts")
            os._exit(1)

    def _step(self) -> None:
        now_s = time.monotonic()
        active = {job.id: job for job in self._active_jobs()}
        for start in list(self._starts.values()):
            job = active.get(start.attempt.job)
            if job is None or job.attempt != start.attempt.number:
                self._drop(start, "it was cancelled")
                continue
            self._execute(start, start.tick(now_s))
        if now_s - self._started_s > _RECONNECT_S:
            for start in list(self._starts.values()):
                for name in active[start.attempt.job].workers if start.attempt.job in active else ():
                    if name not in self.connections:
                        self._execute(start, start.worker_lost(name, "it has not reconnected"))
        self._check_drivers(now_s)
        for shutdown in list(self._shutdowns.values()):
            self._check_shutdown(shutdown, now_s)
        self._schedule()

    def _check_drivers(self, now_s: float) -> None:
        records_progress = now_s >= self._progress_s
        if records_progress:
            self._progress_s = now_s + _PROGRESS_INTERVAL_S
        for start in list(self._starts.values()):
            if start.phase is not Phase.RUNNING:
                continue
            attempt = start.attempt
            job_folder = self.folder.job(attempt.job)
            if records_progress and (fraction := read_fraction(job_folder.progress_file)) is not None:
                self.store.record_progress(attempt.job, attempt.number, fraction)
            if job_folder.driver_pid() is None:
                self._drop(start, "it has ended", broke="its process was killed")

    def _check_shutdown(self, shutdown: DriverShutdown, now_s: float) -> None:
        """Record the end of an attempt in the store, after its driver has exited."""
        attempt = shutdown.attempt
        job_folder = self.folder.job(attempt.job)
        pid = job_folder.driver_pid()
        if pid is not None:
            shutdown.signal_driver(pid, now_s, lead_lost=shutdown.lead not in self.connections)
            return
        del self._shutdowns[attempt.job]
        if not shutdown.broke:
            return
        outcome = job_folder.outcome(attempt.number)
        event, reason = Event.BROKE, shutdown.broke
        if outcome is not None:
            event, reason = _EVENTS[outcome.state], outcome.reason
            if (fraction := read_fraction(job_folder.progress_file)) is not None:
                self.store.record_progress(attempt.job, attempt.number, fraction)
        self.store.apply(attempt.job, event, attempt=attempt.number, reason=reason, now_s=time.time())

    def _drop(self, start: AttemptStart, reason: str, *, broke: str = "") -> None:
        """Release the workers of an attempt, and shut down its driver."""
        self._execute(start, start.stop(reason))
        self._shut_down_driver(start.attempt, broke=broke)

    def _shut_down_driver(self, attempt: Attempt, *, broke: str = "") -> None:
        self._starts.pop(attempt.job, None)
        lead = next(iter(self.store.job(attempt.job).workers), "") if attempt.number else ""
        self._shutdowns[attempt.job] = DriverShutdown(attempt, broke, lead)
        self._wake_event.set()

    def _execute(self, start: AttemptStart, actions: list[CoordinatorAction]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self.connections.send(action.worker, action.message)
            elif isinstance(action, RecordCommit):
                job, number = start.attempt.job, start.attempt.number
                if self.store.apply(job, Event.COMMITTED, attempt=number, now_s=time.time()) is None:
                    self._drop(start, "it was cancelled")
                else:
                    self._execute(start, start.commit_recorded(time.monotonic()))
            elif isinstance(action, AttemptEnded):
                self._attempt_ended(start, action)

    def _attempt_ended(self, start: AttemptStart, ended: AttemptEnded) -> None:
        self.connections.silent.update(ended.unanswered)
        if ended.event is Event.BROKE:
            self._shut_down_driver(start.attempt, broke=ended.reason)
            return
        self._starts.pop(start.attempt.job, None)
        self.store.apply(
            start.attempt.job, ended.event, attempt=start.attempt.number, reason=ended.reason, now_s=time.time()
        )

    def _schedule(self) -> None:
        """Start the jobs that the queue selects."""
        waiting = [job for job in self.store.jobs((State.QUEUED,)) if job.id not in self._shutdowns]
        if not waiting:
            self.wait_reasons = {}
            return
        active, now_s = self._active_jobs(), time.time()
        busy = {name for job in active for name in job.workers}
        free = self.connections.free(busy)
        dependencies = {other: self.store.job(other) for job in waiting for other in job.submission.after}
        usage = self.store.usage(now_s - self._queue_settings.usage_window_s)
        decision = schedule(
            waiting, active, dependencies, usage,
            free=len(free), total=self.options.workers, now_s=now_s, settings=self._queue_settings,
        )  # fmt: skip
        self.wait_reasons = decision.waits
        for job, reason in decision.fail:
            self.store.apply(job.id, Event.FAILED, attempt=job.attempt, reason=reason, now_s=now_s)
        for job in decision.start:
            self._start_attempt(job, free[: job.submission.workers])
            free = free[job.submission.workers :]

    def _start_attempt(self, waiting: Job, names: list[str]) -> None:
        job = self.store.apply(
            waiting.id, Event.PICKED, attempt=waiting.attempt, workers=tuple(names), now_s=time.time()
        )
        if job is None:
            return
        submission = msgspec.to_builtins(job.submission)
        assignments = {name: {"submission": submission, "lead": name == names[0]} for name in names}
        requirements = Requirements(job.submission.versions, job.submission.requires)
        size = sum(file.size for file in job.submission.manifest.values())  # the lead copies and hashes them
        limits = replace(self._limits, prepare_s=self._limits.prepare_s + size / _PREPARED_BYTES_PER_S)
        start = AttemptStart(Attempt(job.id, job.attempt), assignments, requirements, limits, time.monotonic())
        self._starts[job.id] = start
        self._execute(start, start.tick(time.monotonic()))

    def _active_jobs(self) -> list[Job]:
        return self.store.jobs((State.STARTING, State.RUNNING))

    def worker_message(self, name: str, message: ToCoordinator) -> None:
        """Handle a message of a worker about an attempt."""
        if start := self._starts.get(message.attempt.job):
            self._execute(start, start.receive(name, message, time.monotonic()))

    def worker_connected(self, hello: Hello) -> None:
        """Receive the lease of a worker, and release the worker if its attempt is over."""
        held = hello.attempt
        for start in list(self._starts.values()):
            if start.attempt != held:
                self._execute(start, start.worker_lost(hello.name, "its process was killed"))
        known = self._starts.get(held.job) if held is not None else None
        if held is not None and (known is None or known.attempt != held):
            self.connections.send(hello.name, Release(held, "it is over"))
        self._wake_event.set()

    def worker_disconnected(self, name: str) -> None:
        """Notify all starts that the process of a worker has ended."""
        for start in list(self._starts.values()):
            self._execute(start, start.worker_lost(name, "its process was killed"))
        self._wake_event.set()

    def event_failed(self, error: Exception) -> None:
        """Raise the error in the next step of the daemon's loop, in the loop's thread."""
        self._failure = self._failure or error
        self._wake_event.set()
