"""The number of queries of a job's next batch: large enough to be efficient, small enough that no other job waits long."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

BATCH_S = 0.3
"""Target seconds of a batch of automatic size."""
SHARED_BATCH_S = 0.2
"""The same while other jobs wait."""
MAX_BATCH_S = 0.6
"""The same on many workers: a worker then becomes free soon, and the coordinator handles fewer batches."""
OPEN_BATCH_S = 0.1
"""The same for an open job, whose clients wait for the answers."""
MAX_FIXED_BATCH_S = 1.0
"""Maximum seconds of a batch whose size the user has set."""
SHARE_S = 0.2
"""While other jobs wait, a batch has at most the queries that its job should finish in this many seconds."""
UNMEASURED = 16
"""Maximum number of queries in a batch while the time of a query is unknown."""
UNMEASURED_S = 0.05
"""Assumed seconds of such a query. So the other jobs fill no worker with large batches while a new job is measured."""
_DISPATCH_S = 0.002  # seconds of a worker for each batch: messages and the journal
_WORKER_S = 0.02  # target seconds of a batch for each worker of the cluster
_GROWTH = 8  # an automatic batch is at most this many times as large as the largest one before
_EFFICIENT = 4  # the queries of a batch should take this many times its fixed seconds: 80 % of its time
_SMOOTHING = 0.3  # weight of the last batch in the estimates
_MEMORY = 100  # batches after which the mean of a size is forgotten
_SPREAD = 2  # ratio of two sizes from which the fixed seconds are estimated
_MIN_QUERY_S = 1e-9  # minimum seconds of a query: the batches of a model that cannot be loaded take no time
_NOISE = 0.3  # relative error of the seconds of a size


@dataclass
class _Mean:
    count: float
    seconds: float
    seen: int  # number of the last batch of this size


@dataclass
class BatchCost:
    """The seconds of a job's batches, as a line: ``fixed_s + query_s * count``.

    The fixed seconds follow from the largest and the smallest recent batches, if their sizes differ by a factor of two
    or more. The estimate is low, because a wrong value would make batches too large: workers may differ in speed by 30
    %. A size that has not occurred for a hundred batches is forgotten, and then a batch of another size is tried again.

    Attributes
    ----------
    largest : the largest number of queries of a batch so far.
    mean_s : smoothed seconds per query, with the fixed part; None before the first batch.
    query_s : seconds of one more query.
    fixed_s : seconds of a batch besides those of its queries.
    """

    largest: int = 0
    mean_s: float | None = None
    query_s: float = 0.0
    fixed_s: float = 0.0
    _means: dict[int, _Mean] = field(default_factory=dict)  # by powers of two
    _seen: int = 0

    def observe(self, count: int, seconds: float) -> None:
        """Take the seconds of a finished batch into account."""
        self._seen += 1
        self.mean_s = smoothed(self.mean_s, seconds / count)
        mean = self._means.setdefault(count.bit_length(), _Mean(count, seconds, self._seen))
        mean.count, mean.seconds = smoothed(mean.count, count), smoothed(mean.seconds, seconds)
        mean.seen = self._seen
        self._means = {size: each for size, each in self._means.items() if self._seen - each.seen < _MEMORY}
        self._estimate(max(self.mean_s, _MIN_QUERY_S))

    def max_queries_in(self, seconds: float) -> int:
        """Return the number of queries that a batch finishes in this time, at least 1; without limit if unknown."""
        if self.mean_s is None or math.isinf(seconds):
            return sys.maxsize
        return max(int((seconds - self.fixed_s) / self.query_s), 1)

    def differs(self, count: float) -> bool:
        """Return whether this size and the recent ones differ enough to show fixed seconds."""
        counts = [count, *(each.count for each in self._means.values())]
        return max(counts) >= _SPREAD * min(counts)

    def _estimate(self, mean_s: float) -> None:
        self.query_s, self.fixed_s = mean_s, 0.0
        means = sorted(self._means.values(), key=lambda each: each.count)
        small, large = means[0], means[-1]
        ratio = large.count / small.count
        if ratio >= _SPREAD:
            line_s = (ratio * small.seconds - large.seconds) / (ratio - 1)
            fixed_s = line_s - _NOISE * ratio / (ratio - 1) * small.seconds
            if fixed_s > 0:
                self.fixed_s = min(fixed_s, 0.98 * large.seconds)
                self.query_s = max((large.seconds - self.fixed_s) / large.count, _MIN_QUERY_S)


def smoothed(before: float | None, value: float) -> float:
    """Return the exponential mean with a new value."""
    return value if before is None else (1 - _SMOOTHING) * before + _SMOOTHING * value


class Pace(NamedTuple):
    """The values that the batches of all jobs share at a time.

    Attributes
    ----------
    batch_s : target seconds of a batch of automatic size.
    fair_rate : units per second and weight that each job should get; None if no two jobs wait.
    """

    batch_s: float = BATCH_S
    fair_rate: float | None = None


def pace_of(workers: int, unit_s: Sequence[float]) -> Pace:
    """Return the pace for jobs that need ``unit_s`` seconds of a worker for one unit per weight."""
    several = len(unit_s) > 1
    batch_s = min(max(SHARED_BATCH_S if several else BATCH_S, _WORKER_S * workers), MAX_BATCH_S)
    return Pace(batch_s, workers / max(sum(unit_s), 1e-9) if several else None)


def batch_size(cost: BatchCost, wanted: int, *, target_s: float, per_s: float | None) -> int:
    """Return the number of queries of a job's next batch, at least 1.

    Parameters
    ----------
    cost : the seconds of its batches.
    wanted : batch size of the user; 0: automatic.
    target_s : seconds of a batch of automatic size.
    per_s : queries per second that the job should finish; None: unknown, or no other job waits.
    """
    if cost.mean_s is None:
        return min(wanted, UNMEASURED) if wanted else max(cost.largest, 1)
    seconds = MAX_FIXED_BATCH_S if wanted else target_s
    most = (seconds - cost.fixed_s) / cost.query_s
    if per_s is not None:
        most = min(most, SHARE_S * per_s)
    overhead_s = cost.fixed_s + _DISPATCH_S
    efficient = max(min(_EFFICIENT * overhead_s, seconds - cost.fixed_s), cost.fixed_s) / cost.query_s
    count = max(min(round(max(most, efficient)), wanted or _GROWTH * max(cost.largest, 1)), 1)
    return count if count == wanted or cost.differs(count) else _trial(count, cost.query_s)


def _trial(count: int, query_s: float) -> int:
    """Return another size than the usual one, to estimate the fixed seconds; the usual one if a larger one takes too long."""
    if count >= _SPREAD:
        return count // 4 or 1
    return 4 if 4 * query_s <= MAX_FIXED_BATCH_S else count
