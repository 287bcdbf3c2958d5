"""The state of one job in the scheduler: waiting, running and finished batches, and measured speed."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from chimera.inference.journal.records import Accepted
from chimera.inference.models.spec import key_of, queries_at_once
from chimera.inference.scheduling.batch import Batch, Running
from chimera.inference.scheduling.batch_size import (
    MAX_BATCH_S,
    OPEN_BATCH_S,
    UNMEASURED,
    UNMEASURED_S,
    BatchCost,
    Pace,
    batch_size,
    smoothed,
)
from chimera.inference.scheduling.recent import RecentWork
from chimera.inference.scheduling.time_limit import default_limit_s, default_loads

FIRST_LOAD_S = 5.0
"""Maximum seconds for which a single worker loads the model of a new job, while the others stay free for other jobs."""
_TIMES = 10_000  # number of batch times that are kept of an open job, which has no end


@dataclass
class Job:
    """A job.

    Attributes
    ----------
    order : position in the order of submission.
    cost : measured seconds of its batches, by their size.
    reserve, latency_target_s : see `Accepted`.
    by_tokens : whether its share is measured in tokens; else in queries.
    queries : number of queries; of an open job, so far.
    open : whether more queries may arrive.
    charged : units dispatched, divided by the weight at the time of dispatch. Tokens are estimated from the batches before, and
        counted when the batch is finished.
    cursor : index of the first query that was in no batch yet.
    returned : batches to dispatch again, before new ones.
    running : running batches, by number.
    serving : workers of the running batches, with the number of batches of each.
    given : the workers to which each unfinished batch was dispatched.
    loading : number of running batches whose worker had to load the model first.
    key : key of its model in workers.
    blamed : the workers that each unfinished batch may have killed, and those that the batches killed from which it was split.
    batch_timeout_s : time limit of a batch in seconds; 0: from the times of the batches before.
    finished : number of queries with a result.
    errors : number of results that are errors.
    error : the first of these errors.
    ended : ``done``, ``failed`` or ``cancelled``; empty while the job runs.
    times : number of queries and seconds of each finished batch; of an open job, of the last ones.
    """

    accepted: Accepted
    order: int
    charged: float
    weight: float
    batch_size: int
    max_workers: int
    by_tokens: bool = False
    cost: BatchCost = field(default_factory=BatchCost)
    cursor: int = 0
    batches: int = 0
    returned: deque[Batch] = field(default_factory=deque)
    running: dict[int, Running] = field(default_factory=dict)
    serving: Counter[str] = field(default_factory=Counter)
    given: dict[int, set[str]] = field(default_factory=dict)
    loading: int = 0
    blamed: dict[int, list[str]] = field(default_factory=dict)
    finished: int = 0
    errors: int = 0
    error: str = ""
    ended: str = ""
    why: str = ""
    first_s: float | None = None
    ended_s: float | None = None
    times: deque[tuple[int, float]] = field(init=False)
    queries: int = field(init=False)
    reserve: int = field(init=False)
    latency_target_s: float = field(init=False)
    open: bool = field(init=False)
    key: str = field(init=False)
    batch_timeout_s: float = field(init=False)
    _recent: RecentWork = field(default_factory=RecentWork)
    _units_per_query: float | None = None  # smoothed
    _slowest_s: float | None = None  # per query, of the slowest batch
    _slowest_turn_s: float = 0.0  # per turn of queries that the model computes at once

    def __post_init__(self) -> None:
        self.key, self._at_once = key_of(self.accepted.model), queries_at_once(self.accepted.model)
        self.queries, self.open = self.accepted.queries, self.accepted.open
        self.batch_timeout_s = self.accepted.batch_timeout_s
        self.reserve, self.latency_target_s = self.accepted.reserve, self.accepted.latency_target_s
        self.times = deque(maxlen=_TIMES if self.open else None)
        self._end_if_complete(self.accepted.at_s)

    @property
    def id(self) -> str:
        """The number of the job, as a text."""
        return self.accepted.job

    @property
    def model(self) -> dict[str, Any]:
        """The table of its model."""
        return self.accepted.model

    @property
    def waiting(self) -> int:
        """Number of queries that are neither finished nor in a running batch."""
        if self.ended:
            return 0
        return self.queries - self.cursor + sum(batch.count for batch in self.returned)

    def can_use(self, worker: str) -> bool:
        """Return whether the job has waiting queries, and may use this worker."""
        if self.ended or not (self.returned or self.cursor < self.queries):
            return False
        return not self.max_workers or self.other_workers(worker) < self.max_workers

    def is_first_load(self, now_s: float, loaded: Collection[str]) -> bool:
        """Return whether a worker loads the model of this new job for the first time, and another one has not ``loaded`` it."""
        if not self.loading or self.times or self.first_s is None or self.key in loaded:
            return False
        return now_s < self.first_s + FIRST_LOAD_S

    def other_workers(self, worker: str) -> int:
        """Return the number of other workers that serve the job."""
        return len(self.serving) - (worker in self.serving)

    def next_batch(self, pace: Pace, limit_s: float = math.inf) -> Batch:
        """Return the batch to dispatch next, of at most ``limit_s`` expected seconds if it is new. Queries must be waiting."""
        if self.returned:
            return self.returned[0]
        per_s = None if pace.fair_rate is None else pace.fair_rate * self.weight / self.units(1)
        target_s = OPEN_BATCH_S if self.accepted.open else pace.batch_s
        size = batch_size(self.cost, self.batch_size, target_s=target_s, per_s=per_s)
        size = min(max(size, self._least()), self.cost.max_queries_in(limit_s), self.queries - self.cursor)
        return Batch(self.batches, self.cursor, size)

    def _least(self) -> int:
        """Return the minimum number of queries of a batch: those that the model computes at once, or the user's number."""
        at_once = min(self._at_once, self.batch_size or self._at_once)
        return at_once if self.cost.mean_s is not None else min(at_once, UNMEASURED)

    def whole_batch(self, limit_s: float = math.inf) -> float:
        """Return the units of the next batch if no other job waited."""
        return self.units(self.next_batch(Pace(MAX_BATCH_S), limit_s).count)

    def units(self, count: int) -> float:
        """Return the expected units of ``count`` queries; before the first tokens are counted, one per query."""
        return count * (self._units_per_query or 1.0) if self.by_tokens else count

    def weighted_unit_s(self) -> float:
        """Return the expected seconds of a worker for one unit per weight; before the first batch, an assumption."""
        query_s = UNMEASURED_S if self.cost.mean_s is None else self.cost.mean_s
        return self.weight * query_s / self.units(1)

    def estimate_s(self, count: int) -> float | None:
        """Return the expected seconds of ``count`` queries; None if unknown."""
        return None if self.cost.mean_s is None else count * self.cost.mean_s

    def limit_s(self, batch: Batch) -> float:
        """Return the time limit in seconds of a batch, without loading the model."""
        kills = len(self.blamed.get(batch.number, ()))
        if self.batch_timeout_s or self._slowest_s is None:
            return self.batch_timeout_s or default_limit_s(batch.count, None, kills)
        # A query may take as long as a batch of queries computed at once, and such a batch as long as its queries one by one.
        turns = default_limit_s(self._turns(batch.count), self._slowest_turn_s)
        return max(turns, default_limit_s(batch.count, self._slowest_s))

    def limit_loads(self, batch: Batch) -> float:
        """Return the minimum of this limit, as a multiple of the time to load the model."""
        return 0.0 if self.batch_timeout_s else default_loads(batch.count, self._slowest_s)

    def _turns(self, count: int) -> int:
        """Return how many times the model computes queries at once for so many queries."""
        return math.ceil(count / self._at_once)

    def dispatched(self, batch: Batch, worker: str, at_s: float, *, cold: bool) -> None:
        """Note that a batch was dispatched; ``cold``: the worker has to load the model first."""
        if batch.number == self.batches:
            self.batches, self.cursor = batch.number + 1, batch.first + batch.count
        else:
            self._remove_returned(batch.number)
        charge = self.units(batch.count) / self.weight
        self.running[batch.number] = Running(batch, worker, at_s, charge, cold)
        self.loading += cold
        self.serving[worker] += 1
        self.given.setdefault(batch.number, set()).add(worker)
        self.charged += charge
        self.first_s = at_s if self.first_s is None else self.first_s
        self.cost.largest = max(self.cost.largest, batch.count)

    def returns(self, number: int, worker: str, *, blamed: bool) -> None:
        """Take a batch back, so that it is dispatched again before all others."""
        running = self.running.get(number)
        if running is None or running.worker != worker:
            return  # another worker computes it by now, or it is done
        self._remove_running(number)
        self.charged -= running.charge
        self.returned.appendleft(running.batch)
        if blamed:
            self.blamed.setdefault(number, []).append(worker)

    def fails(self, number: int, worker: str, parts: Sequence[int]) -> None:
        """Replace a batch that killed its worker by new ones, which are dispatched before all others."""
        running = self.running.get(number)
        if running is None or running.worker != worker:
            return
        self._remove_running(number)
        self.charged -= running.charge
        blamed = [*self.blamed.pop(number, []), worker]
        self.given.pop(number, None)
        split = running.batch.split(parts)
        self.returned.extendleft(reversed(split))
        self.blamed.update({part.number: blamed.copy() for part in split})
        self.batches = max(self.batches, parts[-1] + 1)

    def commits(
        self, batch: Batch, errors: int, seconds: float | None, at_s: float, tokens: int = 0, error: str = ""
    ) -> None:
        """Note that a batch is finished.

        Parameters
        ----------
        seconds : None if no worker computed it.
        tokens : number of tokens of its queries and results; 0 if unknown.
        error : the first error among its results; empty if there is none, or if the job has an earlier one.
        """
        units = float(tokens or batch.count) if self.by_tokens else batch.count
        self.given.pop(batch.number, None)
        running = self._remove_running(batch.number)
        if running is None:  # a late result: the batch had been taken from that worker
            self._remove_returned(batch.number)
            self.charged += units / self.weight
        elif self.by_tokens:
            self.charged += units / self.weight - running.charge
        self.blamed.pop(batch.number, None)
        self.finished += batch.count
        self.errors += errors
        self.error = self.error or error
        if seconds is not None:
            self.times.append((batch.count, seconds))
            self._recent.add(at_s, batch.count, units)
            self._slowest_s = max(self._slowest_s or 0.0, seconds / batch.count)
            self._slowest_turn_s = max(self._slowest_turn_s, seconds / self._turns(batch.count))
            self.cost.observe(batch.count, seconds)
            self._units_per_query = smoothed(self._units_per_query, units / batch.count)
        self._end_if_complete(at_s)

    def withdraws(self, count: int, at_s: float) -> None:
        """Remove ``count`` queries that are in no batch yet."""
        self.queries -= count
        self._end_if_complete(at_s)

    def closes(self, at_s: float) -> None:
        """Note that no more queries arrive."""
        self.open = False
        self._end_if_complete(at_s)

    def ends(self, state: str, at_s: float) -> None:
        """Note that the job has ended. Its unfinished batches are dropped."""
        self.ended, self.ended_s = state, at_s
        self.running.clear()
        self.serving.clear()
        self.returned.clear()
        self.given.clear()
        self.loading = 0

    def unfinished_batch(self, number: int) -> Batch | None:
        """Return an unfinished batch; None if it is finished or unknown."""
        if number in self.running:
            return self.running[number].batch
        return next((batch for batch in self.returned if batch.number == number), None)

    def rate(self, now_s: float) -> float:
        """Return the queries finished per second; see `RecentWork.rates`."""
        return self._recent.rates(now_s, self.first_s, self.ended_s)[0]

    def unit_rate(self, now_s: float) -> float:
        """Return the units finished per second; see `RecentWork.rates`."""
        return self._recent.rates(now_s, self.first_s, self.ended_s)[1]

    def _end_if_complete(self, at_s: float) -> None:
        """End the job if all queries are finished and no more may arrive, or if too many have errors."""
        if self.ended:
            return
        if self._has_failed():
            self.ends("failed", at_s)
        elif self.finished == self.queries and not self.open:
            self.ends("done", at_s)

    def _has_failed(self) -> bool:
        """Return whether all queries have errors, or more of them than permitted. A served model does not fail."""
        if self.accepted.open or not self.errors:
            return False
        # The division rounds like the decimal number of the user: 29 of 100 are not more than 0.29.
        return self.errors == self.queries or self.errors / self.queries > self.accepted.max_error_rate

    def _remove_running(self, number: int) -> Running | None:
        running = self.running.pop(number, None)
        if running is not None:
            self.loading -= running.cold
            self.serving -= Counter([running.worker])  # removes a worker without batches
        return running

    def _remove_returned(self, number: int) -> None:
        self.returned = deque(batch for batch in self.returned if batch.number != number)
