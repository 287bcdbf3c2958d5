"""The scheduler: it keeps the state of all jobs, and chooses the next batch of a free worker. No I/O and no clock."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.inference.journal import records
from chimera.inference.policies.policy import Contender, Policy, check_fair_by
from chimera.inference.scheduling.batch import Batch, Running
from chimera.inference.scheduling.batch_size import pace_of
from chimera.inference.scheduling.failure import failure_of
from chimera.inference.scheduling.job import Job
from chimera.inference.scheduling.room import Room


class Scheduler:
    """Applies records to the state of the jobs, and chooses what to dispatch.

    A job is charged for a batch when it is dispatched; the charge is refunded when the batch has to be dispatched again. No job
    accumulates credit. A new job starts at the lowest charge of the jobs with waiting queries. A job that cannot use its share
    (because of ``max_workers``, or while its model is loaded) stays at most one whole batch per worker below the served job.

    Parameters
    ----------
    policy : decides which job a free worker serves.
    fair_by : unit of the shares of jobs, ``queries`` or ``tokens``.
    first_batch : number of the first batch of an open job. The journal does not store these batches. So each epoch has its own
        range of numbers, and a coordinator does not mistake a batch of an earlier epoch for its own.

    Attributes
    ----------
    jobs : the jobs by number, in the order of their acceptance.
    room : the workers that are reserved for served models; the caller updates it by `Room.reserve`.
    submissions : jobs whose queries are still arriving, by key.
    """

    def __init__(self, policy: Policy, *, fair_by: str = "queries", first_batch: int = 0) -> None:
        check_fair_by(fair_by)
        self._by_tokens = fair_by == "tokens"
        self.jobs: dict[str, Job] = {}
        self.room = Room()
        self.submissions: dict[str, records.Begun] = {}
        self._order = 0
        self._active: dict[str, Job] = {}  # jobs that have not ended
        self._floor = 0.0  # minimum charge of all active jobs
        self._policy, self._first_batch = policy, first_batch
        self._handlers: dict[type[records.Record], Callable[[Any], None]] = {
            records.Begun: self._begun,
            records.Accepted: self._accepted,
            records.Arrived: self._arrived,
            records.Withdrawn: self._withdrawn,
            records.Closed: self._closed,
            records.Changed: self._changed,
            records.Dispatched: self._dispatched,
            records.Committed: self._committed,
            records.Returned: self._returned,
            records.Failed: self._failed,
            records.Poisoned: self._poisoned,
            records.Cancelled: self._cancelled,
            records.Dropped: self._dropped,
        }

    def next_for(
        self, worker: str, loaded: Collection[str], workers: int, now_s: float, unloadable: Collection[str] = ()
    ) -> records.Dispatched | None:
        """Return the next dispatch to a free worker; None if no job has a batch for it. The record is not applied yet.

        If no other job waits, one worker loads the model of a new job first, for up to `FIRST_LOAD_S`: then a second new job
        finds a free worker.

        Parameters
        ----------
        loaded : keys of the models in the worker's memory (`chimera.inference.models.spec.key_of`).
        workers : number of available workers.
        unloadable : keys of the models that the worker cannot load.
        """
        usable = [job for job in self._active.values() if self._can_use(job, worker)]
        contending = [job for job in usable if job.key not in unloadable]
        if not contending or (len(contending) == 1 and contending[0].is_first_load(now_s, loaded)):
            return None
        pace = pace_of(workers, [job.weighted_unit_s() for job in self._active.values() if job.waiting])
        contenders = [self._contender(job, worker, loaded, now_s) for job in contending]
        job = self.jobs[self._policy.choose(contenders, workers)]
        batch = job.next_batch(pace, self.room.limit_s(job))
        return records.Dispatched(job.id, batch.number, batch.first, batch.count, worker, now_s, job.key not in loaded)

    def retry_for(self, worker: str, loaded: Collection[str], now_s: float) -> records.Dispatched | None:
        """Return the dispatch of a returned batch to a worker, without asking the policy.

        The policy has chosen its job once already, and the charge was refunded. None if no batch was returned, or if the worker
        would have to load the model first.
        """
        returned = (job for job in self._active.values() if job.returned and job.key in loaded)
        job = next((job for job in returned if self._can_use(job, worker)), None)
        if job is None:
            return None
        batch = job.returned[0]
        return records.Dispatched(job.id, batch.number, batch.first, batch.count, worker, now_s)

    def any_returned(self) -> bool:
        """Return whether any batch has to be dispatched again."""
        return any(job.returned for job in self._active.values())

    def any_new(self) -> bool:
        """Return whether a job waits for the dispatch of its first batch."""
        return any(job.waiting and job.first_s is None for job in self._active.values())

    def waiting_models(self) -> dict[str, dict[str, Any]]:
        """Return the tables of the models of all jobs with waiting queries, by their keys."""
        return {job.key: job.model for job in self._active.values() if job.waiting}

    def running_on(self, worker: str) -> Iterator[tuple[Job, Running]]:
        """Yield the running batches of a worker with their jobs, earliest first."""
        serving = (job for job in self._active.values() if worker in job.serving)
        own = [(job, run) for job in serving for run in job.running.values() if run.worker == worker]
        yield from sorted(own, key=lambda pair: pair[1].since_s)

    def busy(self) -> set[str]:
        """Return the workers that have running batches."""
        return {run.worker for job in self.jobs.values() for run in job.running.values()}

    def lost(
        self, worker: str, reason: str, *, culprit: tuple[str, int] | None, now_s: float
    ) -> list[records.Returned | records.Failed | records.Poisoned]:
        """Return the records of a worker's loss: its batches are returned, and a batch that killed a second worker is split.

        The first death may be an accident, so that batch stays whole.

        Parameters
        ----------
        culprit : job and number of the batch that may have killed the worker; None if unknown.
        """
        found: list[records.Returned | records.Failed | records.Poisoned] = []
        for job, run in self.running_on(worker):
            number = run.batch.number
            blamed = (job.id, number) == culprit
            if blamed and number in job.blamed:
                found.append(failure_of(job, run, reason, now_s))
            else:
                found.append(records.Returned(job.id, number, worker, reason, blamed, now_s))
        return found

    def failed(
        self, worker: str, job: str, batch: int, reason: str, *, divisible: bool, now_s: float
    ) -> records.Failed | records.Poisoned | None:
        """Return the record of a batch that ended its worker's computing process; None if the worker no longer has it.

        Parameters
        ----------
        divisible : whether a query may be the cause, so that halves of the batch are tried.
        """
        held = self.jobs.get(job)
        run = held.running.get(batch) if held else None
        if held is None or run is None or run.worker != worker:
            return None
        return failure_of(held, run, reason, now_s, divisible=divisible)

    def expired_jobs(self, since_s: float) -> list[str]:
        """Return the jobs that ended before a time, except the newest job, so that its number is not used again."""
        older = list(self.jobs.values())[:-1]
        return [job.id for job in older if job.ended_s is not None and job.ended_s <= since_s]

    def is_durable(self, record: records.Record) -> bool:
        """Return whether a record must be written: of an open job, only its existence and options."""
        return isinstance(record, records.JobRecord) or not self.job(record.job).accepted.open

    def unfinished_batch(self, job: str, batch: int) -> Batch | None:
        """Return a batch whose results are not committed yet; None if they are, or if the job has ended."""
        held = self.jobs.get(job)
        return held.unfinished_batch(batch) if held is not None and not held.ended else None

    def is_active(self, job: str) -> bool:
        """Return whether a job is known and has not ended."""
        return job in self._active

    def apply(self, record: records.Record) -> None:
        """Apply a record to the state."""
        self._handlers[type(record)](record)

    def job(self, name: str) -> Job:
        """Return a job by its number.

        Raises
        ------
        ConfigurationError : there is no such job.
        """
        if name not in self.jobs:
            known = ", ".join(list(self.jobs)[-10:]) or "none"
            raise ConfigurationError(f"there is no job {name!r}; the last jobs: {known}")
        return self.jobs[name]

    def _begun(self, record: records.Begun) -> None:
        self.submissions[record.key] = record

    def _accepted(self, record: records.Accepted) -> None:
        self.submissions.pop(record.key, None)
        job = Job(
            record, self._order, self._lowest(), record.weight, record.batch_size, record.max_workers,
            batches=self._first_batch if record.open else 0,
            by_tokens=self._by_tokens,
        )  # fmt: skip
        self._order += 1
        self.jobs[record.job] = self._active[record.job] = job
        self.room.note(job)
        self._deactivate_ended(job)

    def _arrived(self, record: records.Arrived) -> None:
        self.job(record.job).queries += record.count

    def _withdrawn(self, record: records.Withdrawn) -> None:
        job = self.job(record.job)
        job.withdraws(record.count, record.at_s)
        self._deactivate_ended(job)

    def _closed(self, record: records.Closed) -> None:
        job = self.job(record.job)
        job.closes(record.at_s)
        self.room.note(job)
        self._deactivate_ended(job)

    def _changed(self, record: records.Changed) -> None:
        job = self.job(record.job)
        job.weight = job.weight if record.weight is None else record.weight
        job.batch_size = job.batch_size if record.batch_size is None else record.batch_size
        job.max_workers = job.max_workers if record.max_workers is None else record.max_workers
        if record.batch_timeout_s is not None:
            job.batch_timeout_s = record.batch_timeout_s
        job.reserve = job.reserve if record.reserve is None else record.reserve
        job.latency_target_s = job.latency_target_s if record.latency_target_s is None else record.latency_target_s
        self.room.note(job)

    def _dispatched(self, record: records.Dispatched) -> None:
        job = self.job(record.job)
        job.dispatched(Batch(record.batch, record.first, record.count), record.worker, record.at_s, cold=record.cold)
        batch = max(job.units(record.count), job.whole_batch())
        self._lift(job.charged - (1 + len(job.serving)) * batch / job.weight)

    def _committed(self, record: records.Committed) -> None:
        job = self.job(record.job)
        batch = job.unfinished_batch(record.batch)
        if batch is not None:
            job.commits(batch, record.errors, record.seconds, record.at_s, record.tokens, record.error)
            self._deactivate_ended(job)

    def _returned(self, record: records.Returned) -> None:
        self.job(record.job).returns(record.batch, record.worker, blamed=record.blamed)
        self._lift(self._floor)

    def _failed(self, record: records.Failed) -> None:
        self.job(record.job).fails(record.batch, record.worker, record.parts)
        self._lift(self._floor)

    def _poisoned(self, record: records.Poisoned) -> None:
        job = self.job(record.job)
        batch = job.unfinished_batch(record.batch)
        if batch is not None:
            job.commits(batch, batch.count, None, record.at_s, error=record.why)
            self._deactivate_ended(job)

    def _cancelled(self, record: records.Cancelled) -> None:
        job = self.job(record.job)
        if not job.ended:
            job.why = record.why
            job.ends("cancelled" if record.why == records.BY_USER else "failed", record.at_s)
            self._deactivate_ended(job)

    def _dropped(self, record: records.Dropped) -> None:
        self.jobs.pop(record.job, None)
        self._active.pop(record.job, None)
        self.submissions = {key: begun for key, begun in self.submissions.items() if begun.job != record.job}

    def _lowest(self) -> float:
        """Return the lowest charge of the jobs with waiting queries."""
        return min((job.charged for job in self._active.values() if job.waiting), default=self._floor)

    def _lift(self, floor: float) -> None:
        self._floor = max(self._floor, floor)
        for job in self._active.values():
            job.charged = max(job.charged, self._floor)

    def _deactivate_ended(self, job: Job) -> None:
        if job.ended:
            self._active.pop(job.id, None)
            self.room.note(job)

    def _can_use(self, job: Job, worker: str) -> bool:
        return self.room.admits(worker, job) and job.can_use(worker)

    def _contender(self, job: Job, worker: str, loaded: Collection[str], now_s: float) -> Contender:
        return Contender(
            job=job.id,
            order=job.order,
            weight=job.weight,
            charged=job.charged,
            batch=job.whole_batch(self.room.limit_s(job)),
            rate=job.unit_rate(now_s),
            workers=job.other_workers(worker),
            loading=job.loading,
            loaded=job.key in loaded,
        )
