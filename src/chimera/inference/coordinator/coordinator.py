"""The coordinator: it turns what happens into records, writes them, and only then acts."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from chimera.core.errors import UnavailableError
from chimera.inference.coordinator.deletion import Forgetting
from chimera.inference.coordinator.job_store import JournalStore, Store
from chimera.inference.coordinator.request_queue import Inbox
from chimera.inference.coordinator.worker_handle import Seat
from chimera.inference.coordinator.workers import Roster
from chimera.inference.journal import records
from chimera.inference.journal.journal import Fenced, Journal, Lease, Output
from chimera.inference.policies.policy import Policy
from chimera.inference.pool.pool import Pool
from chimera.inference.scheduling.scheduler import Scheduler
from chimera.web.logs import status

T = TypeVar("T")

LEASE_S = 0.6
"""For how long a coordinator may write without having said that it lives."""
_RENEW_S = 0.15
_TICK_S = 0.02  # while queries wait: somebody may soon be free


class NotCoordinator(UnavailableError):  # noqa: N818 - it says what is the matter
    """Who was asked is not, or no more, the coordinator."""


class Coordinator:
    """Leads the cluster in one epoch, until another one takes over or it is stopped.

    One thread, the brain, owns all state: watchers of workers and whoever asks for something put events into its queue. It
    takes all events that lie there, writes their records at once, and then sends, acknowledges and answers.

    Parameters
    ----------
    journal : where this coordinator has the lease.
    lease : that lease.
    policy : which job a free worker serves.
    pool : where the workers are.
    keep_s : so long after its end a job is forgotten, with its results; None is never.
    code : accept models that run code of their own.
    clock : the time of day, in seconds.
    """

    def __init__(
        self,
        journal: Journal,
        lease: Lease,
        policy: Policy,
        *,
        pool: Pool,
        keep_s: float | None = None,
        code: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.code = code
        self.scheduler = Scheduler(policy, first_batch=lease.epoch << 32)
        self.lease, self.journal = lease, journal
        self._clock, self._keep_s = clock, keep_s
        self._roster, self._look_s = Roster(self, pool), pool.look_s
        self._forgetting = Forgetting(journal, lease.epoch)
        self._events: queue.SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]]] = queue.SimpleQueue()
        self._over = threading.Event()
        self._until_s = time.monotonic() + lease.left_s
        self._renewed = threading.Condition()
        self._why = "it was stopped"
        self._records: list[records.Record] = []
        self._outputs: list[Output] = []
        self._stores: dict[str, Store] = {}
        self._last_number = 0
        self._then: list[Callable[[], None]] = []
        self._answers: list[tuple[Future[Any], Any]] = []

    def lead(self) -> str:
        """Lead until another one has taken over, or `stop` is called; return why it ended."""
        # Before all else: a long journal may take longer to read than the lease lasts.
        threading.Thread(target=self._renew, name="chimera-lease", daemon=True).start()
        try:
            self._read()
            self._think()
        except Fenced as error:
            self._why = str(error)
        finally:
            self._over.set()
            self._roster.close()
            self._forgetting.close()
            self._refuse_waiting()
        status().info("epoch %d is over for %s: %s", self.lease.epoch, self.lease.owner, self._why)
        return self._why

    def stop(self) -> None:
        """Let `lead` return; from any thread."""
        self._over.set()
        self.happens(lambda: None)  # it may be waiting for something to happen

    def ask(self, function: Callable[[], T], timeout_s: float = 10.0) -> T:
        """Return what a function returns that the brain calls; from any other thread.

        What it has noted by `note` is written before this returns.

        Raises
        ------
        NotCoordinator : this is not the coordinator any more.
        """
        try:
            return self.asked(function).result(timeout_s)
        except TimeoutError as error:
            raise NotCoordinator("the coordinator has not answered: it is being replaced") from error

    def asked(self, function: Callable[[], T]) -> Future[T]:
        """Return what `ask` would, as a future that cannot be cancelled."""
        self.check_leads()
        answer: Future[T] = Future()
        answer.set_running_or_notify_cancel()
        self.happens(self._answer, function, answer)
        return answer

    def store(self, job: str) -> Store:
        """Return where the queries of a job lie and its results go; in the brain."""
        if job not in self._stores:
            open_job = self.scheduler.job(job).accepted.open
            self._stores[job] = Inbox() if open_job else JournalStore(job, self.journal, self._outputs)
        return self._stores[job]

    @property
    def seats(self) -> dict[str, Seat]:
        """The workers, by name."""
        return self._roster.seats

    def check_leads(self) -> None:
        """Raise `NotCoordinator` unless the lease lasts."""
        if self._over.is_set() or time.monotonic() > self._until_s:
            raise NotCoordinator("this process is not the coordinator any more")

    def now_s(self) -> float:
        """Return the time of day."""
        return self._clock()

    def new_number(self) -> str:
        """Return a number that no job has had; in the brain."""
        self._last_number += 1
        return str(self._last_number)

    def keep(self, job: str, first: int, body: bytes) -> None:
        """Write packed queries of a job that is still to be accepted; from the thread of whoever submits it.

        So the brain writes no more at once than records and results, however many queries a job has.

        Raises
        ------
        NotCoordinator : this is not the coordinator any more.
        """
        with self._renewed:  # many writes at a stretch would keep the lease from its own
            self._renewed.wait_for(lambda: self._until_s - time.monotonic() > LEASE_S / 2, LEASE_S)
        self.check_leads()
        try:
            self.journal.append(self.lease.epoch, [], inputs=[(job, first, body)])
        except Fenced as error:
            raise NotCoordinator(str(error)) from error

    def discard(self, job: str) -> None:
        """Let nothing be left of the queries of a job that is not accepted after all; from any thread."""
        self._forgetting.forget([job])

    def note(self, *noted: records.Record) -> None:
        """Let records have happened, in the brain; those that last are written before anybody acts upon them."""
        for record in noted:
            self.scheduler.apply(record)
            if self.scheduler.lasts(record):
                self._records.append(record)

    def afterwards(self, act: Callable[[], None]) -> None:
        """Do something in the brain once all that was noted is written."""
        self._then.append(act)

    def happens(self, function: Callable[..., None], *args: Any) -> None:
        """Let the brain call a function, from any thread."""
        self._events.put((function, args))

    def _read(self) -> None:
        began_s = time.monotonic()
        for record in self.journal.records():
            self.scheduler.apply(record)
        status().info(
            "epoch %d: %s leads, with %d jobs, after %.3f s", self.lease.epoch, self.lease.owner,
            len(self.scheduler.jobs), time.monotonic() - began_s,
        )  # fmt: skip

        # Who led before may not have come to the end of forgetting, or of a submission: nobody will complete that.
        given = self.journal.given()
        self._last_number = max(map(int, (*self.scheduler.jobs, *self.scheduler.dropped, *given)), default=0)
        self._forgetting.forget({*self.scheduler.dropped, *given} - {*self.scheduler.jobs})

    def _think(self) -> None:
        looked_s = 0.0
        while not self._over.is_set():
            look_in_s = max(looked_s + self._look_s - time.monotonic(), 0.0)
            events = self._taken(min(look_in_s, _TICK_S) if self.scheduler.waiting_models() else look_in_s)
            if time.monotonic() - looked_s >= self._look_s:
                self._roster.look()
                self._drop_old()
                looked_s = time.monotonic()
            for function, args in events:
                function(*args)
            self._roster.dispatch()
            self._write()

    def _drop_old(self) -> None:
        old = [] if self._keep_s is None else self.scheduler.outdated(self.now_s() - self._keep_s)
        for job in old:
            self.note(records.Dropped(job, self.now_s()))
            self._stores.pop(job, None)
        if old:
            self.afterwards(partial(self._forgetting.forget, old))

    def _taken(self, wait_s: float) -> list[tuple[Callable[..., None], tuple[Any, ...]]]:
        events = []
        try:
            events.append(self._events.get(timeout=wait_s))
            while True:
                events.append(self._events.get_nowait())
        except queue.Empty:
            return events

    def _write(self) -> None:
        if self._records or self._outputs:
            self.journal.append(self.lease.epoch, self._records, outputs=self._outputs)
            self._records.clear()
            self._outputs.clear()
        then, self._then = self._then, []
        for act in then:
            act()
        answers, self._answers = self._answers, []
        for answer, result in answers:
            answer.set_result(result)

    def _answer(self, function: Callable[[], T], answer: Future[T]) -> None:
        try:
            result = function()
        except Exception as error:  # it belongs to whoever asked
            answer.set_exception(error)
        else:
            self._answers.append((answer, result))

    def _refuse_waiting(self) -> None:
        refusal = NotCoordinator("this process is not the coordinator any more")
        for answer, _ in self._answers:
            answer.set_exception(refusal)
        for store in self._stores.values():
            store.refuse(refusal)
        while True:
            try:
                function, args = self._events.get_nowait()
            except queue.Empty:
                return
            if function == self._answer:
                args[1].set_exception(refusal)

    def _renew(self) -> None:
        while not self._over.wait(_RENEW_S):
            asked_s = time.monotonic()
            try:
                self.journal.renew(self.lease.epoch, LEASE_S)
            except Fenced as error:
                self._why = str(error)
                self.stop()
            else:
                with self._renewed:
                    self._until_s = asked_s + LEASE_S
                    self._renewed.notify_all()
