"""The scheduler: no query is lost or finished twice, charges are fair, and the same records give the same state."""

import gc
import math
import tracemalloc
from collections import Counter
from dataclasses import asdict
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from chimera.core.errors import ConfigurationError
from chimera.inference.journal import records
from chimera.inference.policies.policy import POLICIES
from chimera.inference.scheduling.batch import Batch
from chimera.inference.scheduling.failure import MAX_KILLS
from chimera.inference.scheduling.job import FIRST_LOAD_S
from chimera.inference.scheduling.scheduler import Scheduler
from chimera.inference.scheduling.time_limit import default_limit_s

WORKERS = ("ann", "bob", "cy", "dee")
weights = st.sampled_from((0.5, 1.0, 2.0, 3.0))
sizes = st.integers(0, 7)
limits = st.integers(0, 2)


def accepted(job, queries=10**6, *, weight=1.0, batch_size=10, max_workers=0, at_s=0.0, open_=False):
    model = {"kind": "test", "name": job}
    return records.Accepted(job, job, job, model, queries, weight, batch_size, max_workers, at_s, open_)


def scheduler(*happened, policy="fair-share"):
    made = Scheduler(POLICIES.create(policy))
    for record in happened:
        made.apply(record)
    return made


def dispatch(held, worker, now_s=0.0, loaded=None):
    """Give a worker, that has all models loaded unless they are given, what is next."""
    models = {job.key for job in held.jobs.values()} if loaded is None else loaded
    found = held.next_for(worker, models, len(WORKERS), now_s)
    if found is not None:
        held.apply(found)
    return found


def queries_of(dispatches):
    """Return the number of queries of each job in some dispatches."""
    counts = Counter()
    for one in dispatches:
        counts[one.job] += one.count
    return counts


def finish(held, batch, now_s=0.0, seconds=0.5):
    held.apply(records.Committed(batch.job, batch.batch, batch.worker, seconds, 0, now_s))


def state(held, now_s):
    """Return all state that affects later decisions."""
    rates = {name: job.rate(now_s) for name, job in held.jobs.items()}
    return {name: asdict(job) for name, job in held.jobs.items()}, rates


