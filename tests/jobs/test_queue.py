"""Selection of the jobs to start next."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.core.errors import ConfigurationError
from chimera.jobs.scheduling.queue import QueueSettings, decayed_usage, retry_delay_s, schedule
from chimera.jobs.store.records import Job, Usage
from chimera.jobs.store.states import State
from jobs.samples import job

_JOBS = st.lists(
    st.builds(
        dict,
        user=st.sampled_from("abc"),
        workers=st.integers(1, 6),
        priority=st.integers(-1, 1),
        since_s=st.floats(0, 100),
        refused=st.integers(0, 3),
    ),
    max_size=12,
)


def _started(waiting: list[Job], free: int = 4, **given: object) -> list[str]:
    options = {"active": [], "dependencies": {}, "usage": [], "total": 8, "now_s": 100.0, **given}
    return [one.id for one in schedule(waiting, free=free, **options).start]  # type: ignore[arg-type]


def test_higher_priorities_start_first_and_then_earlier_jobs() -> None:
    waiting = [job(1), job(2, priority=1), job(3, priority=-1), job(4)]
    assert _started(waiting) == ["2", "1", "4", "3"]
    assert _started(waiting, free=2) == ["2", "1"]


def test_users_alternate_those_with_least_usage_first() -> None:
    waiting = [job(1, user="a"), job(2, user="a"), job(3, user="b"), job(4, user="b")]
    assert _started(waiting) == ["1", "3", "2", "4"]
    assert _started(waiting, usage=[Usage("a", 1, 0.0, 99.0)]) == ["3", "4", "1", "2"]
    assert _started(waiting, usage=[Usage("a", 1, 0.0, None), Usage("b", 1, 0.0, 1.0)])[0] == "3"


def test_usage_counts_half_after_a_half_life() -> None:
    used = [Usage("a", 3, 0.0, 0.001)]
    (now, later) = (decayed_usage(used, at_s, 50.0)["a"] for at_s in (0.001, 50.001))
    assert now == pytest.approx(0.003, rel=1e-4)
    assert later == pytest.approx(now / 2)
    whole = decayed_usage([Usage("a", 1, -1e9, None)], 0.0, 50.0)["a"]  # for ever
    assert whole == pytest.approx(50.0 / math.log(2))
    parts = [Usage("a", 1, -1e9, -7.0), Usage("a", 1, -7.0, -7.0), Usage("a", 1, -7.0, None)]
    assert decayed_usage(parts, 0.0, 50.0)["a"] == pytest.approx(whole)
    assert decayed_usage([Usage("a", 1, 5.0, 9.0)], 1.0, 50.0) == {"a": 0.0}  # the clock was set back


def test_limits_of_a_user_hold_and_do_not_block_other_users() -> None:
    running = [job(9, user="a", workers=2, state=State.RUNNING)]
    waiting = [job(1, user="a", workers=2), job(2, user="a"), job(3, user="b")]
    assert _started(waiting, active=running, settings=QueueSettings(jobs_per_user=1)) == ["3"]
    assert _started(waiting, active=running, settings=QueueSettings(workers_per_user=3)) == ["3", "2"]
    assert _started(waiting[:2], settings=QueueSettings(jobs_per_user=1)) == ["1"]  # jobs that start now count already
    assert _started(waiting[:2], settings=QueueSettings(workers_per_user=2)) == ["1"]
    decision = schedule(
        waiting, running, {}, [], free=4, total=8, now_s=0.0, settings=QueueSettings(jobs_per_user=1, patience_s=0.0)
    ).waits
    assert decision == dict.fromkeys(("1", "2"), "a has 1 active job, the limit of a user")


def test_a_job_waits_for_its_dependencies_and_fails_with_them() -> None:
    first = job(1, state=State.RUNNING)
    then, last = job(2, after=("1",)), job(3, after=("1", "2"))
    waits = schedule([then, last], [first], {"1": first, "2": then}, [], free=4, total=4, now_s=0.0)
    assert waits.start == waits.fail == []
    assert waits.waits == {"2": "it waits for job 1", "3": "it waits for job 1, 2"}
    done = job(1, state=State.DONE)
    assert _started([then, last], dependencies={"1": done, "2": then}) == ["2"]
    lost = job(1, state=State.FAILED, reason="no such data")
    failed = schedule([then, last], [], {"1": lost, "2": then}, [], free=4, total=4, now_s=0.0)
    why = "job 1, which it depends on, is failed: no such data"
    assert (failed.start, failed.fail) == ([], [(then, why), (last, why)])


def test_a_large_job_is_overtaken_until_its_patience_ends() -> None:
    waiting = [job(1, workers=6), job(2, workers=2)]
    assert _started(waiting, settings=QueueSettings(patience_s=200.0)) == ["2"]
    decision = schedule(waiting, [], {}, [], free=4, total=8, now_s=100.0)
    assert decision.start == []
    assert decision.waits == {"1": "it needs 6 workers, and 4 are free", "2": "job 1 has waited longer for 6 workers"}
    assert _started([*waiting, job(3, priority=1)]) == ["3"]


def test_the_patience_of_a_job_starts_when_it_returns_to_the_queue() -> None:
    waiting = [job(1, workers=6, submitted_s=0.0, since_s=90.0), job(2, workers=2, submitted_s=1.0)]
    assert _started(waiting, now_s=149.0, settings=QueueSettings(patience_s=60.0)) == ["2"]
    assert _started(waiting, now_s=150.0, settings=QueueSettings(patience_s=60.0)) == []


def test_a_job_too_large_for_the_cluster_does_not_block_others() -> None:
    waiting = [job(1, workers=9), job(2, workers=2)]
    assert _started(waiting) == ["2"]
    assert (
        schedule(waiting, [], {}, [], free=4, total=8, now_s=1e9).waits["1"]
        == "it needs 9 workers, and the cluster has 8"
    )


def test_refused_jobs_are_retried_with_growing_delay() -> None:
    assert [retry_delay_s(refused) for refused in (0, 1, 2, 3)] == [0.0, 0.1, 0.2, 0.4]
    assert retry_delay_s(10**9) == 30.0
    refused = job(1, refused=3, since_s=10.0, reason="worker w1 is busy")
    assert _started([refused], now_s=10.39) == []
    assert _started([refused], now_s=10.4) == ["1"]


@given(_JOBS, _JOBS, st.integers(0, 8), st.integers(0, 4), st.integers(0, 6), st.floats(0, 100))
def test_for_any_queue_limits_hold_and_each_job_is_in_the_decision_once(
    waiting: list[dict], active: list[dict], free: int, jobs_per_user: int, workers_per_user: int, patience_s: float
) -> None:
    settings = QueueSettings(jobs_per_user=jobs_per_user, workers_per_user=workers_per_user, patience_s=patience_s)
    queued = [job(number, **one) for number, one in enumerate(waiting)]
    running = [job(100 + number, **one) for number, one in enumerate(active)]
    decision = schedule(queued, running, {}, [], free=free, total=8, now_s=100.0, settings=settings)
    assert sorted([one.id for one in decision.start] + list(decision.waits)) == sorted(one.id for one in queued)
    assert sum(one.submission.workers for one in decision.start) <= free
    for user in {one.submission.user for one in decision.start}:
        own = [one for one in running + decision.start if one.submission.user == user]
        assert len(own) <= (jobs_per_user or len(own))
        assert sum(one.submission.workers for one in own) <= (workers_per_user or math.inf)
    left = free - sum(one.submission.workers for one in decision.start)
    if queued and not decision.start and not (jobs_per_user or workers_per_user):  # no worker idles without need
        first = [one for one in queued if one.submission.priority == max(one.submission.priority for one in queued)]
        ready = [one for one in first if one.since_s + retry_delay_s(one.refused) <= 100.0]
        assert all(one.submission.workers > left for one in ready) or any(
            one.submission.workers > left and 100.0 - one.since_s >= patience_s for one in ready
        )


def _days_of(jobs: list[Job], workers: int, end_s: int) -> tuple[dict[str, int], Counter[str]]:
    """Run the queue in steps of 10 s; return the start of each job, and the worker seconds of each user."""
    began: dict[str, int] = {}
    running: list[tuple[Job, int]] = []
    usage: list[Usage] = []
    for now_s in range(0, end_s, 10):
        for one, end in [pair for pair in running if pair[1] <= now_s]:
            running.remove((one, end))
            usage.append(Usage(one.submission.user, one.submission.workers, float(began[one.id]), float(now_s)))
        present = [Usage(one.submission.user, one.submission.workers, float(began[one.id]), None) for one, _ in running]
        waiting = [one for one in jobs if one.id not in began and one.submitted_s <= now_s]
        free = workers - sum(one.submission.workers for one, _ in running)
        active = [one for one, _ in running]
        now = schedule(waiting, active, {}, usage + present, free=free, total=workers, now_s=float(now_s)).start
        began.update({one.id: now_s for one in now})
        running += [(one, now_s + 20 + int(one.id) % 4 * 10) for one in now]
    total = Counter[str]()
    for use in usage:
        total[use.user] += round(use.workers * ((use.to_s or 0.0) - use.from_s))
    return began, total


def test_a_large_job_starts_despite_an_endless_supply_of_small_ones() -> None:
    small = [job(10 + i, user="abc"[i % 3], submitted_s=3.0 * i, since_s=3.0 * i) for i in range(300)]
    large = job(1, user="a", workers=4, submitted_s=100.0, since_s=100.0)
    began, _ = _days_of([large, *small], workers=4, end_s=900)
    assert began["1"] < 900


def test_users_share_workers_equally_however_many_jobs_they_submit() -> None:
    many = [job(i, user="many") for i in range(1, 400)]
    few = [job(1000 + i, user="few", workers=2) for i in range(100)]
    _, total = _days_of(many + few, workers=4, end_s=2000)
    assert total["many"] == pytest.approx(total["few"], rel=0.1)


def test_invalid_settings_are_refused() -> None:
    for wrong in ({"half_life_s": 0.0}, {"patience_s": -1.0}, {"jobs_per_user": -1}, {"half_life_s": math.nan}):
        with pytest.raises(ConfigurationError, match="half-life"):
            QueueSettings(**wrong)  # type: ignore[arg-type]
