"""The state of all jobs, made of records, and the next batch for a free worker. It does no I/O and keeps no clock."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.inference.journal import records
from chimera.inference.policies.policy import Contender, Policy
from chimera.inference.scheduling.job import Batch, Job, Running

BATCH_S = 0.6
"""How long a batch should take whose size is not given."""
OPEN_BATCH_S = 0.1
"""The same of an open job: people wait for its answers."""
MAX_KILLS = 3
"""How many workers a batch may kill before it is set aside."""


class Scheduler:
    """Applies records, and says what to dispatch.

    A batch is charged to its job when it is dispatched, and given back when it has to be dispatched again. Nobody catches up on
    the past: a job that comes is lifted to the lowest of those that have queries waiting, and whoever cannot keep up (it may
    have no more workers, or its model has to be loaded first) to one batch for each worker below the job that is served.

    Parameters
    ----------
    policy : which job a free worker serves.
    first_batch : the number of the first batch of an open job. What the journal does not keep, a successor does not know: so
        that it takes no batch of another epoch for one of its own, each epoch has its own numbers.

    Attributes
    ----------
    jobs : by number, in the order in which they were accepted.
    dropped : the numbers of those that were dropped.
    """

    def __init__(self, policy: Policy, *, first_batch: int = 0) -> None:
        self.jobs: dict[str, Job] = {}
        self.dropped: set[str] = set()
        self._order = 0
        self._active: dict[str, Job] = {}  # those that have not ended
        self._floor = 0.0  # no charge of an open job is lower
        self._policy, self._first_batch = policy, first_batch
        self._handlers: dict[type[records.Record], Callable[[Any], None]] = {
            records.Accepted: self._accepted,
            records.Arrived: self._arrived,
            records.Withdrawn: self._withdrawn,
            records.Closed: self._closed,
            records.Changed: self._changed,
            records.Dispatched: self._dispatched,
            records.Committed: self._committed,
            records.Returned: self._returned,
            records.Poisoned: self._poisoned,
            records.Cancelled: self._cancelled,
            records.Dropped: self._dropped,
        }

    def next_for(self, worker: str, loaded: Collection[str], workers: int, now_s: float) -> records.Dispatched | None:
        """Return what a free worker should do next; nothing if no job has anything for it. It is not applied yet.

        Parameters
        ----------
        loaded : the keys of the models that the worker has in memory (`chimera.inference.models.spec.key_of`).
        workers : how many live.
        """
        contending = (job for job in self._active.values() if job.can_use(worker))
        contenders = [self._contender(job, worker, loaded, now_s) for job in contending]
        if not contenders:
            return None
        job = self.jobs[self._policy.choose(contenders, workers)]
        batch = job.next_batch()
        return records.Dispatched(job.id, batch.number, batch.first, batch.count, worker, now_s, job.key not in loaded)

    def retry_for(self, worker: str, loaded: Collection[str], now_s: float) -> records.Dispatched | None:
        """Return the batch of a lost worker that another one should take over, before any policy's choice.

        The policy has chosen its job once, and the charge was given back. Nothing if no batch came back, or only of models that
        the worker would have to load.
        """
        jobs = (job for job in self._active.values() if job.returned and job.key in loaded and job.can_use(worker))
        job = next(jobs, None)
        if job is None:
            return None
        batch = job.next_batch()
        return records.Dispatched(job.id, batch.number, batch.first, batch.count, worker, now_s)

    def any_returned(self) -> bool:
        """Return whether a batch has to be dispatched again."""
        return any(job.returned for job in self._active.values())

    def waiting_models(self) -> set[str]:
        """Return the keys of the models of all jobs that have queries waiting."""
        return {job.key for job in self._active.values() if job.waiting}

    def running_on(self, worker: str) -> Iterator[tuple[Job, Running]]:
        """Yield what a worker has to do, the earliest first."""
        serving = (job for job in self._active.values() if worker in job.serving)
        own = [(job, run) for job in serving for run in job.running.values() if run.worker == worker]
        yield from sorted(own, key=lambda pair: pair[1].since_s)

    def busy(self) -> set[str]:
        """Return the workers that have something to do."""
        return {run.worker for job in self.jobs.values() for run in job.running.values()}

    def lost(
        self, worker: str, why: str, *, culprit: tuple[str, int] | None, now_s: float
    ) -> list[records.Returned | records.Poisoned]:
        """Return the records of a worker's loss: what it had goes back, or is set aside if it has killed too many.

        Parameters
        ----------
        culprit : the batch that may have killed it, by job and number; None if nothing says so.
        """
        found: list[records.Returned | records.Poisoned] = []
        for job, run in self.running_on(worker):
            number = run.batch.number
            blamed = (job.id, number) == culprit
            killed = job.blamed.get(number, [])
            if blamed and len(killed) + 1 >= MAX_KILLS:
                text = f"this batch killed {MAX_KILLS} workers: {', '.join((*killed, worker))}"
                found.append(records.Poisoned(job.id, number, text, now_s))
            else:
                found.append(records.Returned(job.id, number, worker, why, blamed, now_s))
        return found

    def expired_jobs(self, since_s: float) -> list[str]:
        """Return the jobs that ended before some time; the newest never is, so that its number is not given again."""
        older = list(self.jobs.values())[:-1]
        return [job.id for job in older if job.ended_s is not None and job.ended_s <= since_s]

    def is_durable(self, record: records.Record) -> bool:
        """Return whether a successor has to know of it: of an open job, only that the job is there."""
        return isinstance(record, records.Lasting) or not self.job(record.job).accepted.open

    def unfinished_batch(self, job: str, batch: int) -> Batch | None:
        """Return a batch whose results are still to be committed; None for any other."""
        held = self.jobs.get(job)
        return held.unfinished_batch(batch) if held is not None and not held.ended else None

    def apply(self, record: records.Record) -> None:
        """Let a record have happened."""
        self._handlers[type(record)](record)

    def job(self, name: str) -> Job:
        """Return a job by its number.

        Raises
        ------
        ConfigurationError : there is none.
        """
        if name not in self.jobs:
            known = ", ".join(list(self.jobs)[-10:]) or "there is none yet"
            raise ConfigurationError(f"there is no job {name!r}; the last ones: {known}")
        return self.jobs[name]

    def _accepted(self, record: records.Accepted) -> None:
        job = Job(
            record, self._order, self._lowest(), record.weight, record.batch_size, record.max_workers,
            batch_s=OPEN_BATCH_S if record.open else BATCH_S, batches=self._first_batch if record.open else 0,
        )  # fmt: skip
        self._order += 1
        self.jobs[record.job] = self._active[record.job] = job
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
        self._deactivate_ended(job)

    def _changed(self, record: records.Changed) -> None:
        job = self.job(record.job)
        job.weight = job.weight if record.weight is None else record.weight
        job.batch_size = job.batch_size if record.batch_size is None else record.batch_size
        job.max_workers = job.max_workers if record.max_workers is None else record.max_workers

    def _dispatched(self, record: records.Dispatched) -> None:
        job = self.job(record.job)
        job.dispatched(Batch(record.batch, record.first, record.count), record.worker, record.at_s, cold=record.cold)
        self._lift(job.charged - (1 + len(job.serving)) * record.count / job.weight)

    def _committed(self, record: records.Committed) -> None:
        job = self.job(record.job)
        batch = job.unfinished_batch(record.batch)
        if batch is not None:
            job.commits(batch, record.errors, record.seconds, record.at_s)
            self._deactivate_ended(job)

    def _returned(self, record: records.Returned) -> None:
        self.job(record.job).returns(record.batch, record.worker, blamed=record.blamed)
        self._lift(self._floor)

    def _poisoned(self, record: records.Poisoned) -> None:
        job = self.job(record.job)
        batch = job.unfinished_batch(record.batch)
        if batch is not None:
            job.commits(batch, batch.count, None, record.at_s)
            self._deactivate_ended(job)

    def _cancelled(self, record: records.Cancelled) -> None:
        job = self.job(record.job)
        if not job.ended:
            job.ended, job.why, job.ended_s = "cancelled", record.why, record.at_s
            job.running.clear()
            job.serving.clear()
            job.loading = 0
            job.returned.clear()
            self._deactivate_ended(job)

    def _dropped(self, record: records.Dropped) -> None:
        self.jobs.pop(record.job, None)
        self._active.pop(record.job, None)
        self.dropped.add(record.job)

    def _lowest(self) -> float:
        """Return the lowest charge of the jobs that have queries waiting."""
        return min((job.charged for job in self._active.values() if job.waiting), default=self._floor)

    def _lift(self, floor: float) -> None:
        self._floor = max(self._floor, floor)
        for job in self._active.values():
            job.charged = max(job.charged, self._floor)

    def _deactivate_ended(self, job: Job) -> None:
        if job.ended:
            self._active.pop(job.id, None)

    def _contender(self, job: Job, worker: str, loaded: Collection[str], now_s: float) -> Contender:
        return Contender(
            job=job.id,
            order=job.order,
            weight=job.weight,
            charged=job.charged,
            batch=job.next_batch().count,
            rate=job.rate(now_s),
            workers=job.other_workers(worker),
            loading=job.loading,
            loaded=job.key in loaded,
        )
