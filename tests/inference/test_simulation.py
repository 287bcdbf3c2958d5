"""Fairness in virtual time, with ten and with a thousand workers, and a comparison of the policies."""

import heapq
import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest

from chimera.core.errors import ConfigurationError
from chimera.inference.journal import records
from chimera.inference.policies.policy import POLICIES
from chimera.inference.scheduling.fairness import Progress, progress, ratios
from chimera.inference.scheduling.scenario import Conditions, Fault, SimulatedJob
from chimera.inference.scheduling.scheduler import Scheduler
from chimera.inference.scheduling.simulation import Simulation

ENDLESS = 10**9
TIMES = {  # seconds a query of each job
    "two": (0.01, 0.024),
    "two, far apart": (0.01, 0.1),
    "three": (0.01, 0.024, 0.06),
    "five": (0.01, 0.013, 0.016, 0.02, 0.024),
}
SETTLE_S = 2.0
"""Seconds that are ignored after a job's arrival, while batches from before are finished."""


def simulate(*jobs, policy="fair-share", **conditions):
    return Simulation(POLICIES.create(policy), jobs, Conditions(**conditions)).run()


def endless(times, every_s=0.0, **more):
    return [SimulatedJob(seconds=t, queries=ENDLESS, at_s=n * every_s, **more) for n, t in enumerate(times)]


def unequal(workers):
    draw = random.Random(1)
    return [draw.uniform(0.7, 1.3) for _ in range(workers)]


def fairness_of(outcome, window_s, **more):
    found = ratios(list(progress(outcome.history).values()), window_s, end_s=outcome.end_s, **more)
    assert len(found) >= 10
    return found


def check_goals(outcome):
    """Check what the cluster promises; rates are those of finished batches, as commands show them."""
    assert fairness_of(outcome, 60.0, settle_s=SETTLE_S).max() <= 1.05
    assert np.mean(fairness_of(outcome, 10.0, settle_s=SETTLE_S) <= 1.20) >= 0.95
    assert outcome.shares()[0] >= 0.99
    assert all(job.first_s - job.since_s <= 1.0 for job in progress(outcome.history).values())


@pytest.mark.parametrize("times", TIMES)
def test_fair_share_meets_its_goals_with_ten_unequal_workers_and_jobs_that_come_one_by_one(times):
    check_goals(simulate(*endless(TIMES[times], 10.0), speeds=unequal(10), warm=True, until_s=130.0))


@pytest.mark.long
@pytest.mark.parametrize("times", ["two, far apart", "five"])
def test_fair_share_meets_its_goals_with_a_thousand_workers(times):
    check_goals(simulate(*endless(TIMES[times], 2.0), speeds=unequal(1000), warm=True, until_s=85.0))


def goal_cases():
    """Yield settings of 2 to 6 jobs, times per query up to 1 : 30, weights up to 1 : 5, in several orders."""
    for number, workers, order, weighting in itertools.product(
        range(2, 7), (2, 4, 10), ("up", "down", "mixed"), ("equal", "up", "down")
    ):
        times = [0.002 * 30 ** (place / (number - 1)) for place in range(number)]
        weights = [1.0 if weighting == "equal" else 1 + 4 * place / (number - 1) for place in range(number)]
        if order == "mixed":
            random.Random(number).shuffle(times)
        yield workers, times[:: -1 if order == "down" else 1], weights[:: -1 if weighting == "down" else 1]


def figures_of(cases):
    """Return, for each case, the worst ratios over 10 and 60 s, and the least share of the time that workers compute.

    The last job arrives after 20 s. Of more than two jobs, the first leaves after about 60 s.
    """
    found = []
    for place, (workers, times, weights) in enumerate(cases):
        rate = workers / sum(seconds * weight for seconds, weight in zip(times, weights, strict=True))
        jobs = [
            SimulatedJob(seconds=seconds, weight=weight, queries=ENDLESS)
            for seconds, weight in zip(times, weights, strict=True)
        ]
        jobs[-1] = replace(jobs[-1], at_s=20.0)
        if len(jobs) > 2:
            jobs[0] = replace(jobs[0], queries=int(60 * rate * weights[0]))
        speeds = unequal(workers) if place % 2 else [1.0] * workers
        outcome = simulate(*jobs, speeds=speeds, warm=True, until_s=110.0)
        ratios_of = [fairness_of(outcome, span_s, settle_s=SETTLE_S).max() for span_s in (10.0, 60.0)]
        found.append((*ratios_of, outcome.shares()[0]))
    return np.transpose(found)


