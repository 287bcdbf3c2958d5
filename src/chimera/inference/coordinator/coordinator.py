"""The coordinator: it turns events into records, and writes them to the journal before it acts on them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from chimera.core.errors import UnavailableError
from chimera.inference.coordinator.calls import Calls
from chimera.inference.coordinator.clock import SteadyClock
from chimera.inference.coordinator.deletion import Deleter
from chimera.inference.coordinator.job_store import FileStore, JobStore, JournalStore
from chimera.inference.coordinator.log import log_end, log_record
from chimera.inference.coordinator.renewal import LeaseRenewal
from chimera.inference.coordinator.request_queue import RequestQueue
from chimera.inference.coordinator.submissions import Submissions
from chimera.inference.coordinator.worker_handle import WorkerHandle
from chimera.inference.coordinator.workers import Workers
from chimera.inference.journal import records
from chimera.inference.journal.journal import Fenced, Journal, Lease, Output
from chimera.inference.models.spec import key_of
from chimera.inference.policies.policy import Policy
from chimera.inference.pool.pool import Pool
from chimera.inference.scheduling.job import Job
from chimera.inference.scheduling.scheduler import Scheduler
from chimera.web.disk_guard import DiskGuard
from chimera.web.logs import status

T = TypeVar("T")

_TICK_S = 0.02  # while queries wait: a worker may soon be free


class NotCoordinator(UnavailableError):  # noqa: N818 - it states a fact
    """The called process is not, or is no longer, the coordinator."""


class Coordinator:
    """The coordinator of one epoch: it leads until another process takes over, or until it is stopped.

    One thread, the main thread, owns all state. Other threads queue calls for it, see `Calls`. The main thread runs all queued
    calls, writes their records in one transaction, and then sends batches, acknowledges results and answers callers.

    Parameters
    ----------
    journal : the journal; this coordinator has its lease.
    lease : that lease.
    policy : decides which job a free worker serves.
    fair_by : unit of the shares of jobs, ``queries`` or ``tokens``.
    pool : finds the workers.
    keep_s : seconds after its end until a job and its results are deleted; None: never.
    code : whether to accept models that run code of their own.
    shares_files : whether successors of this coordinator can read the same files.
    disk : refuses queries while the disk is nearly full; default: no guard.
    clock : returns the wall-clock time in seconds; default: `SteadyClock`.
    """

    def __init__(
        self,
        journal: Journal,
        lease: Lease,
        policy: Policy,
        *,
        pool: Pool,
        fair_by: str = "queries",
        keep_s: float | None = None,
        code: bool = True,
        disk: DiskGuard | None = None,
        shares_files: bool = True,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.code, self.reads_files = (
            code,
            code and shares_files,
        )  # a token must not open files where it can run no code
        self.scheduler = Scheduler(policy, fair_by=fair_by, first_batch=lease.epoch << 32)
        self.lease, self.journal = lease, journal
        self._clock, self._keep_s = clock or SteadyClock(), keep_s
        self._workers, self._poll_s = Workers(self, pool), pool.poll_s
        self._deleter, self.submissions = Deleter(journal, lease.epoch), Submissions(self)
        self._calls = Calls()
        self._ended = threading.Event()
        self._renewal = LeaseRenewal(journal, lease, self.stop)
        self._disk = disk
        self._records: list[records.Record] = []
        self._outputs: list[Output] = []
        self._stores: dict[str, JobStore] = {}
        self._last_number = 0

    def lead(self) -> str:
        """Lead until another process takes over, or until `stop`; return the reason of the end.

        Raises
        ------
        Exception : any error that ends this coordinator, in the renewal of the lease too. The process must exit then.
        """
        # The renewal starts first: reading a long journal may take longer than the lease lasts.
        self._renewal.start()
        reason = "it was stopped"
        try:
            self._recover()
            self._run()
        except Fenced as error:
            reason = str(error)
        finally:
            self._ended.set()
            self._workers.close()
            self._deleter.close()
            self._renewal.end()
            self._refuse_waiting()
        reason = self._renewal.check() or reason
        status().info("epoch %d is over for %s: %s", self.lease.epoch, self.lease.owner, reason)
        return reason

    def stop(self) -> None:
        """End `lead`. Any thread may call it."""
        self._ended.set()
        self.post(lambda: None)  # wake the main thread

    def call(self, function: Callable[[], T], timeout_s: float = 10.0) -> T:
        """Run a function in the main thread, and return its result. Any other thread may call it.

        The records of the function are written before this returns.

        Raises
        ------
        NotCoordinator : this process is no longer the coordinator.
        """
        try:
            return self.submit(function).result(timeout_s)
        except TimeoutError as error:
            raise NotCoordinator("the coordinator has not answered: it is being replaced") from error

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Do what `call` does, but return a future at once. The future cannot be cancelled."""
        self.check_leads()
        return self._calls.submit(function)

    def store(self, job: str) -> JobStore:
        """Return the store of a job's queries and results. Main thread only."""
        if job not in self._stores:
            accepted = self.scheduler.job(job).accepted
            stored = FileStore if accepted.files else JournalStore
            self._stores[job] = RequestQueue() if accepted.open else stored(accepted, self.journal, self._outputs)
        return self._stores[job]

    def prepare(self, model: dict[str, Any]) -> None:
        """Prepare the workers for the model of a job whose queries still arrive. Main thread only."""
        self._workers.prepare({key_of(model): model})

    @property
    def workers(self) -> dict[str, WorkerHandle]:
        """The workers, by name."""
        return self._workers.handles

    @property
    def losses(self) -> dict[str, int]:
        """The number of workers that have ``died`` or ``hung`` since this coordinator leads."""
        return self._workers.losses

    def check_leads(self) -> None:
        """Raise `NotCoordinator` unless this process has the lease."""
        if self._ended.is_set() or not self._renewal.lasts():
            raise NotCoordinator("this process is no longer the coordinator")

    def now_s(self) -> float:
        """Return the wall-clock time in seconds."""
        return self._clock()

    def new_number(self) -> str:
        """Return an unused job number. Main thread only."""
        self._last_number += 1
        return str(self._last_number)

    def store_queries(self, job: str, first: int, body: bytes) -> None:
        """Write packed queries of a job that is not accepted yet. The thread that submits the job calls it.

        So the main thread writes only records and results, for any number of queries.

        Raises
        ------
        NotCoordinator : this process is no longer the coordinator.
        NoSpaceError : the disk is full, or nearly full.
        """
        self.check_space()
        self._renewal.await_next()  # many writes in a row would delay the renewal of the lease
        self.check_leads()
        try:
            self.journal.append(self.lease.epoch, [], inputs=[(job, first, body)])
        except Fenced as error:
            raise NotCoordinator(str(error)) from error

    def check_space(self) -> None:
        """Check that the disk has room for new jobs, besides the results of accepted ones. Any thread may call it.

        Raises
        ------
        NoSpaceError : the disk is full, or nearly full.
        """
        if self._disk is not None:
            self._disk.check_submission()

    def discard_queries(self, job: str) -> None:
        """Delete the queries of a job that was not accepted. Any thread may call it."""
        self._deleter.delete([job])

    def record(self, *new: records.Record) -> None:
        """Apply records, and write the durable ones before any action that depends on them. Main thread only."""
        for record in new:
            active = self.scheduler.is_active(record.job)
            self.scheduler.apply(record)
            log_record(record)
            if self.scheduler.is_durable(record):
                self._records.append(record)
            if active and not self.scheduler.is_active(record.job):
                self._job_ended(self.scheduler.job(record.job))

    def after_write(self, action: Callable[[], None]) -> None:
        """Run an action in the main thread after the next write."""
        self._calls.after_write(action)

    def post(self, function: Callable[..., None], *args: Any) -> None:
        """Queue a call for the main thread. Any thread may call it."""
        self._calls.post(function, *args)

    def _recover(self) -> None:
        began_s = time.monotonic()
        dropped = set()
        for record in self.journal.records():
            self.scheduler.apply(record)
            if isinstance(record, records.Dropped):
                dropped.add(record.job)
        status().info(
            "epoch %d: %s leads, with %d jobs, after %.3f s", self.lease.epoch, self.lease.owner,
            len(self.scheduler.jobs), time.monotonic() - began_s,
        )  # fmt: skip

        # The last coordinator may have died during a deletion or a submission: delete the remains of both.
        stored, submitted = self.journal.jobs_with_queries(), {one.job for one in self.scheduler.submissions.values()}
        known = {*self.scheduler.jobs, *dropped, *submitted, *stored}
        self._last_number = max(map(int, known), default=0)
        self._deleter.delete({*dropped, *stored} - {*self.scheduler.jobs} - submitted)

    def _run(self) -> None:
        polled_s = 0.0
        while not self._ended.is_set():
            poll_in_s = max(polled_s + self._poll_s - time.monotonic(), 0.0)
            calls = self._calls.take(min(poll_in_s, _TICK_S) if self.scheduler.waiting_models() else poll_in_s)
            if time.monotonic() - polled_s >= self._poll_s:
                self._workers.poll()
                self._drop_expired()
                polled_s = time.monotonic()
            for function, args in calls:
                function(*args)
            self._workers.dispatch()
            self._write()

    def _drop_expired(self) -> None:
        expired = [] if self._keep_s is None else self.scheduler.expired_jobs(self.now_s() - self._keep_s)
        for job in expired:
            self.record(records.Dropped(job, self.now_s()))
            self._stores.pop(job, None)
        if expired:
            self.after_write(partial(self._deleter.delete, expired))
        self.submissions.drop_idle()

    def _job_ended(self, job: Job) -> None:
        log_end(job)
        if job.accepted.files and job.id in self._stores:  # its open file and the queries read last
            self._stores[job.id].fail(UnavailableError(f"job {job.id} has ended"))
        if job.ended != "done":  # its workers may have batches in the queue
            for handle in self.workers.values():
                handle.forget_job(job.id)

    def _write(self) -> None:
        if self._records or self._outputs:
            self.journal.append(self.lease.epoch, self._records, outputs=self._outputs)
            self._records.clear()
            self._outputs.clear()
        self._calls.written()

    def _refuse_waiting(self) -> None:
        refusal = NotCoordinator("this process is no longer the coordinator")
        self._calls.refuse(refusal)
        for store in self._stores.values():
            store.fail(refusal)
