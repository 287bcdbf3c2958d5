"""Simulation of a cluster in virtual time, for policies: the real scheduler with modelled workers, faults and arrivals."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from chimera.inference.journal import records
from chimera.inference.models.spec import key_of
from chimera.inference.policies.policy import Policy
from chimera.inference.scheduling.job import FIRST_LOAD_S
from chimera.inference.scheduling.scenario import Conditions, Fault, SimulatedJob
from chimera.inference.scheduling.scheduler import Scheduler

_SILENT_S = 1.0  # time until a hung worker is noticed
_RESET_S = 0.1  # time until a dead worker is noticed


class Span(NamedTuple):
    """The time of a batch on a worker: loading from ``from_s`` to ``loaded_s``, then computing until ``to_s``.

    The span ends where the worker died.
    """

    worker: int
    from_s: float
    loaded_s: float
    to_s: float


@dataclass(frozen=True)
class Outcome:
    """The outcome of a simulation.

    Attributes
    ----------
    history : the records, as a journal would store them.
    spans : the times of all batches on workers.
    downtimes : beginning and end of each worker's unavailability after a fault.
    workers : number of workers.
    end_s : time of the end.
    """

    history: list[records.Record]
    spans: list[Span]
    downtimes: list[tuple[float, float]]
    workers: int
    end_s: float

    def shares(self) -> tuple[float, float]:
        """Return the shares of the available workers' time that were spent on computing, and on loading models.

        Time after the last dispatch does not count, because not all workers have work then.
        """
        end_s = max(record.at_s for record in self.history if isinstance(record, records.Dispatched))
        down_s = sum(min(to_s, end_s) - min(from_s, end_s) for from_s, to_s in self.downtimes)
        total_s = end_s * self.workers - down_s
        loading_s = sum(min(span.loaded_s, end_s) - min(span.from_s, end_s) for span in self.spans)
        computing_s = sum(min(span.to_s, end_s) - min(span.loaded_s, end_s) for span in self.spans)
        return computing_s / total_s, loading_s / total_s


@dataclass
class _Worker:
    number: int
    speed: float
    models: dict[str, None] = field(default_factory=dict)  # ordered by last use
    dispatched: records.Dispatched | None = None
    span: Span | None = None
    batch_s: float = 0.0  # the seconds that the worker will report for its batch
    recovery_s: float = 0.0  # when a dead or hung worker is available again
    generation: int = 0  # events that were planned in an earlier one are ignored

    @property
    def name(self) -> str:
        return f"w{self.number}"


class Simulation:
    """One simulation. The same jobs, conditions and policy give the same outcome, to the bit."""

    def __init__(
        self, policy: Policy, jobs: Sequence[SimulatedJob], conditions: Conditions, *, fair_by: str = "queries"
    ) -> None:
        self.scheduler = Scheduler(policy, fair_by=fair_by)
        self._jobs = {str(number): job for number, job in enumerate(jobs)}
        self._conditions = conditions
        self._random = random.Random(conditions.seed)  # noqa: S311 - a simulation is repeated from its seed; no secret
        self._workers = [_Worker(number, speed) for number, speed in enumerate(conditions.speeds)]
        self._idle = dict.fromkeys(range(len(self._workers)))
        self._available = len(self._workers)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._planned = 0
        self._now_s = 0.0
        self._history: list[records.Record] = []
        self._spans: list[Span] = []
        self._downtimes: list[tuple[float, float]] = []
        if conditions.warm:
            for worker in self._workers:
                worker.models = dict.fromkeys(
                    key_of(_model(*one)) for one in list(self._jobs.items())[: conditions.keep_models]
                )

    def run(self) -> Outcome:
        """Run until all jobs are done, or the time is over."""
        for name, job in self._jobs.items():
            self._schedule(job.at_s, partial(self._submit, name, job))
        for fault in self._conditions.faults:
            self._schedule(fault.at_s, partial(self._fail, self._workers[fault.worker], fault))
        while self._events and self._events[0][0] <= self._conditions.until_s:
            self._now_s, _, action = heapq.heappop(self._events)
            action()
        spans = self._spans + [worker.span for worker in self._workers if worker.span]
        end_s = min(self._conditions.until_s, self._now_s)
        return Outcome(self._history, spans, self._downtimes, len(self._workers), end_s)

    def _schedule(self, delay_s: float, action: Callable[[], None]) -> None:
        self._planned += 1
        heapq.heappush(self._events, (self._now_s + delay_s, self._planned, action))

    def _record(self, record: records.Record) -> None:
        self.scheduler.apply(record)
        self._history.append(record)

    def _submit(self, name: str, job: SimulatedJob) -> None:
        self._record(
            records.Accepted(
                name,
                name,
                name,
                _model(name, job),
                job.queries,
                job.weight,
                job.batch_size,
                job.max_workers,
                self._now_s,
            )
        )
        self._offer()

    def _offer(self) -> None:
        """Dispatch batches to idle workers; those that have a wanted model loaded come first."""
        if not self._idle:
            return
        wanted = self.scheduler.waiting_models().keys()
        for number in sorted(self._idle, key=lambda number: wanted.isdisjoint(self._workers[number].models)):
            self._begin(self._workers[number])

    def _begin(self, worker: _Worker) -> None:
        chosen = self.scheduler.next_for(worker.name, worker.models, self._available, self._now_s)
        if chosen is None:
            self._idle[worker.number] = None
            return
        self._idle.pop(worker.number, None)
        self._record(chosen)
        job, key = self._jobs[chosen.job], self.scheduler.job(chosen.job).key
        load_s = 0.0 if key in worker.models else job.load_s
        worker.models.pop(key, None)
        while len(worker.models) >= self._conditions.keep_models:
            del worker.models[next(iter(worker.models))]
        noise = self._random.lognormvariate(-(self._conditions.noise**2) / 2, self._conditions.noise)
        rounds = math.ceil(chosen.count / job.at_once)
        worker.batch_s = (job.fixed_s + rounds * job.seconds) / worker.speed * noise
        worker.dispatched = chosen
        self._work(worker, key, load_s, worker.batch_s)
        if load_s:
            self._schedule(FIRST_LOAD_S, self._offer)  # others may load the model then

    def _work(self, worker: _Worker, key: str, load_s: float, compute_s: float) -> None:
        worker.span = Span(worker.number, self._now_s, self._now_s + load_s, self._now_s + load_s + compute_s)
        self._schedule(load_s, partial(self._loaded, worker, key, worker.generation))
        self._schedule(load_s + compute_s, partial(self._finish, worker, worker.generation))

    def _loaded(self, worker: _Worker, key: str, generation: int) -> None:
        if worker.generation == generation:
            worker.models[key] = None

    def _finish(self, worker: _Worker, generation: int) -> None:
        if worker.generation != generation or worker.dispatched is None or worker.span is None:
            return
        job, number = worker.dispatched.job, worker.dispatched.batch
        if self.scheduler.unfinished_batch(job, number) is not None:
            tokens = worker.dispatched.count * self._jobs[job].tokens
            self._record(records.Committed(job, number, worker.name, worker.batch_s, 0, self._now_s, tokens))
        self._spans.append(worker.span)
        worker.dispatched = worker.span = None
        self._schedule(self._conditions.latency_s, partial(self._free, worker, generation))

    def _free(self, worker: _Worker, generation: int) -> None:
        if worker.generation == generation:
            self._begin(worker)
            self._offer()

    def _fail(self, worker: _Worker, fault: Fault) -> None:
        if worker.recovery_s > self._now_s:
            return  # it is down already
        worker.generation += 1
        worker.recovery_s = self._now_s + fault.duration_s
        self._idle.pop(worker.number, None)
        self._available -= 1
        self._downtimes.append((self._now_s, worker.recovery_s))
        span, key, dies = worker.span, "", fault.kind == "kill"
        load_s = compute_s = 0.0
        if span is not None and worker.dispatched is not None:
            key = self.scheduler.job(worker.dispatched.job).key
            load_s = max(span.loaded_s - self._now_s, 0.0)
            compute_s = span.to_s - self._now_s - load_s
            self._spans.append(span._replace(loaded_s=min(span.loaded_s, self._now_s), to_s=self._now_s))
            worker.span = None
        if dies:
            worker.models.clear()
            worker.dispatched = None
        if dies or fault.duration_s > _SILENT_S:
            self._schedule(
                min(_RESET_S if dies else _SILENT_S, fault.duration_s), partial(self._lose, worker, died=dies)
            )
        self._schedule(fault.duration_s, partial(self._return, worker, key, load_s, compute_s))

    def _lose(self, worker: _Worker, *, died: bool) -> None:
        reason = "it died" if died else "it hangs"
        culprit = next(((job.id, run.batch.number) for job, run in self.scheduler.running_on(worker.name)), None)
        for record in self.scheduler.lost(worker.name, reason, culprit=culprit if died else None, now_s=self._now_s):
            self._record(record)
        self._offer()

    def _return(self, worker: _Worker, key: str, load_s: float, compute_s: float) -> None:
        self._available += 1
        if worker.dispatched is not None:  # it hung, and continues its batch
            self._work(worker, key, load_s, compute_s)
        else:
            self._free(worker, worker.generation)


def _model(name: str, job: SimulatedJob) -> dict[str, Any]:
    return {"kind": "simulated", "name": name, "max_num_seqs": job.at_once}
