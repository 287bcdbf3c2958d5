"""Measures of fairness: the query rates of jobs in time windows, computed from the records of a cluster."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chimera.inference.journal import records


@dataclass(frozen=True)
class Progress:
    """One job over time.

    Attributes
    ----------
    since_s : time of its acceptance.
    first_s : time of its first dispatch; infinite if there was none.
    until_s : time of its last dispatch; infinite if some queries were never dispatched.
    weight : initial weight of its share.
    times_s : times at which its batches were committed, in order.
    counts : number of queries, or tokens, of each batch.
    """

    since_s: float
    first_s: float
    until_s: float
    weight: float
    times_s: NDArray[np.float64]
    counts: NDArray[np.int64]


def progress(history: Iterable[records.Record], *, by_tokens: bool = False) -> dict[str, Progress]:
    """Return the progress of each job, in queries or in tokens. They count as finished when their batch is committed."""
    accepted: dict[str, records.Accepted] = {}
    dispatched: defaultdict[str, list[records.Dispatched]] = defaultdict(list)
    committed: defaultdict[str, list[records.Committed]] = defaultdict(list)
    for record in history:
        if isinstance(record, records.Accepted):
            accepted[record.job] = record
        elif isinstance(record, records.Dispatched):
            dispatched[record.job].append(record)
        elif isinstance(record, records.Committed):
            committed[record.job].append(record)
    found = {}
    for name, job in accepted.items():
        batches = {record.batch: record.count for record in dispatched[name]}
        found[name] = Progress(
            since_s=job.at_s,
            first_s=dispatched[name][0].at_s if dispatched[name] else math.inf,
            until_s=dispatched[name][-1].at_s if sum(batches.values()) == job.queries and batches else math.inf,
            weight=job.weight,
            times_s=np.array([record.at_s for record in committed[name]], np.float64),
            counts=np.array(
                [record.tokens if by_tokens else batches[record.batch] for record in committed[name]], np.int64
            ),
        )
    return found


def rates(job: Progress, edges_s: NDArray[np.float64], window_s: float) -> NDArray[np.float64]:
    """Return the queries, or tokens, finished per second and weight in the windows that begin at ``edges_s``."""
    sums = np.concatenate(([0], np.cumsum(job.counts)))
    ends = np.searchsorted(job.times_s, edges_s + window_s, side="right")
    finished = sums[ends] - sums[np.searchsorted(job.times_s, edges_s, side="right")]
    return np.asarray(finished / window_s / job.weight)


def ratios(
    jobs: Sequence[Progress],
    window_s: float,
    *,
    end_s: float,
    every_s: float = 1.0,
    settle_s: float = 0.0,
) -> NDArray[np.float64]:
    """Return the ratio of the largest to the smallest query rate per weight, in each window that two or more jobs span.

    The ratio is infinite in a window in which a job finishes nothing.

    Parameters
    ----------
    window_s, every_s : length of a window, and distance between the beginnings of two windows.
    end_s : latest end of the last window.
    settle_s : seconds after its acceptance for which a job is ignored, and after the last dispatch of a job during which no
        window ends; batches from before are finished meanwhile.
    """
    edges_s = np.arange(min(job.since_s for job in jobs), end_s - window_s + 1e-9, every_s)
    there = np.array([(job.since_s + settle_s <= edges_s) & (edges_s + window_s <= job.until_s) for job in jobs])
    speeds = np.array([rates(job, edges_s, window_s) for job in jobs])
    after_s = np.array([edges_s + window_s - job.until_s for job in jobs])  # until the end of the window
    several = (there.sum(0) >= 2) & ~((after_s > 0) & (after_s < settle_s)).any(0)
    highest = np.where(there, speeds, -np.inf).max(0)[several]
    lowest = np.where(there, speeds, np.inf).min(0)[several]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(highest > 0, highest / lowest, 1.0)
