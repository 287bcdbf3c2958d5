"""How many queries the next batch of a job has: large enough to be efficient, small enough that no other job waits long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

BATCH_S = 0.3
"""Target seconds of a batch of automatic size."""
SHARED_BATCH_S = 0.2
"""The same while other jobs wait."""
MAX_BATCH_S = 0.6
"""The same on many workers: there a worker becomes free soon anyway, and the coordinator handles fewer batches."""
OPEN_BATCH_S = 0.1
"""The same for an open job, whose clients wait for the answers."""
LONGEST_S = 1.0
"""Maximum seconds of a batch whose size the user has set."""
SHARE_S = 0.25
"""While other jobs wait, a batch has at most the queries that its job should finish in this many seconds."""
UNMEASURED = 16
"""Maximum number of queries in a batch while the time of a query is unknown."""
UNMEASURED_S = 0.05
"""Assumed seconds of such a query. So the other jobs fill no worker with large batches while a new job is measured."""
_DISPATCH_S = 0.002  # of a worker, for each batch: messages and the journal
_WORKER_S = 0.02  # target seconds of a batch for each worker of the cluster
_GROWTH = 8  # an automatic batch is at most this many times as large as the largest before
_EFFICIENT = 4  # times the fixed seconds of a batch that its queries should take: 80 % of its time
_SMOOTHING = 0.3  # weight of the last batch in the means of a size
_MEMORY = 100  # batches after which the mean of a size is forgotten
_SPREAD = 4  # ratio of two sizes from which the fixed seconds are estimated


@dataclass
class _Mean:
    count: float
    seconds: float
    seen: int  # number of batches before the last one of this size


@dataclass
class BatchCost:
    """The seconds of a job's batches, as a line: ``fixed_s + query_s * count``.

    The line is fitted to the mean of each size (by powers of two), with relative errors. Fixed seconds are estimated from sizes
    that differ by a factor of four or more; else they are 0. A size that has not occurred for a hundred batches is forgotten,
    so that a single slow batch has no lasting effect.

    Attributes
    ----------
    largest : the largest number of queries of a batch so far.
    query_s : seconds of one more query; None before the first batch.
    fixed_s : seconds of a batch besides those.
    """

    largest: int = 0
    query_s: float | None = None
    fixed_s: float = 0.0
    _means: dict[int, _Mean] = field(default_factory=dict)
    _seen: int = 0

    def observe(self, count: int, seconds: float) -> None:
        """Take the seconds of a finished batch into account."""
        self._seen += 1
        seconds = max(seconds, 1e-9)
        mean = self._means.setdefault(count.bit_length(), _Mean(count, seconds, self._seen))
        mean.count += _SMOOTHING * (count - mean.count)
        mean.seconds += _SMOOTHING * (seconds - mean.seconds)
        mean.seen = self._seen
        self._means = {size: each for size, each in self._means.items() if self._seen - each.seen < _MEMORY}
        self._fit()

    def _fit(self) -> None:
        means = self._means.values()
        ones = [1 / each.seconds for each in means]
        counts = [each.count / each.seconds for each in means]
        both, squares = sum(a * b for a, b in zip(ones, counts, strict=True)), sum(value**2 for value in counts)
        self.query_s, self.fixed_s = sum(counts) / squares, 0.0
        if max(each.count for each in means) < _SPREAD * min(each.count for each in means):
            return
        of_ones = sum(value**2 for value in ones)
        determinant = of_ones * squares - both**2
        fixed_s = (sum(ones) * squares - sum(counts) * both) / determinant
        if fixed_s > 0:
            least_s = min(each.seconds / each.count for each in means) / 50  # noise may make the slope negative
            self.fixed_s = fixed_s
            self.query_s = max((sum(counts) * of_ones - sum(ones) * both) / determinant, least_s)


class Pace(NamedTuple):
    """What the batches of all jobs have in common at a time.

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
    if cost.query_s is None:
        return min(wanted, UNMEASURED) if wanted else max(cost.largest, 1)
    seconds = LONGEST_S if wanted else target_s
    most = (seconds - cost.fixed_s) / cost.query_s
    if per_s is not None:
        most = min(most, SHARE_S * per_s)
    overhead_s = cost.fixed_s + _DISPATCH_S
    efficient = max(min(_EFFICIENT * overhead_s, seconds - cost.fixed_s), cost.fixed_s) / cost.query_s
    return max(min(round(max(most, efficient)), wanted or _GROWTH * max(cost.largest, 1)), 1)