class Cluster(RuleBasedStateMachine):
    """Anything may happen, in any order; at the end each query of each job that was not cancelled has one result."""

    @initialize(policy=st.sampled_from([entry.name for entry in POLICIES.entries()]))
    def begin(self, policy):
        self.policy, self.now_s = policy, 0.0
        self.held = scheduler(policy=policy)
        self.happened = []
        self.has = {worker: [] for worker in WORKERS}  # what each computes, the first first; late ones too
        self.results = {}
        self.kills = Counter()

    def note(self, record):
        """Apply a record, and compare what it does to the charge of its job with what it should do."""
        before = self.held.jobs.get(record.job)
        charged, runs = (before.charged, dict(before.running)) if before else (0.0, {})
        self.held.apply(record)
        self.happened.append(record)
        job = self.held.jobs[record.job]
        match record:
            case records.Dispatched():
                assert job.charged == charged + record.count / job.weight
            case records.Returned() | records.Failed() if record.batch in runs:
                assert charged - runs[record.batch].charge <= job.charged <= charged
            case _ if before is not None:
                assert job.charged == charged

    @rule(queries=st.integers(0, 40), weight=weights, batch_size=sizes, max_workers=limits)
    def submit(self, queries, weight, batch_size, max_workers):
        active = [job.charged for job in self.held.jobs.values() if job.waiting]
        name = str(len(self.held.jobs))
        self.note(
            accepted(name, queries, weight=weight, batch_size=batch_size, max_workers=max_workers, at_s=self.now_s)
        )
        self.results[name] = []
        if active:
            assert self.held.job(name).charged == min(active)

    @rule(weight=weights, batch_size=sizes, max_workers=limits)
    def serve(self, weight, batch_size, max_workers):
        name = str(len(self.held.jobs))
        given = {"weight": weight, "batch_size": batch_size, "max_workers": max_workers, "at_s": self.now_s}
        self.note(accepted(name, 0, **given, open_=True))
        self.results[name] = []

    @precondition(lambda self: any(job.open and not job.ended for job in self.held.jobs.values()))
    @rule(data=st.data(), arrived=st.integers(1, 9), closes=st.integers(0, 5))
    def ask(self, data, arrived, closes):
        served = sorted(job.id for job in self.held.jobs.values() if job.open and not job.ended)
        job = data.draw(st.sampled_from(served))
        self.note(records.Arrived(job, arrived, self.now_s))
        held = self.held.job(job)
        self.note(records.Withdrawn(job, data.draw(st.integers(0, held.queries - held.cursor)), self.now_s))
        if closes == 0:
            self.note(records.Closed(job, self.now_s))
            assert bool(held.ended) == (held.finished == held.queries)

    @rule(worker=st.sampled_from(WORKERS), all_loaded=st.booleans())
    def work(self, worker, all_loaded):
        models = {job.key for job in self.held.jobs.values() if all_loaded or int(job.id) % 2}
        found = self.held.next_for(worker, models, len(WORKERS), self.now_s)
        waiting = [job for job in self.held.jobs.values() if job.can_use(worker)]
        alone = len(waiting) == 1 and waiting[0].is_first_load(self.now_s, models)
        assert (found is not None) == (bool(waiting) and not alone)
        if found is not None:
            job = self.held.job(found.job)
            assert job in waiting
            assert found.cold == (job.key not in models)
            assert not job.max_workers or len({*job.serving, worker}) <= max(job.max_workers, len(job.serving))
            self.note(found)
            self.has[worker].append(found)

    @precondition(lambda self: any(self.has.values()))
    @rule(data=st.data(), twice=st.booleans(), took_s=st.floats(0.0, 3.0))
    def commit(self, data, twice, took_s):
        worker = data.draw(st.sampled_from([worker for worker in WORKERS if self.has[worker]]))
        batch = self.has[worker].pop(0)
        self.now_s += took_s
        for _ in range(1 + twice):
            self.result(batch, took_s)

    def result(self, batch, took_s):
        wanted = self.held.unfinished_batch(batch.job, batch.batch)
        if wanted is None:
            return
        job = self.held.job(batch.job)
        if batch.batch not in job.running:  # the work of a worker that it had been taken from is paid for after all
            charged = job.charged
            self.held.apply(committed := records.Committed(batch.job, batch.batch, batch.worker, took_s, 0, self.now_s))
            self.happened.append(committed)
            assert job.charged == charged + wanted.count / job.weight
        else:
            self.note(records.Committed(batch.job, batch.batch, batch.worker, took_s, 0, self.now_s))
        self.results[batch.job] += range(wanted.first, wanted.first + wanted.count)

    @rule(worker=st.sampled_from(WORKERS), died=st.booleans())
    def lose(self, worker, died):
        had = list(self.held.running_on(worker))
        culprit = (had[0][0].id, had[0][1].batch.number) if died and had else None
        lost = self.held.lost(worker, "lost", culprit=culprit, now_s=self.now_s)
        assert [(record.job, record.batch) for record in lost] == [(job.id, run.batch.number) for job, run in had]
        for place, record in enumerate(lost):
            batch = self.held.unfinished_batch(record.job, record.batch)
            guilty, killed = died and place == 0, self.kills[record.job, batch.first]
            poisoned = isinstance(record, records.Poisoned)
            assert poisoned == (guilty and batch.count == 1 and killed + 1 >= MAX_KILLS)
            assert poisoned or isinstance(record, records.Failed) == (guilty and killed > 0)
            if guilty:
                self.kills.update((record.job, query) for query in range(batch.first, batch.first + batch.count))
            if poisoned:
                self.results[record.job].append(batch.first)
            self.note(record)
        assert not list(self.held.running_on(worker))
        if died:
            self.has[worker].clear()

    @precondition(lambda self: self.held.jobs)
    @rule(data=st.data(), weight=st.none() | weights, batch_size=st.none() | sizes, max_workers=st.none() | limits)
    def change(self, data, weight, batch_size, max_workers):
        job = data.draw(st.sampled_from(sorted(self.held.jobs)))
        self.note(records.Changed(job, self.now_s, weight, batch_size, max_workers))

    @precondition(lambda self: len(self.held.jobs) > 2)
    @rule(data=st.data())
    def cancel(self, data):
        job = data.draw(st.sampled_from(sorted(self.held.jobs)))
        self.note(records.Cancelled(job, records.BY_USER, self.now_s))
        assert not self.held.job(job).can_use("ann")

    @invariant()
    def nothing_is_lost_and_nothing_twice(self):
        for name, job in self.held.jobs.items():
            assert len(set(self.results[name])) == len(self.results[name]) == job.finished
            running = sum(run.batch.count for run in job.running.values())
            if job.ended != "cancelled":
                assert job.waiting + running + job.finished == job.queries
            assert job.waiting >= 0
            assert job.loading == sum(run.cold for run in job.running.values())
            assert job.serving == Counter(run.worker for run in job.running.values())

    def teardown(self):
        if not hasattr(self, "held"):
            return
        again = scheduler(*self.happened, policy=self.policy)
        assert state(again, self.now_s) == state(self.held, self.now_s)
        models = {job.key for job in self.held.jobs.values()}
        for worker in WORKERS:
            told = (worker, models, len(WORKERS), self.now_s)
            assert again.next_for(*told) == self.held.next_for(*told)
        for _ in range(1000):
            for worker in WORKERS:
                while self.has[worker]:
                    self.result(self.has[worker].pop(0), 0.1)
                found = self.held.next_for(worker, models, len(WORKERS), self.now_s)
                if found is not None:
                    self.note(found)
                    self.has[worker].append(found)
            if not any(self.has.values()):
                break
        for name, job in self.held.jobs.items():
            if job.ended != "cancelled":
                failed = job.errors and job.errors == job.queries and not job.accepted.open
                assert job.ended == ("" if job.open else "failed" if failed else "done")
                assert sorted(self.results[name]) == list(range(job.queries))


