"""The default time limit of a batch, which ends a computation that hangs and no computation that is slow."""

from __future__ import annotations

_LEAST_S = 60.0
_FACTOR = 20  # a batch may take this many times as long per query as the slowest batch before
_FIRST_S = 1800.0  # before any batch is finished
_FIRST_PER_QUERY_S = 600.0  # the same, if it is longer


def default_limit_s(count: int, slowest_s: float | None) -> float:
    """Return the seconds in which a batch must be computed, without loading the model.

    Parameters
    ----------
    count : number of its queries.
    slowest_s : seconds per query of the job's slowest batch so far; None if no batch is finished.
    """
    if slowest_s is None:
        return max(_FIRST_S, _FIRST_PER_QUERY_S * count)
    return max(_LEAST_S, _FACTOR * slowest_s * count)
