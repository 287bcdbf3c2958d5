"""The workers of a coordinator: who is there, what each of them has, and what their words mean for the jobs."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from chimera.core.errors import RunError
from chimera.engines.http import wire
from chimera.inference.coordinator.worker_handle import SILENT_S, Seat
from chimera.inference.journal import records
from chimera.inference.journal.journal import Fenced
from chimera.inference.pool.pool import Pool
from chimera.inference.scheduling.job import Batch
from chimera.inference.scheduling.scheduler import BATCH_S
from chimera.inference.worker.protocol import Assignment, Collected, Finished, Place, WorkerState
from chimera.web.logs import status

if TYPE_CHECKING:
    from chimera.inference.coordinator.coordinator import Coordinator

_AHEAD_S = 0.1  # a worker gets its next batch so long before it should be done with the last
_BACK_S = 1.0  # after so long a lost worker that has not left is tried again


class Roster:
    """A seat for each worker. Everything here is called by the brain of the coordinator, but for `_post` and `_assignment`.

    Parameters
    ----------
    desk : the coordinator, which takes notes of what happens.
    pool : where the workers are.

    Attributes
    ----------
    seats : by the name of the worker.
    """

    def __init__(self, desk: Coordinator, pool: Pool) -> None:
        self.seats: dict[str, Seat] = {}
        self._desk, self._scheduler, self._pool = desk, desk.scheduler, pool

    def close(self) -> None:
        """Let go of all workers; they live on."""
        for seat in self.seats.values():
            seat.close()

    def dispatch(self) -> None:
        """Give work to whoever is free, or soon will be."""
        now_s = self._desk.now_s()
        living = [seat for seat in self.seats.values() if seat.alive]
        if self._scheduler.any_returned():
            self._take_over(living, now_s)
        wanted = self._scheduler.waiting_models()
        # Of those that are free, first whoever need not load a model.
        for seat in sorted(living, key=lambda seat: (len(seat.has), wanted.isdisjoint(seat.loaded))):
            if self._free_in_s(seat, now_s) >= _AHEAD_S:
                continue
            chosen = self._scheduler.next_for(seat.name, seat.loaded, len(living), now_s)
            if chosen is None:
                return
            self._give(seat, chosen)

    def _take_over(self, living: list[Seat], now_s: float) -> None:
        """Give what lost workers had to those that are free the soonest, though they may have something to do yet."""
        soon = [(free_s, seat) for seat in living if (free_s := self._free_in_s(seat, now_s)) <= BATCH_S]
        for _, seat in sorted(soon, key=lambda pair: pair[0]):
            batch = self._scheduler.again_for(seat.name, seat.loaded, now_s)
            if batch is not None:
                self._give(seat, batch)

    def _give(self, seat: Seat, given: records.Dispatched) -> None:
        self._desk.note(given)
        self._desk.store(given.job).compose(Batch(given.batch, given.first, given.count))
        seat.has[given.job, given.batch] = given.at_s
        self._desk.afterwards(partial(seat.send, (given.job, given.batch)))

    def _free_in_s(self, seat: Seat, now_s: float) -> float:
        """Return in how many seconds it should have nothing to do; infinite if that is not known, or it has enough."""
        if not seat.has:
            return 0.0
        if len(seat.has) > 1 or seat.state == "loading":
            return math.inf
        ((job, number),) = seat.has
        held = self._scheduler.jobs.get(job)
        run = held.running.get(number) if held else None
        estimate_s = held.estimate_s(run.batch.count) if held and run else None
        if estimate_s is None:
            return math.inf  # one that nobody wants any more, too: it still computes it
        return max(seat.has[job, number] + estimate_s - now_s, 0.0)

    def look(self) -> None:
        """Find workers that have come, come back, or left."""
        there = self._pool.addresses()
        for seat in self.seats.values():
            silent_s = self._pool.silent_s(seat.name)
            if seat.state == "joining" and silent_s > SILENT_S:  # it hung before this coordinator came
                self._silent(seat, f"no word for {silent_s:.1f} s")
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
                name, address, epoch=self._desk.lease.epoch, owner=self._desk.lease.owner,
                links=self._pool.link, post=self._post, body=self._assignment,
            )  # fmt: skip
        for name in self._scheduler.busy() - self.seats.keys():  # it was there for the coordinator before this one
            self._return(name, "it is not there any more", None)

    def _post(self, seat: Seat, what: str, more: Any) -> None:
        self._desk.happens(getattr(self, f"_{what}"), seat, more)

    def _adopted(self, seat: Seat, told: WorkerState) -> None:
        """Compare what a worker has with what it should have."""
        if self.seats.get(seat.name) is not seat:
            return
        now_s = self._desk.now_s()
        before = seat.has
        computing = [told.computing] if told.computing else []
        seat.has = {place: before.get(place, now_s) for place in (*told.kept, *computing, *told.queued)}
        seat.sent = {*computing, *told.queued}
        should = {(job.id, run.batch.number) for job, run in self._scheduler.running_on(seat.name)}
        for job, number in should - seat.has.keys():
            self._desk.note(records.Returned(job, number, seat.name, "the worker does not have it", False, now_s))
        for job, number in seat.has.keys() - should:
            batch = self._scheduler.wanted(job, number)
            if batch is not None and number not in self._scheduler.job(job).running:  # it need not begin anew elsewhere
                self._desk.note(records.Dispatched(job, number, batch.first, batch.count, seat.name, now_s))
        seat.take(told)

    def _collected(self, seat: Seat, told: Collected) -> None:
        if self.seats.get(seat.name) is not seat:
            return
        for result in told.results:
            self._commit(result, seat.name)
            if result.place in seat.has:
                del seat.has[result.place]
                seat.has = dict.fromkeys(seat.has, self._desk.now_s())  # the next one begins
            self._desk.afterwards(partial(seat.acknowledge, result.place))
        seat.take(told.state)

    def _commit(self, result: Finished, worker: str) -> None:
        batch = self._scheduler.wanted(*result.place)
        if batch is not None:
            self._desk.note(records.Committed(*result.place, worker, result.seconds, result.errors, self._desk.now_s()))
            self._desk.store(result.job).deliver(batch, result.results)

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
        had = {(held.id, run.batch.number) for held, run in self._scheduler.running_on(seat.name)}
        if self.seats.get(seat.name) is seat and (job, number) in had:
            self._desk.note(records.Returned(job, number, seat.name, why, False, self._desk.now_s()))

    def _fenced(self, seat: Seat, why: str) -> None:
        raise Fenced(f"{seat.name}: {why}")

    def _lose(self, seat: Seat, why: str, *, died: bool) -> None:
        """Let what a worker had be dispatched again."""
        if seat.state != "joining" or seat.has:
            status().warning("%s is %s: %s", seat.name, "lost" if died else "hung", why)
        self._return(seat.name, why, seat.culprit() if died else None)
        seat.has.clear()

    def _return(self, worker: str, why: str, culprit: Place | None) -> None:
        for record in self._scheduler.lost(worker, why, culprit=culprit, now_s=self._desk.now_s()):
            batch = self._scheduler.wanted(record.job, record.batch)
            if isinstance(record, records.Poisoned) and batch is not None:
                self._desk.store(record.job).deliver(batch, wire.pack([{"error": record.why}] * batch.count))
                status().error("job %s, batch %d is set aside: %s", record.job, record.batch, record.why)
            self._desk.note(record)

    def _assignment(self, place: Place) -> Assignment:
        """Return what a worker needs for a batch; in the thread of its sender."""
        job, number = place
        held = self._scheduler.job(job)
        batch = self._scheduler.wanted(job, number)
        if batch is None:
            raise RunError("nobody wants it any more")
        return Assignment(job, number, held.model, self._desk.store(job).queries(batch))
