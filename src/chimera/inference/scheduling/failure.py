"""The consequence of a batch that ended its process: its halves are tried, until the query that ends processes is alone."""

from __future__ import annotations

from chimera.inference.journal import records
from chimera.inference.scheduling.batch import Running
from chimera.inference.scheduling.job import Job

MAX_KILLS = 3
"""Number of attempts of a query that may end with a kill, the last one alone in its batch, before its result is an error."""


def failure_of(
    job: Job, run: Running, reason: str, now_s: float, *, divisible: bool = True
) -> records.Failed | records.Poisoned:
    """Return the record of a batch that killed its process.

    Parameters
    ----------
    divisible : whether a query may be the cause, so that halves of the batch are tried.
    """
    batch = run.batch
    killed = [*job.blamed.get(batch.number, []), run.worker]
    halves = divisible and batch.count > 1
    if not halves and len(killed) >= MAX_KILLS:
        what = "this query" if batch.count == 1 else "this batch"
        text = f"{what} has no result after {len(killed)} attempts (on {', '.join(killed)}): {reason}"
        return records.Poisoned(job.id, batch.number, text, now_s)
    parts = list(range(job.batches, job.batches + 1 + halves))
    return records.Failed(job.id, batch.number, run.worker, reason, parts, now_s)