TestCluster = Cluster.TestCase
TestCluster.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


@given(st.lists(st.tuples(weights, st.integers(1, 50)), min_size=2, max_size=5), st.booleans(), st.randoms())
@settings(max_examples=20)
def test_charges_stay_within_two_batches_of_each_other_so_nobody_starves(jobs, loaded, random):
    held = scheduler(*(accepted(str(n), weight=w, batch_size=size) for n, (w, size) in enumerate(jobs)))
    furthest = 2 * max(size / weight for weight, size in jobs)
    under_way = [dispatch(held, worker) for worker in WORKERS]
    for turn in range(300):
        batch = under_way.pop(random.randrange(len(under_way)))
        finish(held, batch, turn / 10)
        models = None if loaded else {held.jobs[str(random.randrange(len(jobs)))].key}
        under_way.append(dispatch(held, batch.worker, turn / 10, models))
        charges = [job.charged for job in held.jobs.values()]
        if loaded:
            assert max(charges) - min(charges) <= furthest
    assert all(job.finished for job in held.jobs.values())


def test_a_newcomer_begins_at_the_lowest_and_does_not_catch_up():
    held = scheduler(accepted("old"))
    for turn in range(100):
        finish(held, dispatch(held, "ann", turn), turn)
    held.apply(accepted("new"))
    assert held.job("new").charged == held.job("old").charged == 1000.0
    served = queries_of(dispatch(held, "ann") for _ in range(20))
    assert abs(served["old"] - served["new"]) <= 10


def test_a_job_that_may_have_few_workers_does_not_save_up_for_later():
    held = scheduler(accepted("narrow", max_workers=1), accepted("wide"))
    first = dispatch(held, "ann")
    assert first.job == "narrow"
    for turn in range(100):
        finish(held, dispatch(held, "bob", turn), turn)
    assert held.job("wide").charged - held.job("narrow").charged <= 20.0
    held.apply(accepted("new"))
    served = Counter(dispatch(held, "bob").job for _ in range(22))
    assert served["wide"] >= 9


