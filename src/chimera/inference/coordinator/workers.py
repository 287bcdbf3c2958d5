"""The workers of a coordinator: it polls the pool, dispatches batches, and handles the events of each worker."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from chimera.core.errors import RunError, UnavailableError
from chimera.inference.coordinator.log import log_loads
from chimera.inference.coordinator.outcomes import Outcomes
from chimera.inference.coordinator.worker_handle import SILENT_S, WorkerHandle
from chimera.inference.journal import records
from chimera.inference.journal.journal import Fenced
from chimera.inference.pool.pool import Pool
from chimera.inference.scheduling.batch import Batch
from chimera.inference.scheduling.batch_size import MAX_BATCH_S
from chimera.inference.worker.protocol import Assignment, BatchId, Collected, WorkerState
from chimera.web.logs import status

if TYPE_CHECKING:
    from chimera.inference.coordinator.coordinator import Coordinator

_PREFETCH_S = 0.1  # a worker gets its next batch this long before the expected end of the last one
_RETRY_S = 1.0  # a lost worker that has not left is contacted again after this


class Workers:
    """The handles of all workers. The coordinator's main thread calls everything here, except `_post` and `_assignment`.

    Parameters
    ----------
    coordinator : the coordinator; it records what happens.
    pool : finds the workers.

    Attributes
    ----------
    handles : the handles, by name of the worker.
    losses : number of workers that have ``died`` or ``hung`` since this coordinator leads.
    """

    def __init__(self, coordinator: Coordinator, pool: Pool) -> None:
        self.handles: dict[str, WorkerHandle] = {}
        self.losses = {"died": 0, "hung": 0}
        self._coordinator, self._scheduler, self._pool = coordinator, coordinator.scheduler, pool
        self._outcomes = Outcomes(coordinator, pool, self.handles)
        self._began_s = time.monotonic()

    def close(self) -> None:
        """Disconnect from all workers. They continue to run."""
        for handle in self.handles.values():
            handle.close()

    def dispatch(self) -> None:
        """Dispatch batches to the workers that are free, or will be soon."""
        now_s = self._coordinator.now_s()
        available = [handle for handle in self.handles.values() if handle.available]
        self._scheduler.room.reserve({handle.name: handle.loaded for handle in available})
        if self._scheduler.any_returned():
            self._redispatch(available, now_s)
        wanted = self._scheduler.waiting_models()
        if not wanted:
            return

        def order(handle: WorkerHandle) -> tuple[int, bool, bool]:
            """Free workers come first; among them a reserved one, whose model waits for no other job, and a loaded one."""
            reserved = self._scheduler.room.is_reserved(handle.name)
            return len(handle.batches), not reserved, handle.loaded.isdisjoint(wanted)

        for handle in sorted(available, key=order):
            handle.prepare(wanted)
            if self._idle_in_s(handle, now_s) >= _PREFETCH_S:
                continue
            chosen = self._scheduler.next_for(handle.name, handle.loaded, len(available), now_s, handle.unloadable)
            if chosen is not None:  # another worker may be free for a job that this one is not for
                self._assign(handle, chosen)
        if self._scheduler.any_new():
            self._dispatch_new(available, now_s)

    def prepare(self, models: Mapping[str, dict[str, Any]]) -> None:
        """Prepare the available workers for models, given by key."""
        for handle in self.handles.values():
            if handle.available:
                handle.prepare(models)

    def _dispatch_new(self, available: list[WorkerHandle], now_s: float) -> None:
        """Dispatch the first batch of a new job to the worker that finishes its batch first.

        The worker may have its next batch already. It computes the new job first, which would otherwise wait for two batches.
        """
        ends = [(self._ends_in_s(each, now_s), each) for each in available if each.batches and each.state != "loading"]
        end_s, handle = min(ends, key=lambda pair: pair[0], default=(math.inf, None))
        if handle is None or end_s == math.inf or len(handle.batches) != 2:
            return
        chosen = self._scheduler.next_for(handle.name, handle.loaded, len(available), now_s, handle.unloadable)
        if chosen is not None and self._scheduler.job(chosen.job).first_s is None:
            self._assign(handle, chosen, ahead=True)

    def _redispatch(self, available: list[WorkerHandle], now_s: float) -> None:
        """Dispatch the batches of lost workers to the workers that become free first, even if these are still busy."""
        soon = [(idle_s, handle) for handle in available if (idle_s := self._idle_in_s(handle, now_s)) <= MAX_BATCH_S]
        for _, handle in sorted(soon, key=lambda pair: pair[0]):
            batch = self._scheduler.retry_for(handle.name, handle.loaded - handle.unloadable.keys(), now_s)
            if batch is not None:
                self._assign(handle, batch)

    def _assign(self, handle: WorkerHandle, dispatched: records.Dispatched, *, ahead: bool = False) -> None:
        store = self._coordinator.store(dispatched.job)
        if self._scheduler.unfinished_batch(dispatched.job, dispatched.batch) is None:  # else its queries are fixed
            batch = Batch(dispatched.batch, dispatched.first, dispatched.count)
            dispatched = msgspec.structs.replace(dispatched, count=store.fitting(batch))
        self._coordinator.record(dispatched)
        store.dispatched(Batch(dispatched.batch, dispatched.first, dispatched.count))
        if ahead:
            handle.insert((dispatched.job, dispatched.batch), dispatched.at_s)
        else:
            handle.ahead.discard((dispatched.job, dispatched.batch))  # it may have been returned
            handle.batches[dispatched.job, dispatched.batch] = dispatched.at_s
        self._coordinator.after_write(partial(handle.send, (dispatched.job, dispatched.batch)))

    def _idle_in_s(self, handle: WorkerHandle, now_s: float) -> float:
        """Return the expected seconds until a worker is idle; infinite if unknown, or if it has a next batch already."""
        if not handle.batches:
            return 0.0
        if len(handle.batches) > 1 or handle.state == "loading":
            return math.inf
        return self._ends_in_s(handle, now_s)

    def _ends_in_s(self, handle: WorkerHandle, now_s: float) -> float:
        """Return the expected seconds until the end of the batch that a worker computes; infinite if unknown."""
        job_number, number = next(iter(handle.batches))
        job = self._scheduler.jobs.get(job_number)
        run = job.running.get(number) if job else None
        estimate_s = job.estimate_s(run.batch.count) if job and run else None
        if estimate_s is None:
            return math.inf
        return max(handle.batches[job_number, number] + estimate_s - now_s, 0.0)

    def poll(self) -> None:
        """Detect workers that have joined, restarted or left."""
        addresses = self._pool.addresses()
        for handle in self.handles.values():
            silent_s, handle.warning = self._pool.silent_s(handle.name), self._pool.warning(handle.name)
            if handle.state == "joining" and silent_s > SILENT_S:  # it hung before this coordinator took over
                self._silent(handle, f"no heartbeat for {silent_s:.1f} s")
        for handle in list(self.handles.values()):
            address = addresses.get(handle.name)
            if address == handle.address and (handle.state != "lost" or time.monotonic() < handle.seen_s + _RETRY_S):
                continue
            if handle.state != "lost":
                reason = "it has left" if address is None else "it has restarted"
                self._lose(handle, reason, died=address is not None)
            handle.close()
            del self.handles[handle.name]
        for name in addresses.keys() - self.handles.keys():
            self.handles[name] = WorkerHandle(
                name, addresses[name], epoch=self._coordinator.lease.epoch, owner=self._coordinator.lease.owner,
                host=self._pool.host(name),
                link=self._pool.link, post=self._post, assignment=self._assignment,
                kill=partial(self._pool.kill, name, addresses[name]),
            )  # fmt: skip
        led_s = time.monotonic() - self._began_s
        for name in self._scheduler.busy() - self.handles.keys():  # it left before this coordinator took over
            if led_s >= self._pool.rejoin_s(name):
                self._outcomes.return_all(name, "it has left", None)

    def _post(self, handle: WorkerHandle, event: str, more: Any) -> None:
        self._coordinator.post(getattr(self, f"_{event}"), handle, more)

    def _adopted(self, handle: WorkerHandle, reported: WorkerState) -> None:
        """Compare the batches that a worker has with those that it should have."""
        if self.handles.get(handle.name) is not handle:
            return
        now_s = self._coordinator.now_s()
        before = handle.batches
        computing = [reported.computing] if reported.computing else []
        present = [
            each
            for each in (*reported.kept, *computing, *reported.queued)
            if self._outcomes.was_dispatched(handle, each)
        ]
        handle.batches = {batch_id: before.get(batch_id, now_s) for batch_id in present}
        handle.sent = {*computing, *reported.queued}
        expected = {(job.id, run.batch.number) for job, run in self._scheduler.running_on(handle.name)}
        for job, number in expected - handle.batches.keys():
            reason = "the worker does not have it"
            self._coordinator.record(records.Returned(job, number, handle.name, reason, False, now_s))
        for job, number in handle.batches.keys() - expected:
            batch = self._scheduler.unfinished_batch(job, number)
            if (
                batch is not None and number not in self._scheduler.job(job).running
            ):  # so that no other worker computes it
                self._coordinator.record(records.Dispatched(job, number, batch.first, batch.count, handle.name, now_s))
        if reported.without:
            status().warning(
                "%s on %s runs without modules of --preload: %s", handle.name, handle.host, reported.without
            )
        log_loads(handle, reported, self._scheduler)
        handle.update(reported)
        if handle.state in ("draining", "drained") and not reported.draining:
            handle.drain()  # the order was lost
        for job in {job for job, _ in handle.sent}:
            if job not in self._scheduler.jobs or self._scheduler.jobs[job].ended:
                handle.forget_job(job)  # it was cancelled when the worker could not be reached

    def _collected(self, handle: WorkerHandle, collected: Collected) -> None:
        if self.handles.get(handle.name) is not handle:
            return
        for piece in collected.pieces:
            known = self._scheduler.unfinished_batch(piece.job, piece.batch) is not None
            if known and self._outcomes.was_dispatched(handle, (piece.job, piece.batch)):
                self._coordinator.store(piece.job).take(piece)
        for result in collected.results:
            self._outcomes.take(handle, result)
            if result.batch_id in handle.batches:
                del handle.batches[result.batch_id]
                handle.batches = dict.fromkeys(handle.batches, self._coordinator.now_s())  # the next one begins
            self._coordinator.after_write(partial(handle.acknowledge, result.batch_id))
        log_loads(handle, collected.state, self._scheduler)
        if collected.state.silent:
            if handle.state != "hung":
                self._silent(handle, "its computing process is stopped")
        elif handle.state == "hung":
            self._adopted(handle, msgspec.structs.replace(collected.state, kept=[]))  # they have arrived already
        else:
            handle.update(collected.state)

    def _silent(self, handle: WorkerHandle, reason: str) -> None:
        if self.handles.get(handle.name) is handle:
            self._lose(handle, reason, died=False)
            handle.state = "hung" if handle.reported else "joining"

    def _disconnected(self, handle: WorkerHandle, reason: str) -> None:
        if self.handles.get(handle.name) is handle:
            self._lose(handle, reason, died=True)
            handle.state = "lost"

    def _restarting(self, handle: WorkerHandle, reason: str) -> None:
        if self.handles.get(handle.name) is handle:
            status().info("%s: %s", handle.name, reason)
            self._outcomes.return_all(handle.name, reason, None)
            handle.batches.clear()
            handle.state = "restarting"

    def _unsent(self, handle: WorkerHandle, more: tuple[BatchId, str]) -> None:
        (job, number), reason = more
        handle.batches.pop((job, number), None)
        running = {(each.id, run.batch.number) for each, run in self._scheduler.running_on(handle.name)}
        if self.handles.get(handle.name) is handle and (job, number) in running:
            now_s = self._coordinator.now_s()
            self._coordinator.record(records.Returned(job, number, handle.name, reason, False, now_s))
            pause_s = handle.pause()
            status().warning("%s took no batch, the next is sent in %g s: %s", handle.name, pause_s, reason)

    def _unreadable(self, handle: WorkerHandle, more: tuple[BatchId, str]) -> None:
        """End a job whose queries cannot be read as failed: another attempt would fail too."""
        (number, batch), reason = more
        handle.batches.pop((number, batch), None)
        job = self._scheduler.jobs.get(number)
        if job is not None and not job.ended:
            status().error("job %s has failed: %s", number, reason)
            self._coordinator.record(records.Cancelled(number, reason, self._coordinator.now_s()))
            self._coordinator.store(number).fail(UnavailableError(f"job {number} has failed: {reason}"))

    def _fenced(self, handle: WorkerHandle, reason: str) -> None:
        raise Fenced(f"{handle.name}: {reason}")

    def _lose(self, handle: WorkerHandle, reason: str, *, died: bool) -> None:
        """Return the batches of a lost worker to their jobs."""
        leaves = handle.reported is not None and handle.reported.draining and not handle.batches
        if not leaves and (handle.state != "joining" or handle.batches):
            self.losses["died" if died else "hung"] += 1
            status().warning("%s is %s: %s", handle.name, "lost" if died else "hung", reason)
        self._outcomes.return_all(handle.name, reason, handle.culprit() if died else None)
        handle.batches.clear()

    def _assignment(self, batch_id: BatchId) -> Assignment:
        """Return the assignment of a batch. The thread that sends it calls this."""
        job_number, number = batch_id
        job = self._scheduler.job(job_number)
        batch = self._scheduler.unfinished_batch(job_number, number)
        if batch is None:
            raise RunError("the batch is finished or cancelled")
        queries = self._coordinator.store(job_number).queries(batch)
        return Assignment(job_number, number, job.model, queries, job.limit_s(batch), job.limit_loads(batch))
