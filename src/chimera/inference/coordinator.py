"""The coordinator: it turns what happens into records, writes them, and only then acts."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from chimera.core.errors import RunError, UnavailableError
from chimera.engines.http import wire
from chimera.inference import records
from chimera.inference.inbox import Inbox
from chimera.inference.job import Batch
from chimera.inference.journal.journal import Fenced, Journal, Lease, Output
from chimera.inference.policies.policy import Policy
from chimera.inference.pool.link import Assignment, Collected, Finished, Place, WorkerState
from chimera.inference.pool.pool import Pool
from chimera.inference.scheduler import Scheduler
from chimera.inference.seat import Seat
from chimera.inference.store import JournalStore, Store
from chimera.web.logs import status

T = TypeVar("T")

LEASE_S = 0.6
"""For how long a coordinator may write without having said that it lives."""
_RENEW_S = 0.15
_TICK_S = 0.02
_AHEAD_S = 0.1  # a worker gets its next batch so long before it should be done with the last
_LOOK_S = 0.1  # between two looks at which workers there are
_BACK_S = 1.0  # after so long a lost worker that has not left is tried again


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
    clock : the time of day, in seconds.
    """

    def __init__(
        self,
        journal: Journal,
        lease: Lease,
        policy: Policy,
        *,
        pool: Pool,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.scheduler = Scheduler(policy, first_batch=lease.epoch << 32)
        self.seats: dict[str, Seat] = {}
        self.lease, self.journal = lease, journal
        self._pool, self._clock = pool, clock
        self._events: queue.SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]]] = queue.SimpleQueue()
        self._over = threading.Event()
        self._until_s = time.monotonic() + lease.left_s
        self._why = "it was stopped"
        self._records: list[records.Record] = []
        self._outputs: list[Output] = []
        self._stores: dict[str, Store] = {}
        self._inputs: list[tuple[str, int, bytes]] = []
        self._then: list[Callable[[], None]] = []
        self._answers: list[tuple[Future[Any], Any]] = []

    def lead(self) -> str:
        """Lead until another one has taken over, or `stop` is called; return why it ended."""
        began_s = time.monotonic()
        for record in self.journal.records():
            self.scheduler.apply(record)
        status().info(
            "epoch %d: %s leads, with %d jobs, after %.3f s", self.lease.epoch, self.lease.owner,
            len(self.scheduler.jobs), time.monotonic() - began_s,
        )  # fmt: skip
        renewing = threading.Thread(target=self._renew, name="chimera-lease", daemon=True)
        renewing.start()
        try:
            self._think()
        except Fenced as error:
            self._why = str(error)
        finally:
            self._over.set()
            for seat in self.seats.values():
                seat.close()
            self._refuse_waiting()
        status().info("epoch %d is over for %s: %s", self.lease.epoch, self.lease.owner, self._why)
        return self._why

    def stop(self) -> None:
        """Let `lead` return; from any thread."""
        self._over.set()

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
        self._events.put((self._answer, (function, answer)))
        return answer

    def store(self, job: str) -> Store:
        """Return where the queries of a job lie and its results go; in the brain."""
        if job not in self._stores:
            open_job = self.scheduler.job(job).accepted.open
            self._stores[job] = Inbox() if open_job else JournalStore(job, self.journal, self._outputs)
        return self._stores[job]

    def check_leads(self) -> None:
        """Raise `NotCoordinator` unless the lease lasts."""
        if self._over.is_set() or time.monotonic() > self._until_s:
            raise NotCoordinator("this process is not the coordinator any more")

    def now_s(self) -> float:
        """Return the time of day."""
        return self._clock()

    def note(self, *noted: records.Record, inputs: Sequence[tuple[str, int, bytes]] = ()) -> None:
        """Let records have happened, in the brain; those that last are written before anybody acts upon them."""
        for record in noted:
            self.scheduler.apply(record)
            if self.scheduler.lasts(record):
                self._records.append(record)
        self._inputs += inputs

    def _think(self) -> None:
        looked_s = 0.0
        while not self._over.is_set():
            events = self._taken()
            if time.monotonic() - looked_s >= _LOOK_S:
                self._look()
                looked_s = time.monotonic()
            for function, args in events:
                function(*args)
            self._dispatch()
            self._write()

    def _taken(self) -> list[tuple[Callable[..., None], tuple[Any, ...]]]:
        events = []
        try:
            events.append(self._events.get(timeout=_TICK_S))
            while True:
                events.append(self._events.get_nowait())
        except queue.Empty:
            return events

    def _write(self) -> None:
        if self._records or self._outputs:
            self.journal.append(self.lease.epoch, self._records, outputs=self._outputs, inputs=self._inputs)
            for written in (self._records, self._outputs, self._inputs):
                written.clear()
        then, self._then = self._then, []
        for act in then:
            act()
        answers, self._answers = self._answers, []
        for answer, result in answers:
            answer.set_result(result)

    def _dispatch(self) -> None:
        now_s = self._clock()
        living = [seat for seat in self.seats.values() if seat.alive]
        wanted = self.scheduler.waiting_models()
        # Of those that are free, first whoever need not load a model.
        for seat in sorted(living, key=lambda seat: (len(seat.has), wanted.isdisjoint(seat.loaded))):
            if not self._has_room(seat, now_s):
                continue
            chosen = self.scheduler.next_for(seat.name, seat.loaded, len(living), now_s)
            if chosen is None:
                return
            self.note(chosen)
            self.store(chosen.job).compose(Batch(chosen.batch, chosen.first, chosen.count))
            seat.has[chosen.job, chosen.batch] = now_s
            self._then.append(partial(seat.send, (chosen.job, chosen.batch)))

    def _has_room(self, seat: Seat, now_s: float) -> bool:
        """Whether it has nothing to do, or soon will have."""
        if len(seat.has) != 1 or seat.state == "loading":
            return not seat.has
        ((job, number),) = seat.has
        held = self.scheduler.jobs.get(job)
        run = held.running.get(number) if held else None
        if held is None or run is None:
            return False  # it still computes what nobody wants any more
        estimate_s = held.estimate_s(run.batch.count)
        since_s = seat.has[job, number]
        return estimate_s is not None and now_s > since_s + estimate_s - _AHEAD_S

    def _look(self) -> None:
        """Find workers that have come, come back, or left."""
        there = self._pool.addresses()
        for seat in list(self.seats.values()):
            address = there.get(seat.name)
            if address == seat.address and (seat.state != "lost" or time.monotonic() < seat.seen_s + _BACK_S):
                continue
            if seat.state != "lost":
                self._lose(seat, "it has left" if address is None else "it has started anew", died=address is not None)
            seat.close()
            del self.seats[seat.name]
        for name in there.keys() - self.seats.keys():
            address = there[name]
            self.seats[name] = Seat(
                name, address, epoch=self.lease.epoch, owner=self.lease.owner,
                links=self._pool.link, post=self._post, body=self._assignment,
            )  # fmt: skip
        for name in self.scheduler.busy() - self.seats.keys():  # it was there for the coordinator before this one
            self._return(name, "it is not there any more", None)

    def _post(self, seat: Seat, what: str, more: Any) -> None:
        self._events.put((getattr(self, f"_{what}"), (seat, more)))

    def _adopted(self, seat: Seat, told: WorkerState) -> None:
        """Compare what a worker has with what it should have."""
        if self.seats.get(seat.name) is not seat:
            return
        now_s = self._clock()
        before = seat.has
        computing = [told.computing] if told.computing else []
        seat.has = {place: before.get(place, now_s) for place in (*told.kept, *computing, *told.queued)}
        seat.sent = {*computing, *told.queued}
        should = {(job.id, run.batch.number) for job, run in self.scheduler.running_on(seat.name)}
        for job, number in should - seat.has.keys():
            self.note(records.Returned(job, number, seat.name, "the worker does not have it", False, now_s))
        for job, number in seat.has.keys() - should:
            batch = self.scheduler.wanted(job, number)
            if batch is not None and number not in self.scheduler.job(job).running:  # it need not begin anew elsewhere
                self.note(records.Dispatched(job, number, batch.first, batch.count, seat.name, now_s))
        seat.take(told)

    def _collected(self, seat: Seat, told: Collected) -> None:
        if self.seats.get(seat.name) is not seat:
            return
        for result in told.results:
            self._commit(result, seat.name)
            if result.place in seat.has:
                del seat.has[result.place]
                seat.has = dict.fromkeys(seat.has, self._clock())  # the next one begins
            self._then.append(partial(seat.acknowledge, result.place))
        seat.take(told.state)

    def _commit(self, result: Finished, worker: str) -> None:
        batch = self.scheduler.wanted(*result.place)
        if batch is not None:
            self.note(records.Committed(*result.place, worker, result.seconds, result.errors, self._clock()))
            self.store(result.job).deliver(batch, result.results)

    def _silent(self, seat: Seat, why: str) -> None:
        if self.seats.get(seat.name) is seat:
            self._lose(seat, why, died=False)
            seat.state = "hung" if seat.told else "joining"

    def _gone(self, seat: Seat, why: str) -> None:
        if self.seats.get(seat.name) is seat:
            self._lose(seat, why, died=True)
            seat.state = "lost"

    def _unsent(self, seat: Seat, more: tuple[Place, str]) -> None:
        (job, number), why = more
        seat.has.pop((job, number), None)
        had = {(held.id, run.batch.number) for held, run in self.scheduler.running_on(seat.name)}
        if self.seats.get(seat.name) is seat and (job, number) in had:
            self.note(records.Returned(job, number, seat.name, why, False, self._clock()))

    def _fenced(self, seat: Seat, why: str) -> None:
        raise Fenced(f"{seat.name}: {why}")

    def _lose(self, seat: Seat, why: str, *, died: bool) -> None:
        """Let what a worker had be dispatched again."""
        if seat.state != "joining" or seat.has:
            status().warning("%s is %s: %s", seat.name, "lost" if died else "hung", why)
        self._return(seat.name, why, seat.culprit() if died else None)
        seat.has.clear()

    def _return(self, worker: str, why: str, culprit: Place | None) -> None:
        for record in self.scheduler.lost(worker, why, culprit=culprit, now_s=self._clock()):
            batch = self.scheduler.wanted(record.job, record.batch)
            if isinstance(record, records.Poisoned) and batch is not None:
                self.store(record.job).deliver(batch, wire.pack([{"error": record.why}] * batch.count))
                status().error("job %s, batch %d is set aside: %s", record.job, record.batch, record.why)
            self.note(record)

    def _assignment(self, place: Place) -> Assignment:
        """Return what a worker needs for a batch; in the thread of its sender."""
        job, number = place
        held = self.scheduler.job(job)
        batch = self.scheduler.wanted(job, number)
        if batch is None:
            raise RunError("nobody wants it any more")
        return Assignment(job, number, held.model, self._stores[job].queries(batch))

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
                self._over.set()
            else:
                self._until_s = asked_s + LEASE_S