def test_queries_of_a_worker_that_was_lost_go_first_and_are_charged_once():
    held = scheduler(accepted("a", 30))
    batch = dispatch(held, "ann")
    for record in held.lost("ann", "it hangs", culprit=None, now_s=1.0):
        held.apply(record)
    assert held.job("a").charged == 0.0
    again = dispatch(held, "bob", 1.0)
    assert (again.batch, again.first, again.count) == (batch.batch, batch.first, batch.count)
    assert held.job("a").charged == 10.0


def test_a_change_of_weight_gives_back_what_was_charged():
    held = scheduler(accepted("a", weight=1.0))
    dispatch(held, "ann")
    held.apply(records.Changed("a", 1.0, weight=5.0))
    for record in held.lost("ann", "it died", culprit=("a", 0), now_s=1.0):
        held.apply(record)
    assert held.job("a").charged == 0.0


def test_the_late_result_of_a_worker_that_hung_is_wanted_until_another_one_has_it():
    held = scheduler(accepted("a", 10))
    batch = dispatch(held, "ann")
    for record in held.lost("ann", "it hangs", culprit=None, now_s=1.0):
        held.apply(record)
    assert held.unfinished_batch("a", batch.batch)
    dispatch(held, "bob", 1.0)
    finish(held, batch)
    assert held.job("a").ended == "done"
    assert held.job("a").charged == 10.0
    assert held.unfinished_batch("a", batch.batch) is None
    assert dispatch(held, "cy") is None


def test_a_late_result_is_charged_by_the_weight_of_its_job():
    held = scheduler(accepted("a", 20, weight=4.0))
    batch = dispatch(held, "ann")
    for record in held.lost("ann", "it hangs", culprit=None, now_s=1.0):
        held.apply(record)
    assert held.job("a").charged == 0.0
    finish(held, batch, 2.0)
    assert held.job("a").charged == 10 / 4.0  # queries per weight, as if the batch had never been taken back


def by_tokens(*happened):
    made = Scheduler(POLICIES.create("fair-share"), fair_by="tokens")
    for record in happened:
        made.apply(record)
    return made


def committed(batch, tokens, now_s=0.0):
    return records.Committed(batch.job, batch.batch, batch.worker, 0.5, 0, now_s, tokens)


def test_by_tokens_a_job_is_charged_for_the_tokens_of_its_finished_batches():
    """A batch is charged by the estimate when it is dispatched, and by its tokens when it is finished."""
    held = by_tokens(accepted("a", weight=2.0))
    first = dispatch(held, "ann")
    assert held.job("a").charged == 10 / 2  # nothing is known: a token for each query
    held.apply(committed(first, 400))
    assert held.job("a").charged == 400 / 2
    second = dispatch(held, "ann")
    assert held.job("a").charged == (400 + 400) / 2
    held.apply(committed(second, 100))
    assert held.job("a").charged == (400 + 100) / 2
    assert held.job("a").unit_rate(5.0) == 500 / 5
    assert held.job("a").rate(5.0) == 20 / 5


def test_by_tokens_a_lost_batch_is_refunded_and_its_late_result_is_charged_once():
    held = by_tokens(accepted("a", 20))
    held.apply(committed(dispatch(held, "ann"), 300))
    batch = dispatch(held, "ann")
    for record in held.lost("ann", "it hangs", culprit=None, now_s=1.0):
        held.apply(record)
    assert held.job("a").charged == 300
    held.apply(committed(batch, 250))
    assert held.job("a").charged == 550
    assert held.job("a").ended == "done"


def test_by_tokens_a_query_without_tokens_counts_as_one():
    held = by_tokens(accepted("a"))
    finish(held, dispatch(held, "ann"))
    assert held.job("a").charged == 10


def test_records_of_earlier_versions_have_no_tokens():
    new = records.Committed("a", 0, "w0", 0.5, 0, 1.0, 7)
    old = {key: value for key, value in msgspec.to_builtins(new).items() if key != "tokens"}
    assert msgspec.convert(old, records.Record).tokens == 0


