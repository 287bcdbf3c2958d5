"""A worker slot: a place for one job at a time, which it gives away in three phases and keeps while the job's driver lives.

It needs no daemon to keep it: when that dies it waits for the next one. The first slot of a job forks its driver, and ends it.
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
from chimera.jobs.cluster.connection import Connection, Hello, to_daemon
from chimera.jobs.cluster.folder import ClusterFolder, JobFolder
from chimera.jobs.driver import driver
from chimera.jobs.files.bundle import EXPERIMENT
from chimera.jobs.files.content_store import Contents, of_text, verify
from chimera.jobs.scheduling.messages import Begin, Check, End, Limits, ToSeat, Verify
from chimera.jobs.scheduling.requirements import unmet
from chimera.jobs.store.records import Submission
from chimera.jobs.worker.lease import Does, Place, Seat

_LOOK_S = 0.1


class Slot:
    """One slot.

    Parameters
    ----------
    folder : of the cluster; this process is in it.
    name : of the slot.
    lifeline : readable when the cluster has ended, and the slot ends with it.
    ray : the address of the Ray that is to run what this slot leads; empty for none.
    """

    def __init__(self, folder: ClusterFolder, name: str, lifeline: int, limits: Limits, ray: str = "") -> None:
        self._folder, self._name, self._lifeline, self._ray = folder, name, lifeline, ray
        self._seat = Seat(limits)
        self._daemon: Connection[ToSeat] | None = None
        self._order: Mapping[str, Any] = {}
        self._driver = 0  # of the job that this slot leads
        self._stopped = False
        self._wake, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Work until SIGTERM, or the end of the cluster."""
        while not self._stopped:
            if self._daemon is None:
                self._connect()
            own: list[Any] = [] if self._daemon is None else [self._daemon]
            ready, _, _ = select.select([*own, self._lifeline, self._wake], [], [], _LOOK_S)
            if self._lifeline in ready:
                return  # and the driver lives on
            if self._wake in ready:
                os.read(self._wake, 4096)
            if own and own[0] in ready:
                self._receive(own[0])
            self._reap()
            self._look()
        self._end_driver()

    def _stop(self, *_: object) -> None:
        self._stopped = True

    def _connect(self) -> None:
        own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            own.connect(self._folder.slots_socket.name)
        except OSError:  # no daemon: the next look tries again
            own.close()
            return
        self._daemon = to_daemon(own)
        self._send(Hello(self._name, socket.gethostname(), os.getpid(), self._seat.attempt))

    def _receive(self, daemon: Connection[ToSeat]) -> None:
        try:
            for message in daemon.receive():
                self._do(self._seat.take(message, time.monotonic()))
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

    def _look(self) -> None:
        """Let promises end, but those to a job whose driver lives."""
        attempt, now_s = self._seat.attempt, time.monotonic()
        if attempt is not None and self._seat.place is Place.BEGUN and self._job().driver() is not None:
            self._do(self._seat.alive(attempt, now_s))
        self._do(self._seat.tick(now_s))

    def _do(self, what: Iterable[Does]) -> None:
        for each in what:
            if isinstance(each, Check):
                self._check(each)
            elif isinstance(each, Verify):
                self._verify(each)
            elif isinstance(each, Begin):
                if self._order["lead"]:
                    job = self._folder.job(each.attempt.job)
                    self._driver = driver.start(job, each.attempt.number, _submission(self._order), self._ray) or 0
            elif isinstance(each, End):
                self._end_driver()
            else:
                self._send(each)

    def _check(self, asked: Check) -> None:
        why = unmet(asked.needs)
        self._do(self._seat.did(asked.attempt, time.monotonic(), why=why, lasting=bool(why)))

    def _verify(self, asked: Verify) -> None:
        self._order, why, lasting = asked.order, "", False
        job = self._folder.job(asked.attempt.job)
        if job.driver() is not None:
            why = "its last attempt has not ended yet"
        else:
            try:
                self._receive_files(job, _submission(asked.order), lead=asked.order["lead"])
            except ChimeraError as error:
                why, lasting = str(error), True
            except OSError as error:
                why = f"it cannot receive the job's files: {error}"
        self._do(self._seat.did(asked.attempt, time.monotonic(), why=why, lasting=lasting))

    def _receive_files(self, job: JobFolder, submission: Submission, *, lead: bool) -> None:
        """See that all files are here, and where this slot leads, that the job's folder is as it was submitted."""
        contents, manifest = Contents(self._folder.files), submission.manifest
        if missing := contents.missing(manifest):
            raise DataError(f"a file of the job was not uploaded: its content {missing[0].sha256} is not there")
        if lead:
            texts = {EXPERIMENT: submission.experiment} if submission.experiment else {}
            expected = {**manifest, **{path: of_text(text) for path, text in texts.items()}}
            if job.code.exists() and verify(expected, job.code):  # an attempt before has changed its own files
                shutil.rmtree(job.code)
            contents.unpack(manifest, job.code, texts)
            if wrong := verify(expected, job.code):
                raise DataError(wrong)

    def _job(self) -> JobFolder:
        assert self._seat.attempt is not None
        return self._folder.job(self._seat.attempt.job)

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


def _submission(order: Mapping[str, Any]) -> Submission:
    return msgspec.convert(order["submission"], Submission)


def run(folder: ClusterFolder, name: str, lifeline: int, ray: str = "") -> None:
    """Be a slot."""
    Slot(folder, name, lifeline, Limits(), ray).serve()
