"""The data of the page: jobs with the reason of their speed, workers and their batches, rates over time, events."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from chimera.core.counted import counted
from chimera.inference.api import views
from chimera.inference.coordinator.coordinator import Coordinator, NotCoordinator
from chimera.inference.scheduling.job import Job

MAX_JOBS = 100
"""Number of the last jobs that the page shows, and maximum number of earlier jobs that still run."""
EDGES_S = tuple(base * 10.0**power for power in range(-3, 3) for base in (1, 2, 5))
"""Edges of the latency histogram, in seconds; the first and the last bucket are open."""
SAMPLE_S = 5.0
"""Seconds between two samples of the rates."""
_SAMPLES = 720  # samples in an hour
_TIMES = 2000  # last batches of a job that are in the histogram
_TAIL_BYTES = 32 << 10
_MAX_EVENTS = 100
_MAX_COORDINATORS = 11  # with the most standbys of `chimera infer up`
_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d+ (INFO|WARNING|ERROR) (.*)", re.ASCII)


def page(leader: Coordinator) -> dict[str, Any]:
    """Return the state of the cluster. Main thread of the coordinator only."""
    now_s = leader.now_s()
    jobs = list(leader.scheduler.jobs.values())
    shown = [job for job in jobs[:-MAX_JOBS] if not job.ended][:MAX_JOBS] + jobs[-MAX_JOBS:]
    since = {handle.name: next(iter(handle.batches.values()), None) for handle in leader.workers.values()}
    return {
        "now_s": now_s,
        "leader": leader.lease.owner,
        "epoch": leader.lease.epoch,
        "jobs": [_job(job, leader, now_s) for job in shown],
        "workers": [row | {"since_s": since[row["worker"]]} for row in views.workers(leader)],
        "rates": views.rates_per_weight(leader),
    }


def _job(job: Job, leader: Coordinator, now_s: float) -> dict[str, Any]:
    times = list(islice(reversed(job.times), _TIMES))
    found = views.times(times)
    return {
        "job": job.id,
        "name": job.accepted.name,
        "state": views.state_of(job),
        "queries": job.queries,
        "finished": job.finished,
        "errors": job.errors,
        "weight": job.weight,
        "rate": job.rate(now_s),
        "workers": sorted(job.serving),
        "median_s": found["median_s"],
        "p99_s": found["p99_s"],
        "histogram": _histogram(times),
        "why": job.why if job.ended else reason(job, leader),
        "accepted_s": job.accepted.at_s,
        "ended_s": job.ended_s,
    }


def reason(job: Job, leader: Coordinator) -> str:
    """Return the reason why a job that has not ended is slow; empty if nothing slows it."""
    handles = leader.workers.values()
    available = [handle for handle in handles if handle.available]
    faulty = sorted(handle.name for handle in handles if handle.state in ("hung", "lost"))
    unable = sorted(handle.name for handle in handles if job.key in handle.unloadable)
    others = [each for each in leader.scheduler.jobs.values() if each is not job and not each.ended and each.waiting]
    share = job.weight / (job.weight + sum(each.weight for each in others))
    limited = bool(job.max_workers and job.waiting and len(job.serving) >= job.max_workers)
    parts = (
        (not available, "no worker is available"),
        (faulty, f"{', '.join(faulty)} {'hangs or is' if len(faulty) == 1 else 'hang or are'} lost"),
        (unable, f"{', '.join(unable)} cannot load its model"),
        (limited, f"--max-workers allows {job.max_workers}"),
        (job.loading, f"batches that wait until their worker has loaded the model: {job.loading}"),
        (
            job.waiting and others and available,
            f"it shares {counted(len(available), 'worker')} with {counted(len(others), 'other job')}: its share is {share:.0%}",
        ),
        (job.returned, f"batches of lost workers that wait for another one: {len(job.returned)}"),
        (job.blamed, f"batches that may have killed a worker: {len(job.blamed)}"),
    )
    return "; ".join(text for applies, text in parts if applies)


def _histogram(times: list[tuple[int, float]]) -> list[int]:
    """Return the number of queries in each bucket of the seconds per query; one more bucket than edges."""
    if not times:
        return []
    counts, seconds = np.array(times, np.float64).T
    buckets = np.searchsorted(EDGES_S, seconds / counts, side="right")
    return [int(count) for count in np.bincount(buckets, weights=counts, minlength=len(EDGES_S) + 1)]


class RateHistory:
    """The rates of the last hour, while this process leads. They begin again with each coordinator.

    Parameters
    ----------
    leader : returns the coordinator; raises `NotCoordinator` if this process is not the coordinator.
    """

    def __init__(self, leader: Callable[[], Coordinator]) -> None:
        self._leader = leader
        self._samples: deque[dict[str, Any]] = deque(maxlen=_SAMPLES)

    def samples(self) -> list[dict[str, Any]]:
        """Return the samples, oldest first."""
        return list(self._samples)

    def sample(self) -> None:
        """Take a sample; without a coordinator, delete the earlier ones."""
        try:
            leader = self._leader()
            self._samples.append(leader.call(lambda: views.rates_per_weight(leader)))
        except NotCoordinator:
            self._samples.clear()


def events(logs: Path) -> list[dict[str, str]]:
    """Return the last takeovers, losses of workers and errors from the logs of all coordinators, oldest first."""
    found = [
        event for log in sorted(logs.glob("c*/chimera_status.log"))[:_MAX_COORDINATORS] for event in _events_of(log)
    ]
    return sorted(found, key=lambda event: event["at"])[-_MAX_EVENTS:]


def _events_of(log: Path) -> Iterator[dict[str, str]]:
    try:
        with log.open("rb") as file:
            file.seek(max(file.seek(0, 2) - _TAIL_BYTES, 0))
            text = file.read(_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        matched = _LINE.fullmatch(line)
        if matched and (matched[2] != "INFO" or " leads, with " in matched[3]):
            yield {"at": matched[1], "by": log.parent.name, "level": matched[2].lower(), "text": matched[3][:500]}