@pytest.mark.parametrize("new", [accepted("a"), records.Changed("a", 1.0, weight=2.0)])
def test_records_of_earlier_versions_have_no_time_limit(new):
    old = {key: value for key, value in msgspec.to_builtins(new).items() if key != "batch_timeout_s"}
    assert msgspec.convert(old, records.Record) == new


def test_an_unknown_unit_is_refused():
    with pytest.raises(ConfigurationError, match="fair_by = 'token'; did you mean 'tokens'"):
        Scheduler(POLICIES.create("fair-share"), fair_by="token")


@given(
    queries=st.integers(1, 40), lethal=st.sets(st.integers(0, 39), max_size=8), batch_size=st.integers(0, 40),
    reported=st.booleans(), random=st.randoms(),
)  # fmt: skip
def test_of_the_queries_of_a_batch_only_those_that_kill_get_an_error(queries, lethal, batch_size, reported, random):
    """The worker reports that a batch has ended its computing process, or has died itself."""
    held, under_way = scheduler(accepted("a", queries, batch_size=batch_size)), {}
    results, errors, largest, deaths = Counter(), Counter(), 1, 0
    while not held.job("a").ended:
        for worker in WORKERS:
            if worker not in under_way and (batch := dispatch(held, worker)) is not None:
                under_way[worker], largest = batch, max(largest, batch.count)
        worker = random.choice(sorted(under_way))
        batch = under_way.pop(worker)
        own = range(batch.first, batch.first + batch.count)
        if lethal.isdisjoint(own):
            finish(held, batch, seconds=0.01 * batch.count)
            results.update(own)
            continue
        deaths += 1
        if reported:
            record = held.failed(worker, "a", batch.batch, "it died", divisible=True, now_s=0.0)
        else:
            (record,) = held.lost(worker, "it died", culprit=("a", batch.batch), now_s=0.0)
        held.apply(record)
        if isinstance(record, records.Poisoned):
            errors.update(own)
    assert results == Counter(set(range(queries)) - lethal)
    assert errors == Counter(lethal & set(range(queries)))
    assert held.job("a").errors == errors.total()
    assert held.job("a").ended == ("failed" if errors.total() == queries else "done")
    assert deaths <= errors.total() * max(MAX_KILLS, math.ceil(math.log2(largest)) + (1 if reported else 2))


def test_a_query_that_killed_three_workers_gets_an_error_and_the_job_goes_on():
    held = scheduler(accepted("a", 2, batch_size=1))
    for worker in ("ann", "bob", "cy"):
        batch = dispatch(held, worker)
        assert batch.first == 0
        (record,) = held.lost(worker, "it died", culprit=("a", batch.batch), now_s=1.0)
        held.apply(record)
    why = "this query has no result after 3 attempts (on ann, bob, cy): it died"
    assert record == records.Poisoned("a", batch.batch, why, 1.0)
    finish(held, dispatch(held, "dee"))
    assert (held.job("a").ended, held.job("a").finished, held.job("a").errors) == ("done", 2, 1)


def test_a_batch_that_killed_one_worker_stays_whole_and_at_the_second_it_is_split():
    held = scheduler(accepted("a", 10))
    for worker, count in (("ann", 10), ("bob", 10), ("cy", 5), ("dee", 2)):
        batch = dispatch(held, worker)
        assert (batch.first, batch.count) == (0, count)
        held.apply(held.lost(worker, "it died", culprit=("a", batch.batch), now_s=1.0)[0])
    assert held.job("a").charged == 0.0
    again = [dispatch(held, worker) for worker in ("ann", "bob", "cy", "dee")]
    assert [(batch.first, batch.count) for batch in again] == [(0, 1), (1, 1), (2, 3), (5, 5)]


def test_a_model_that_ends_its_process_while_it_is_loaded_fails_whole_batches():
    held = scheduler(accepted("a", 20))
    for worker in ("ann", "bob", "cy"):
        batch = dispatch(held, worker)
        assert (batch.first, batch.count) == (0, 10)
        record = held.failed(worker, "a", batch.batch, "it died", divisible=False, now_s=1.0)
        held.apply(record)
    assert record.why == "this batch has no result after 3 attempts (on ann, bob, cy): it died"
    assert (held.job("a").finished, held.job("a").errors) == (10, 10)


