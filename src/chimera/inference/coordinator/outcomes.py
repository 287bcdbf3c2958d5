"""The ends of batches: results, failures, and returns to their jobs. They are recorded and stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from chimera.engines.http import wire
from chimera.inference.coordinator.worker_handle import WorkerHandle
from chimera.inference.journal import records
from chimera.inference.pool.pool import Pool
from chimera.inference.worker.protocol import BatchId, Finished
from chimera.web.logs import status

if TYPE_CHECKING:
    from chimera.inference.coordinator.coordinator import Coordinator


class Outcomes:
    """Records the ends of batches. The coordinator's main thread calls all methods.

    Parameters
    ----------
    handles : the workers, by name.
    """

    def __init__(self, coordinator: Coordinator, pool: Pool, handles: Mapping[str, WorkerHandle]) -> None:
        self._coordinator, self._scheduler = coordinator, coordinator.scheduler
        self._pool, self._handles = pool, handles

    def was_dispatched(self, handle: WorkerHandle, batch_id: BatchId) -> bool:
        """Return whether a batch was dispatched to a worker; True for a worker that shares the coordinator's files."""
        job = self._scheduler.jobs.get(batch_id[0])
        given = job.given.get(batch_id[1], ()) if job is not None else ()
        return self._pool.shares_files(handle.name) or handle.name in given

    def take(self, handle: WorkerHandle, result: Finished) -> None:
        """Take over the end of a batch: its results, or the reason why there are none."""
        if not self.was_dispatched(handle, result.batch_id):
            return
        if result.failure:
            self._fail(result, handle.name)
        elif not (result.unloaded and self._declines(handle, result)):
            self._commit(result, handle.name)

    def return_all(self, worker: str, reason: str, culprit: BatchId | None) -> None:
        """Return the batches of a worker to their jobs.

        Parameters
        ----------
        culprit : the batch that may have killed the worker; None if unknown.
        """
        for record in self._scheduler.lost(worker, reason, culprit=culprit, now_s=self._coordinator.now_s()):
            self._take_back(record)

    def _commit(self, result: Finished, worker: str) -> None:
        batch = self._scheduler.unfinished_batch(*result.batch_id)
        if batch is not None and result.answers not in (None, batch.count):
            self._fail(msgspec.structs.replace(result, failure=f"{worker} sent {result.answers} results"), worker)
        elif batch is not None:
            now_s = self._coordinator.now_s()
            first_error = result.error if not self._scheduler.job(result.job).error else ""
            self._coordinator.record(
                records.Committed(
                    *result.batch_id, worker, result.seconds, result.errors, now_s, result.tokens, first_error
                )
            )
            self._coordinator.store(result.job).deliver(batch, result.results)

    def _declines(self, handle: WorkerHandle, result: Finished) -> bool:
        """Return whether other workers may load a model that a worker could not load; they get its batches then.

        A worker of another machine may lack files that others have. If no worker can load the model, its queries get errors.
        """
        job = self._scheduler.jobs.get(result.job)
        if job is None or self._pool.shares_files(handle.name):
            return False
        if job.key not in handle.unloadable:
            status().warning("%s gets no batches of job %s: %r", handle.name, job.id, result.error)
        handle.unloadable[job.key] = result.error
        if all(job.key in each.unloadable for each in self._handles.values()):
            for each in self._handles.values():
                del each.unloadable[job.key]
            return False
        now_s = self._coordinator.now_s()
        self._coordinator.record(records.Returned(*result.batch_id, handle.name, result.error, False, now_s))
        return True

    def _fail(self, result: Finished, worker: str) -> None:
        now_s, divisible = self._coordinator.now_s(), not result.loading
        record = self._scheduler.failed(worker, *result.batch_id, result.failure, divisible=divisible, now_s=now_s)
        if record is not None:
            self._take_back(record)

    def _take_back(self, record: records.Returned | records.Failed | records.Poisoned) -> None:
        """Record that a worker does not finish a batch. Split the stored batch, or store its error, as the record states."""
        batch = self._scheduler.unfinished_batch(record.job, record.batch)
        if batch is not None:
            store = self._coordinator.store(record.job)
            if isinstance(record, records.Failed):
                store.split(batch, batch.split(record.parts))
                status().warning("job %s, batch %d killed %s: %s", record.job, record.batch, record.worker, record.why)
            elif isinstance(record, records.Poisoned):
                store.deliver(batch, wire.pack([{"error": record.why}] * batch.count))
                status().error("job %s, query %d is not computed again: %s", record.job, batch.first, record.why)
        self._coordinator.record(record)
