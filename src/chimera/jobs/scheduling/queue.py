"""Which jobs begin next. It does no I/O and keeps no clock."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from chimera.core.errors import ConfigurationError
from chimera.jobs.store.records import Job, Use
from chimera.jobs.store.states import OVER, State

_NOMINAL_S = 60.0  # what begins counts at once as if it had lasted so long, so that the next one is another user's
_AGAIN_S, _MOST_AGAIN_S = 0.1, 30.0


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How a queue is kept.

    Attributes
    ----------
    jobs_per_user, workers_per_user : what one user may have at once; 0 is any number.
    half_life_s : after so long a second of a worker counts half in what a user has had.
    patience_s : so long smaller jobs may overtake one that waits for more workers than are free; then they wait too.
    """

    jobs_per_user: int = 0
    workers_per_user: int = 0
    half_life_s: float = 3600.0
    patience_s: float = 60.0

    @property
    def memory_s(self) -> float:
        """What a user had longer ago counts for nothing."""
        return 10 * self.half_life_s

    def __post_init__(self) -> None:
        if not (self.half_life_s > 0 and min(self.jobs_per_user, self.workers_per_user, self.patience_s) >= 0):
            raise ConfigurationError("a queue needs a half-life above 0 s, and limits and patience of at least 0")


@dataclass
class Choice:
    """What the queue decides.

    Attributes
    ----------
    start : jobs to begin now, in this order.
    fail : jobs that can never begin, and why.
    waits : why each of the others waits, by id.
    """

    start: list[Job] = field(default_factory=list)
    fail: list[tuple[Job, str]] = field(default_factory=list)
    waits: dict[str, str] = field(default_factory=dict)


def charged(uses: Iterable[Use], now_s: float, half_life_s: float) -> dict[str, float]:
    """Return the seconds of workers that each user has had, of which each counts half after a half-life.

    So do batch systems share between users over time (Kay and Lauder 1988, "A Fair Share Scheduler").
    """
    found: defaultdict[str, float] = defaultdict(float)
    for use in uses:
        to_s = now_s if use.to_s is None else min(use.to_s, now_s)
        ages_s = now_s - to_s, now_s - min(use.from_s, to_s)
        weight_s = half_life_s / math.log(2) * (2 ** (-ages_s[0] / half_life_s) - 2 ** (-ages_s[1] / half_life_s))
        found[use.user] += use.workers * weight_s
    return dict(found)


def choose(
    waiting: Sequence[Job],
    under_way: Sequence[Job],
    before: Mapping[str, Job],
    uses: Iterable[Use],
    *,
    free: int,
    total: int,
    now_s: float,
    rules: Rules = Rules(),
) -> Choice:
    """Return what begins.

    Higher priorities go first; of one priority the users who have had least; of one user what came first. A job that needs
    more workers than are free is overtaken by smaller ones for as long as it is patient, and then keeps them from beginning:
    it has them once those that run have ended. What no worker would begin comes again after a while, each time a longer one.

    Parameters
    ----------
    waiting, under_way : the jobs that are queued, and those that have workers.
    before : by id, the jobs that waiting ones are to come after.
    uses : which workers users have and had (`Store.uses`).
    free, total : how many workers have nothing to do, and how many there are.
    """
    choice = Choice()
    ready = [job for job in waiting if _may(job, before, choice, total=total, now_s=now_s)]
    had = Counter(charged(uses, now_s, rules.half_life_s))
    jobs, workers = Counter[str](), Counter[str]()
    for job in under_way:
        jobs[job.submission.user] += 1
        workers[job.submission.user] += job.submission.workers

    def turn(job: Job) -> tuple[int, float, float, int]:
        user = job.submission.user
        return -job.submission.priority, had[user] + workers[user] * _NOMINAL_S, job.submitted_s, int(job.id)

    while ready:
        job = min(ready, key=turn)
        ready.remove(job)
        user, needs = job.submission.user, job.submission.workers
        if why := _limit(user, jobs[user] + 1, workers[user] + needs, rules):
            choice.waits[job.id] = why
        elif needs <= free:
            choice.start.append(job)
            free -= needs
            jobs[user] += 1
            workers[user] += needs
        else:
            choice.waits[job.id] = f"it needs {needs} workers, and {free} are free"
            if now_s - job.since_s >= rules.patience_s:
                why = f"job {job.id} has waited longer for {needs} workers"
                choice.waits.update({other.id: why for other in ready})
                break
    return choice


def again_s(refused: int) -> float:
    """Return how long a job waits that no worker would begin, so many times in a row."""
    return min(_AGAIN_S * 2.0 ** min(refused - 1, 30), _MOST_AGAIN_S) if refused else 0.0


def _may(job: Job, before: Mapping[str, Job], choice: Choice, *, total: int, now_s: float) -> bool:
    """Return whether a job could begin if there were room; else say why not."""
    others = [before[other] for other in job.submission.after]
    for other in others:
        if other.state in OVER and other.state is not State.DONE:
            why = f": {other.reason}" if other.reason else ""
            choice.fail.append((job, f"job {other.id}, which it is after, is {other.state}{why}"))
            return False
    unfinished = [other.id for other in others if other.state is not State.DONE]
    if unfinished:
        choice.waits[job.id] = f"it is after job {', '.join(unfinished)}"
    elif job.submission.workers > total:
        choice.waits[job.id] = f"it needs {job.submission.workers} workers, and the cluster has {total}"
    elif now_s < job.since_s + again_s(job.refused):
        choice.waits[job.id] = f"it begins again soon: {job.reason}"
    return job.id not in choice.waits


def _limit(user: str, jobs: int, workers: int, rules: Rules) -> str:
    if 0 < rules.jobs_per_user < jobs:
        return f"{user} has {rules.jobs_per_user} jobs under way, as many as a user may have"
    if 0 < rules.workers_per_user < workers:
        return f"{user} may have {rules.workers_per_user} workers at once"
    return ""