def test_a_failure_of_a_batch_that_the_worker_no_longer_has_is_ignored():
    held = scheduler(accepted("a", 20))
    batch = dispatch(held, "ann")
    (record,) = held.lost("ann", "it hangs", culprit=None, now_s=1.0)
    held.apply(record)
    assert held.failed("ann", "a", batch.batch, "it died", divisible=True, now_s=1.0) is None
    dispatch(held, "bob", 1.0)
    assert held.failed("ann", "a", batch.batch, "it died", divisible=True, now_s=1.0) is None
    held.apply(records.Cancelled("a", "enough", 2.0))
    assert held.failed("bob", "a", batch.batch, "it died", divisible=True, now_s=2.0) is None
    assert held.failed("bob", "b", 0, "it died", divisible=True, now_s=2.0) is None


def test_the_time_limit_of_a_batch_comes_from_the_slowest_before_or_from_the_user():
    held = scheduler(accepted("a"))
    one, ten = Batch(9, 0, 1), Batch(8, 0, 10)
    assert [held.job("a").limit_s(batch) for batch in (one, ten)] == [300.0, 600.0]
    assert [held.job("a").limit_loads(batch) for batch in (one, ten)] == [20.0, 200.0]
    for seconds in (0.1, 20.0, 0.1):
        finish(held, dispatch(held, "ann"), seconds=seconds)
    assert held.job("a").limit_s(ten) == 20 * 20.0
    assert held.job("a").limit_loads(ten) == 0.0
    assert held.job("a").limit_s(one) == 60.0
    held.apply(records.Changed("a", 1.0, batch_timeout_s=2.5))
    held.apply(records.Changed("a", 1.0, weight=2.0))
    assert held.job("a").limit_s(ten) == 2.5
    held.apply(records.Changed("a", 1.0, batch_timeout_s=0.0))
    assert held.job("a").limit_s(one) == 60.0


@pytest.mark.parametrize(
    ("sizes", "limits"),
    [
        ([16, 32], {1: 20 * 40.0, 32: 20 * 40.0, 33: 2 * 20 * 40.0}),  # one takes as long as all of a full batch
        ([1], {1: 20 * 40.0, 32: 32 * 20 * 40.0}),  # all may take as long as one after the other
    ],
)
def test_a_query_may_take_as_long_as_those_that_its_model_computes_with_it(sizes, limits):
    model = {"kind": "vllm", "max_num_seqs": 32}
    held = scheduler(records.Accepted("a", "a", "a", model, 1000, 1.0, sizes[-1], 0, 0.0))
    for size in sizes:
        batch = dispatch(held, "ann")
        assert batch.count == size
        finish(held, batch, seconds=40.0 if size == sizes[-1] else 1.0)
    assert {count: held.job("a").limit_s(Batch(9, 0, count)) for count in limits} == limits


def test_a_query_that_hangs_in_the_first_batch_gets_more_time_in_each_attempt():
    held = scheduler(accepted("a", 1))
    limits = []
    for worker in ("ann", "bob", "cy"):
        batch = dispatch(held, worker)
        limits.append(held.job("a").limit_s(Batch(batch.batch, batch.first, batch.count)))
        failure = held.failed(worker, "a", batch.batch, "it took too long", divisible=True, now_s=1.0)
        assert failure is not None
        held.apply(failure)
    assert limits == [300.0, 600.0, 1200.0]
    assert held.job("a").errors == 1
    assert default_limit_s(1, None, kills=20) == 1800.0


def test_a_journal_whose_batches_were_poisoned_whole_is_read():
    held = scheduler(accepted("a", 20))
    dispatch(held, "ann")
    held.apply(records.Poisoned("a", 0, "this batch killed 3 workers: ann, bob, cy", 1.0))
    finish(held, dispatch(held, "dee"))
    assert (held.job("a").ended, held.job("a").finished, held.job("a").errors) == ("done", 20, 10)