def test_few_workers_share_their_time_in_each_window_among_jobs_of_any_cost_and_weight():
    short, long, computing = figures_of(itertools.islice(goal_cases(), 0, None, 9))
    assert short.max() <= 1.10
    assert long.max() <= 1.03
    assert computing.min() >= 0.98


@pytest.mark.long
def test_few_workers_share_their_time_in_each_window_in_all_cases():
    """Two of the 135 cases miss the goal of 1.10: the rates change fivefold within a window when a job comes or leaves."""
    short, long, computing = figures_of(goal_cases())
    assert short.max() <= 1.13
    assert np.sum(short > 1.10) <= 2
    assert long.max() <= 1.03
    assert computing.min() >= 0.98


def test_a_batch_size_of_500_does_not_make_a_newcomer_wait():
    large = SimulatedJob(seconds=0.06, queries=ENDLESS, batch_size=500)
    for others in ([], endless((0.03,))):
        jobs = [large, *others, SimulatedJob(seconds=0.01, queries=ENDLESS, at_s=20.0, batch_size=500)]
        outcome = simulate(*jobs, speeds=[1.0] * 2, warm=True, until_s=60.0)
        new = list(progress(outcome.history).values())[-1]
        assert new.times_s[0] - new.since_s <= 1.2


def test_cheap_queries_beside_expensive_ones_are_not_computed_one_by_one():
    outcome = simulate(*endless((0.003, 0.03, 0.062)), speeds=[1.0] * 2, warm=True, until_s=60.0)
    cheap, *_ = progress(outcome.history).values()
    assert np.mean(cheap.counts) >= 3


def test_models_with_a_fixed_time_per_batch_get_batches_that_are_worth_it():
    """The fixed 50 ms are as long as 50 queries, so that a batch of one query is 2 % efficient."""
    jobs = endless((0.001, 0.001, 0.001), fixed_s=0.05)
    outcome = simulate(*jobs, speeds=[1.0] * 2, warm=True, until_s=60.0)
    found = progress(outcome.history).values()
    assert sum(job.counts.sum() for job in found) * 0.001 >= 0.65 * 2 * 60
    assert fairness_of(outcome, 10.0, settle_s=SETTLE_S).max() <= 1.10


@pytest.mark.parametrize("weights", [pytest.param((1, 1, 1), marks=pytest.mark.long), (1, 2, 1)])
def test_by_tokens_the_token_rates_meet_the_same_goals_as_query_rates(weights):
    """Answers of 40, 160 and 400 tokens take 1 ms a token. By queries, the token rates would differ by a factor of 10."""
    jobs = [
        SimulatedJob(seconds=tokens / 1000, tokens=tokens, queries=ENDLESS, weight=weight)
        for tokens, weight in zip((40, 160, 400), weights, strict=True)
    ]
    conditions = Conditions(speeds=unequal(10), warm=True, until_s=200.0)

    def token_ratios(fair_by, window_s):
        outcome = Simulation(POLICIES.create("fair-share"), jobs, conditions, fair_by=fair_by).run()
        found = progress(outcome.history, by_tokens=True)
        return ratios(list(found.values()), window_s, end_s=outcome.end_s, settle_s=SETTLE_S)

    assert token_ratios("tokens", 60.0).max() <= 1.05
    assert np.mean(token_ratios("tokens", 10.0) <= 1.20) >= 0.95
    assert token_ratios("queries", 60.0).min() > 5


