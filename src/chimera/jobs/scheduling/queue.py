"""Fair-share queue: selection of the jobs to start next. It has no I/O and no clock."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from chimera.core.counted import counted
from chimera.core.errors import ConfigurationError
from chimera.jobs.store.records import Job, Usage
from chimera.jobs.store.states import TERMINAL, State

_NOMINAL_S = 60.0  # assumed duration of a new job, so that its usage counts at once and another user is next
_RETRY_S, _MAX_RETRY_S = 0.1, 30.0


@dataclass(frozen=True, kw_only=True)
class QueueSettings:
    """Settings of a queue.

    Attributes
    ----------
    jobs_per_user, workers_per_user : limits of active jobs and workers of one user; 0 is no limit.
    half_life_s : time after which past usage of workers counts half, in seconds.
    patience_s : time in seconds during which smaller jobs may overtake one that needs more workers than are free.
    """

    jobs_per_user: int = 0
    workers_per_user: int = 0
    half_life_s: float = 3600.0
    patience_s: float = 60.0

    @property
    def usage_window_s(self) -> float:
        """Age in seconds from which past usage is ignored."""
        return 10 * self.half_life_s

    def __post_init__(self) -> None:
        if not (self.half_life_s > 0 and min(self.jobs_per_user, self.workers_per_user, self.patience_s) >= 0):
            raise ConfigurationError("a queue needs a half-life above 0 s, and limits and a patience of at least 0")


@dataclass
class SchedulingDecision:
    """Decision of the queue.

    Attributes
    ----------
    start : jobs to start now, in this order.
    fail : jobs that can never start, with the reason.
    waits : reason why each other job waits, by id.
    """

    start: list[Job] = field(default_factory=list)
    fail: list[tuple[Job, str]] = field(default_factory=list)
    waits: dict[str, str] = field(default_factory=dict)


def decayed_usage(usage: Iterable[Usage], now_s: float, half_life_s: float) -> dict[str, float]:
    """Return the worker seconds of each user, with exponential decay.

    Batch systems share machines between users over time in this way (Kay and Lauder 1988, "A Fair Share Scheduler").
    """
    seconds: defaultdict[str, float] = defaultdict(float)
    for use in usage:
        to_s = now_s if use.to_s is None else min(use.to_s, now_s)
        ages_s = now_s - to_s, now_s - min(use.from_s, to_s)
        weight_s = half_life_s / math.log(2) * (2 ** (-ages_s[0] / half_life_s) - 2 ** (-ages_s[1] / half_life_s))
        seconds[use.user] += use.workers * weight_s
    return dict(seconds)


def schedule(
    waiting: Sequence[Job],
    active: Sequence[Job],
    dependencies: Mapping[str, Job],
    usage: Iterable[Usage],
    *,
    free: int,
    total: int,
    now_s: float,
    settings: QueueSettings = QueueSettings(),
) -> SchedulingDecision:
    """Return the jobs to start, and the reasons why the others wait.

    Jobs are ordered by priority, then by the usage of their user (least first), then by time of submission. Smaller jobs may
    overtake a job that needs more workers than are free, until its patience ends. Then no later job starts before it. Refused
    jobs are tried again after a delay that doubles each time.

    Parameters
    ----------
    waiting, active : queued jobs, and jobs that have workers.
    dependencies : jobs that waiting jobs depend on, by id.
    usage : current and past usage of workers (`Store.usage`).
    free, total : number of free workers, and of all workers.
    now_s : current time, in seconds since the epoch.
    """
    decision = SchedulingDecision()
    ready = [job for job in waiting if _is_eligible(job, dependencies, decision, total=total, now_s=now_s)]
    consumed = Counter(decayed_usage(usage, now_s, settings.half_life_s))
    jobs, workers = Counter[str](), Counter[str]()
    for job in active:
        jobs[job.submission.user] += 1
        workers[job.submission.user] += job.submission.workers

    def order(job: Job) -> tuple[int, float, float, int]:
        user = job.submission.user
        return -job.submission.priority, consumed[user] + workers[user] * _NOMINAL_S, job.submitted_s, int(job.id)

    while ready:
        job = min(ready, key=order)
        ready.remove(job)
        user, needed = job.submission.user, job.submission.workers
        if reason := _over_limit(user, jobs[user] + 1, workers[user] + needed, settings):
            decision.waits[job.id] = reason
        elif needed <= free:
            decision.start.append(job)
            free -= needed
            jobs[user] += 1
            workers[user] += needed
        else:
            decision.waits[job.id] = (
                f"it needs {counted(needed, 'worker')}, and {free} {'is' if free == 1 else 'are'} free"
            )
            if now_s - job.since_s >= settings.patience_s:
                reason = f"job {job.id} has waited longer for {counted(needed, 'worker')}"
                decision.waits.update({other.id: reason for other in ready})
                break
    return decision


def retry_delay_s(refused: int) -> float:
    """Return the delay in seconds before the next start of a job that was refused this many times in a row."""
    return min(_RETRY_S * 2.0 ** min(refused - 1, 30), _MAX_RETRY_S) if refused else 0.0


def _is_eligible(
    job: Job, dependencies: Mapping[str, Job], decision: SchedulingDecision, *, total: int, now_s: float
) -> bool:
    """Return whether a job could start if enough workers were free; else record the reason in the decision."""
    others = [dependencies[other] for other in job.submission.after]
    for other in others:
        if other.state in TERMINAL and other.state is not State.DONE:
            reason = f": {other.reason}" if other.reason else ""
            decision.fail.append((job, f"job {other.id}, which it depends on, is {other.state}{reason}"))
            return False
    unfinished = [other.id for other in others if other.state is not State.DONE]
    if unfinished:
        decision.waits[job.id] = f"it waits for job {', '.join(unfinished)}"
    elif job.submission.workers > total:
        decision.waits[job.id] = f"it needs {counted(job.submission.workers, 'worker')}, and the cluster has {total}"
    elif now_s < job.since_s + retry_delay_s(job.refused):
        decision.waits[job.id] = f"it is tried again soon: {job.reason}"
    return job.id not in decision.waits


def _over_limit(user: str, jobs: int, workers: int, settings: QueueSettings) -> str:
    if 0 < settings.jobs_per_user < jobs:
        return f"{user} has {counted(settings.jobs_per_user, 'active job')}, the limit of a user"
    if 0 < settings.workers_per_user < workers:
        return f"{user} may have {counted(settings.workers_per_user, 'worker')} at once"
    return ""