def test_only_what_a_worker_computed_is_blamed_for_its_death():
    held = scheduler(accepted("a", 20))
    dispatch(held, "ann", 0.0)
    dispatch(held, "ann", 1.0)
    assert [record.blamed for record in held.lost("ann", "it died", culprit=("a", 0), now_s=2.0)] == [True, False]
    assert [record.blamed for record in held.lost("ann", "it hangs", culprit=None, now_s=2.0)] == [False, False]


def test_batches_grow_until_they_take_as_long_as_they_should():
    held = scheduler(accepted("a", batch_size=0))
    counts = []
    for turn in range(12):
        batch = dispatch(held, "ann", turn)
        counts.append(batch.count)
        finish(held, batch, turn, seconds=0.001 * batch.count)
    assert counts[:4] == [1, 8, 64, 300]
    assert counts[-1] == 300


def test_one_worker_loads_the_model_of_a_new_job_first_so_that_a_second_new_job_finds_a_free_worker():
    held = scheduler(accepted("a"))
    first = dispatch(held, "ann", 0.0, set())
    assert first.cold
    assert dispatch(held, "bob", 0.1, set()) is None
    held.apply(accepted("b", at_s=0.2))
    assert dispatch(held, "bob", 0.2, set()).job == "b"
    finish(held, first, 1.0)
    assert {dispatch(held, worker, 1.0, set()).job for worker in ("cy", "dee")} == {"a", "b"}


def test_other_workers_wait_for_the_first_load_for_a_limited_time_and_not_after_its_worker_was_lost():
    held = scheduler(accepted("a"))
    dispatch(held, "ann", 0.0, set())
    assert dispatch(held, "bob", FIRST_LOAD_S - 0.1, set()) is None
    assert dispatch(held, "bob", FIRST_LOAD_S, set()).job == "a"
    held = scheduler(accepted("a"))
    dispatch(held, "ann", 0.0, set())
    for record in held.lost("ann", "it died", culprit=("a", 0), now_s=1.0):
        held.apply(record)
    assert dispatch(held, "bob", 1.0, set()).job == "a"


def test_the_last_batch_is_three_tenths_of_the_estimate_of_a_query():
    held = scheduler(accepted("a", 100))
    for seconds in (1.0, 2.0):  # 0.1 and 0.2 a query
        finish(held, dispatch(held, "ann"), seconds=seconds)
    assert held.job("a").estimate_s(100) == pytest.approx(100 * (0.7 * 0.1 + 0.3 * 0.2))


def test_the_rate_counts_the_last_ten_seconds():
    held = scheduler(accepted("a"))
    for turn in range(100):
        finish(held, dispatch(held, "ann", turn), turn + 1.0)
    assert held.job("a").rate(100.0) == pytest.approx(10.0)
    assert held.job("a").rate(105.0) == pytest.approx(5.0)
    assert held.job("a").rate(200.0) == 0.0


def test_a_served_model_takes_its_turn_as_soon_as_something_waits_for_it_and_saves_nothing_up():
    held = scheduler(accepted("batch"), accepted("served", 0, open_=True))
    for turn in range(100):
        batch = dispatch(held, "ann", turn)
        assert batch.job == "batch"
        finish(held, batch, turn)
    held.apply(records.Arrived("served", 1000, 100.0))
    assert dispatch(held, "ann", 100.0).job == "served"
    served = queries_of(dispatch(held, "ann", 100.0) for _ in range(40))
    assert abs(served["served"] - served["batch"]) <= 40


def test_what_waits_for_a_served_model_together_goes_together():
    held = scheduler(accepted("a", 0, open_=True, batch_size=8))
    held.apply(records.Arrived("a", 3, 0.0))
    assert dispatch(held, "ann").count == 3
    held.apply(records.Arrived("a", 12, 0.0))
    assert [dispatch(held, worker).count for worker in ("bob", "cy")] == [8, 4]
    assert dispatch(held, "dee") is None


def test_a_served_model_ends_with_its_last_answer_once_it_is_closed():
    held = scheduler(accepted("a", 0, open_=True), records.Arrived("a", 5, 0.0))
    batch = dispatch(held, "ann")
    held.apply(records.Closed("a", 1.0))
    assert not held.job("a").ended
    finish(held, batch, 2.0)
    assert (held.job("a").ended, held.job("a").ended_s) == ("done", 2.0)


