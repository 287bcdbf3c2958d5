"""Worker process of a cluster: it runs one attempt at a time, and keeps its lease while the driver of the attempt runs.

A worker does not need the daemon while an attempt runs: if the daemon exits, the worker connects to the next one. The first
worker of an attempt, its lead, forks the driver and stops it.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import time
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from chimera.core.errors import ChimeraError, DataError
from chimera.jobs.cluster.connection import Connection, Hello, connection_to_daemon
from chimera.jobs.cluster.folder import ClusterFolder, JobFolder
from chimera.jobs.driver import driver
from chimera.jobs.files.bundle import EXPERIMENT
from chimera.jobs.files.content_store import ContentStore, hash_text, verify
from chimera.jobs.scheduling.messages import (
    BeginAttempt,
    CheckRequirements,
    EndAttempt,
    Limits,
    ReceiveFiles,
    ToWorker,
)
from chimera.jobs.scheduling.requirements import unmet
from chimera.jobs.store.records import Submission
from chimera.jobs.worker.lease import LeaseState, WorkerAction, WorkerLease

_POLL_S = 0.1


class Worker:
    """One worker process.

    Parameters
    ----------
    folder : folder of the cluster, which is the working folder of this process.
    name : name of the worker.
    parent_pipe : descriptor that becomes readable when the supervisor exits; then the worker exits, too.
    limits : time limits of a start.
    ray : address of the Ray cluster that runs the attempts of this lead; empty for none.
    """

    def __init__(self, folder: ClusterFolder, name: str, parent_pipe: int, limits: Limits, ray: str = "") -> None:
        self._folder, self._name, self._parent_pipe, self._ray = folder, name, parent_pipe, ray
        self._lease = WorkerLease(limits)
        self._daemon: Connection[ToWorker] | None = None
        self._assignment: Mapping[str, Any] = {}
        self._driver = 0  # process of the driver, if this worker is the lead of an attempt
        self._stopped = False
        self._wake, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Work until SIGTERM or the end of the cluster."""
        while not self._stopped:
            if self._daemon is None:
                self._connect()
            connections: list[Any] = [] if self._daemon is None else [self._daemon]
            ready, _, _ = select.select([*connections, self._parent_pipe, self._wake], [], [], _POLL_S)
            if self._parent_pipe in ready:
                return  # the driver continues
            if self._wake in ready:
                os.read(self._wake, 4096)
            if connections and connections[0] in ready:
                self._receive(connections[0])
            self._reap()
            self._update_lease()
        self._end_driver()

    def _stop(self, *_: object) -> None:
        self._stopped = True

    def _connect(self) -> None:
        own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            own.connect(self._folder.worker_socket.name)
        except OSError:  # no daemon: `serve` tries again
            own.close()
            return
        self._daemon = connection_to_daemon(own)
        self._send(Hello(self._name, socket.gethostname(), os.getpid(), self._lease.attempt))

    def _receive(self, daemon: Connection[ToWorker]) -> None:
        try:
            for message in daemon.receive():
                self._execute(self._lease.receive(message, time.monotonic()))
        except EOFError:
            self._disconnect()

    def _disconnect(self) -> None:
        if self._daemon is not None:
            self._daemon.close()
            self._daemon = None

    def _send(self, message: Any) -> None:
        with contextlib.suppress(OSError):
            if self._daemon is not None:
                self._daemon.send(message)

    def _update_lease(self) -> None:
        """Renew the lease while the driver of a started attempt runs; end it if it has expired."""
        attempt, now_s = self._lease.attempt, time.monotonic()
        if attempt is not None and self._lease.state is LeaseState.STARTED and self._job().driver_pid() is not None:
            self._execute(self._lease.heartbeat(attempt, now_s))
        self._execute(self._lease.tick(now_s))

    def _execute(self, actions: Iterable[WorkerAction]) -> None:
        for action in actions:
            if isinstance(action, CheckRequirements):
                self._check_requirements(action)
            elif isinstance(action, ReceiveFiles):
                self._receive_files(action)
            elif isinstance(action, BeginAttempt):
                if self._assignment["lead"]:
                    job, submission = self._folder.job(action.attempt.job), _submission(self._assignment)
                    self._driver = driver.start(job, action.attempt.number, submission, self._ray) or 0
            elif isinstance(action, EndAttempt):
                self._end_driver()
            else:
                self._send(action)

    def _check_requirements(self, action: CheckRequirements) -> None:
        reason = unmet(action.requirements)
        self._execute(self._lease.completed(action.attempt, time.monotonic(), reason=reason, permanent=bool(reason)))

    def _receive_files(self, action: ReceiveFiles) -> None:
        self._assignment, reason, permanent = action.assignment, "", False
        job = self._folder.job(action.attempt.job)
        if job.driver_pid() is not None:
            reason = "its last attempt has not ended yet"
        else:
            try:
                self._prepare_folder(job, _submission(action.assignment), lead=action.assignment["lead"])
            except ChimeraError as error:
                reason, permanent = str(error), True
            except OSError as error:
                reason = f"it cannot receive the job's files: {error}"
        self._execute(self._lease.completed(action.attempt, time.monotonic(), reason=reason, permanent=permanent))

    def _prepare_folder(self, job: JobFolder, submission: Submission, *, lead: bool) -> None:
        """Check that all files are uploaded; the lead also creates the job's folder, or restores the submitted files in it."""
        contents, manifest = ContentStore(self._folder.files), submission.manifest
        if missing := contents.missing(manifest):
            raise DataError(f"a file of the job was not uploaded: its content {missing[0].sha256} is missing")
        if lead:
            texts = {EXPERIMENT: submission.experiment} if submission.experiment else {}
            expected = {**manifest, **{path: hash_text(text) for path, text in texts.items()}}
            if job.code.exists():
                if not verify(expected, job.code):
                    return
                shutil.rmtree(job.code)  # an earlier attempt changed its own files
            contents.create_folder(manifest, job.code, texts)
            if wrong := verify(expected, job.code):
                raise DataError(wrong)

    def _job(self) -> JobFolder:
        assert self._lease.attempt is not None
        return self._folder.job(self._lease.attempt.job)

    def _end_driver(self) -> None:
        if self._driver:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._driver, signal.SIGINT)
            deadline_s = time.monotonic() + driver.STOP_S
            while self._driver and time.monotonic() < deadline_s:
                time.sleep(0.01)
                self._reap()
        if self._driver:
            os.kill(self._driver, signal.SIGKILL)
            os.waitpid(self._driver, 0)
            self._driver = 0

    def _reap(self) -> None:
        if self._driver and os.waitpid(self._driver, os.WNOHANG)[0]:
            self._driver = 0


def _submission(assignment: Mapping[str, Any]) -> Submission:
    return msgspec.convert(assignment["submission"], Submission)


def run(folder: ClusterFolder, name: str, parent_pipe: int, ray: str = "") -> None:
    """Run a worker until SIGTERM or the end of the cluster."""
    Worker(folder, name, parent_pipe, Limits(), ray).serve()