def test_models_that_compute_queries_together_have_full_batches_and_equal_token_rates():
    """Answers of 40, 160 and 400 tokens take 10 ms a token, for 16 queries as for one. Alone, a query would be a batch."""
    jobs = [
        SimulatedJob(seconds=tokens / 100, tokens=tokens, at_once=16, queries=ENDLESS, fixed_s=0.01)
        for tokens in (40, 160, 400)
    ]
    conditions = Conditions(speeds=[1.0] * 4, warm=True, until_s=300.0)
    outcome = Simulation(POLICIES.create("fair-share"), jobs, conditions, fair_by="tokens").run()
    found = progress(outcome.history, by_tokens=True)
    assert ratios(list(found.values()), 120.0, end_s=outcome.end_s, settle_s=20.0).max() <= 1.15
    assert sum(job.counts.sum() for job in found.values()) >= 0.9 * 4 * 16 * 100 * 300


def test_rates_are_as_the_weights():
    jobs = [SimulatedJob(seconds=0.01 * (1 + n), queries=ENDLESS, weight=2.0**n) for n in range(3)]
    outcome = simulate(*jobs, warm=True, until_s=80.0)
    assert fairness_of(outcome, 60.0, settle_s=SETTLE_S).max() <= 1.05
    first, *_, last = (job.counts.sum() for job in progress(outcome.history).values())
    assert last / first == pytest.approx(4.0, rel=0.05)


@pytest.mark.parametrize(
    ("policy", "least", "most"),
    [
        ("equal-split", 2.35, 2.45),  # as the times per query
        ("rate-ratio", 1.45, 1.7),  # as their square roots, as far as whole workers go: 1.55
        ("lowest-rate", 1.1, 1.6),  # it overshoots
        ("fair-share", 1.0, 1.05),
    ],
)
def test_how_far_apart_other_policies_leave_the_rates(policy, least, most):
    """With batches of about 0.6 s. Those of ``auto`` are shorter, so that `lowest-rate` overshoots less."""
    jobs = [SimulatedJob(seconds=seconds, queries=ENDLESS, batch_size=round(0.6 / seconds)) for seconds in TIMES["two"]]
    outcome = simulate(*jobs, policy=policy, warm=True, until_s=90.0)
    assert least <= np.median(fairness_of(outcome, 10.0, settle_s=30.0)) <= most


def test_first_come_lets_the_second_job_wait():
    outcome = simulate(*endless(TIMES["two"]), policy="first-come", warm=True, until_s=30.0)
    assert np.all(fairness_of(outcome, 10.0) == math.inf)


def test_one_model_at_a_time_in_memory_is_changed_seldom():
    outcome = simulate(*endless(TIMES["two"], load_s=8.0), keep_models=1, until_s=150.0)
    computing, loading = outcome.shares()
    assert computing >= 0.6  # 0.16 where any number of workers may load a model at once
    assert computing + loading >= 0.99


def test_a_model_that_never_loads_takes_no_more_than_an_even_share():
    broken = SimulatedJob(seconds=0.01, queries=ENDLESS, at_s=10.0, load_s=1e9)
    outcome = simulate(*endless((0.01,)), broken, until_s=60.0)
    assert outcome.shares()[1] <= 0.5
    (job, _) = progress(outcome.history).values()
    assert np.diff(job.times_s).max() < 1.0


def test_two_jobs_that_begin_nearly_together_on_a_cold_cluster_load_their_models_at_the_same_time():
    jobs = [SimulatedJob(seconds=0.01, queries=ENDLESS, at_s=at_s, load_s=4.0) for at_s in (0.0, 1.0)]
    outcome = simulate(*jobs, speeds=[1.0] * 2, until_s=60.0)
    assert all(job.times_s[0] - job.since_s <= 4.1 for job in progress(outcome.history).values())


def test_a_job_that_is_alone_on_a_cold_cluster_has_all_workers_after_two_loads():
    outcome = simulate(*endless((0.01,), load_s=2.0), speeds=[1.0] * 4, until_s=5.0)
    assert {span.worker for span in outcome.spans if span.loaded_s <= 4.1} == {0, 1, 2, 3}