def test_of_a_served_model_a_successor_knows_that_it_is_there_and_numbers_its_batches_anew():
    happened = [accepted("a", 0, open_=True), records.Arrived("a", 5, 0.0), records.Changed("a", 0.0, weight=2.0)]
    first = scheduler()
    lasting = []
    for record in happened:
        first.apply(record)
        lasting += [record] if first.is_durable(record) else []
    before = dispatch(first, "ann")
    assert lasting == [happened[0], happened[2]]
    assert not first.is_durable(before)
    successor = Scheduler(POLICIES.create("fair-share"), first_batch=1 << 32)
    for record in [*lasting, records.Arrived("a", 5, 0.0)]:
        successor.apply(record)
    assert successor.unfinished_batch("a", before.batch) is None
    assert dispatch(successor, "ann").batch != before.batch
    assert successor.job("a").weight == 2.0


def test_a_job_that_is_not_there_is_a_mistake():
    with pytest.raises(ConfigurationError, match="there is no job '7'; the last jobs: a"):
        scheduler(accepted("a")).job("7")


@given(
    errors=st.lists(st.integers(0, 3), min_size=1, max_size=8), rate=st.sampled_from([0.0, 0.2, 0.29, 0.5, 1.0]),
    open_=st.booleans(),
)  # fmt: skip
def test_a_job_fails_as_soon_as_too_many_queries_have_errors_or_if_all_have(errors, rate, open_):
    queries = 3 * len(errors)
    job = msgspec.structs.replace(accepted("a", queries, batch_size=3, open_=open_), max_error_rate=rate)
    happened = [job] + ([records.Closed("a", 0.0)] if open_ else [])
    held = scheduler(*happened)
    so_far, expected = 0, ""
    for number, count in enumerate(errors):
        batch = dispatch(held, "ann", number)
        error = f"error {number}" if count else ""
        happened += [batch, records.Committed("a", number, "ann", 0.5, count, number, 0, error)]
        held.apply(happened[-1])
        so_far += count
        done = number + 1 == len(errors)
        too_many = so_far and (so_far == queries or Fraction(so_far, queries) > Fraction(str(rate)))
        expected = "failed" if too_many and not open_ else "done" if done else ""
        assert held.job("a").ended == expected
        if expected:
            break
    job = held.job("a")
    assert job.error == next((f"error {number}" for number, count in enumerate(errors[: number + 1]) if count), "")
    assert not list(held.running_on("ann"))
    assert dispatch(held, "ann") is None
    assert state(scheduler(*happened), 0.0) == state(held, 0.0)


def test_a_failed_job_drops_the_batches_of_other_workers():
    held = scheduler(msgspec.structs.replace(accepted("a", 30, batch_size=3), max_error_rate=0.0))
    assert [dispatch(held, "ann", loaded=()).batch, dispatch(held, "bob").batch] == [0, 1]
    held.apply(records.Committed("a", 0, "ann", 0.5, 1, 1.0, 0, "no"))
    assert held.job("a").ended == "failed"
    assert held.unfinished_batch("a", 1) is None
    assert held.busy() == set()
    held.apply(records.Committed("a", 1, "bob", 0.5, 0, 2.0))  # it comes too late
    assert (held.job("a").finished, held.job("a").errors) == (3, 1)


def test_a_record_of_an_earlier_version_has_no_limit_of_errors():
    old = msgspec.json.decode(msgspec.json.encode(accepted("a")))
    del old["max_error_rate"]
    assert msgspec.convert(old, records.Accepted).max_error_rate == 1.0


def test_a_scheduler_keeps_nothing_of_dropped_jobs():
    held, sizes = scheduler(), []
    tracemalloc.start()
    try:
        for turn in range(3):
            for number in range(500):
                job = f"{turn}-{number}"
                for record in (accepted(job), records.Cancelled(job, "enough", 0.0), records.Dropped(job, 0.0)):
                    held.apply(record)
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes[2] - sizes[1] < 10_000
