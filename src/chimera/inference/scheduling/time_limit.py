"""The default time limit of a batch, which ends a computation that hangs and no computation that is slow.

For the first batch of a job, only the seconds that its model took to load are known. They grow with the size of the
model, as does the time of a query. A query alone that exceeds its limit gets twice the time in the next attempt.
"""

from __future__ import annotations

_MIN_LIMIT_S = 60.0
_FACTOR = 20  # a batch may take this many times as long per query as the slowest batch before
_FIRST_S = 300.0  # before any batch is finished
_FIRST_PER_QUERY_S = 60.0  # limit per query before any batch is finished, if that is longer
_FIRST_LOADS = 20  # the same for each query, as a multiple of the load time of the model, if that is longer
_MAX_SINGLE_QUERY_S = 1800.0  # limit of a single query before any batch is finished


def default_limit_s(count: int, slowest_s: float | None, kills: int = 0) -> float:
    """Return the seconds in which a batch must be computed, without loading the model.

    Parameters
    ----------
    count : number of its queries, or of turns of queries that the model computes at once.
    slowest_s : seconds of each of these in the job's slowest batch so far; None if no batch is finished.
    kills : number of attempts that have failed.
    """
    if slowest_s is None:
        first_s = max(_FIRST_S, _FIRST_PER_QUERY_S * count)
        return first_s if count > 1 else min(first_s * 2**kills, _MAX_SINGLE_QUERY_S)
    return max(_MIN_LIMIT_S, _FACTOR * slowest_s * count)


def default_loads(count: int, slowest_s: float | None) -> float:
    """Return the minimum of the limit, as a multiple of the model's load time; 0 once a batch is finished."""
    return float(_FIRST_LOADS * count) if slowest_s is None else 0.0