@pytest.mark.parametrize("weight", [1.0, 2.0])
def test_a_served_model_that_is_always_asked_and_a_job_progress_as_their_weights(weight):
    """Forty clients ask again as soon as they are answered; batches of the served model are a sixth of the job's."""
    seconds, model = {"job": 0.024, "served": 0.01}, {"kind": "test"}
    held, happened, running = Scheduler(POLICIES.create("fair-share")), [], []

    def note(record):
        held.apply(record)
        happened.append(record)

    def offer(worker, now_s):
        chosen = held.next_for(worker, {held.job("job").key}, 4, now_s)
        note(chosen)
        took_s = chosen.count * seconds[chosen.job]
        heapq.heappush(running, (now_s + took_s, worker, took_s, chosen))

    note(records.Accepted("job", "", "", model, ENDLESS, 1.0, 0, 0, 0.0))
    note(records.Accepted("served", "", "", model, 0, weight, 0, 0, 0.0, open=True))
    note(records.Arrived("served", 40, 0.0))
    for worker in "abcd":
        offer(worker, 0.0)
    while running[0][0] < 200.0:
        now_s, worker, took_s, done = heapq.heappop(running)
        note(records.Committed(done.job, done.batch, worker, took_s, 0, now_s))
        if done.job == "served":
            note(records.Arrived("served", done.count, now_s))
        offer(worker, now_s)
    found = progress(happened)
    assert ratios(list(found.values()), 60.0, end_s=200.0, settle_s=SETTLE_S).max() <= 1.05
    assert np.mean(ratios(list(found.values()), 10.0, end_s=200.0, settle_s=SETTLE_S) <= 1.2) >= 0.95


def test_no_query_is_lost_whatever_befalls_the_workers():
    draw = random.Random(3)
    faults = [
        Fault(
            worker=draw.randrange(6), at_s=at_s, kind=draw.choice(("kill", "hang")), duration_s=draw.uniform(0.5, 5.0)
        )
        for at_s in np.arange(1.0, 60.0, 0.7)
    ]
    jobs = [SimulatedJob(seconds=t, queries=2500, at_s=5.0 * n, load_s=0.5) for n, t in enumerate((0.01, 0.02, 0.05))]
    outcome = simulate(*jobs, speeds=unequal(6), faults=faults)
    kinds = {type(record) for record in outcome.history}
    assert {records.Returned, records.Committed} <= kinds
    ranges = {
        (r.job, r.batch): range(r.first, r.first + r.count)
        for r in outcome.history
        if isinstance(r, records.Dispatched)
    }
    for job in "012":
        done = [
            ranges[job, r.batch]
            for r in outcome.history
            if isinstance(r, records.Committed | records.Poisoned) and r.job == job
        ]
        assert sorted(itertools.chain(*done)) == list(range(2500))
    again = Scheduler(POLICIES.create("fair-share"))
    for record in outcome.history:
        again.apply(record)
    assert [job.ended for job in again.jobs.values()] == ["done"] * 3


def test_the_same_seed_gives_the_same_records_and_another_one_others():
    def run(seed):
        jobs = endless(TIMES["three"], 3.0, load_s=1.0)
        return simulate(*jobs, seed=seed, keep_models=2, faults=[Fault(worker=1, at_s=4.0)], until_s=15.0)

    assert run(7) == run(7)
    assert run(7).history != run(8).history


def test_ratios_look_at_jobs_only_while_they_run():
    def job(since_s, until_s, every_s, count):
        times_s = np.arange(since_s + every_s, until_s + 1e-9, every_s)
        return Progress(since_s, since_s, until_s, 1.0, times_s, np.full(len(times_s), count))

    steady, slow = job(0.0, 100.0, 0.5, 5), job(20.0, 80.0, 1.0, 5)
    found = ratios([steady, slow], 10.0, end_s=100.0)
    assert found.tolist() == [2.0] * 51  # windows from 20 to 70 s
    assert len(ratios([steady, slow], 10.0, end_s=100.0, settle_s=5.0)) == 46
    several = [steady, slow, steady]
    assert len(ratios(several, 10.0, end_s=100.0)) == 91
    assert (
        len(ratios(several, 10.0, end_s=100.0, settle_s=5.0)) == 91 - 5 - 4
    )  # from 0 to 4 s, and ends from 81 to 84 s
    idle = Progress(20.0, math.inf, math.inf, 1.0, np.array([]), np.array([], int))
    assert np.all(ratios([steady, idle], 10.0, end_s=100.0) == math.inf)


def test_a_job_that_takes_no_time_is_refused():
    with pytest.raises(ConfigurationError, match="seconds and weight above 0"):
        SimulatedJob(seconds=0.0, queries=1)
