"""Room for served models: reserved workers compute nothing else, and batches are short enough for latency targets."""

from __future__ import annotations

import math

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from chimera.inference.journal import records
from chimera.inference.policies.policy import POLICIES
from chimera.inference.scheduling.room import BATCHES_PER_TARGET
from chimera.inference.scheduling.scheduler import Scheduler

WORKERS = ("w0", "w1", "w2", "w3")
OLD = (
    b'{"type":"Accepted","job":"1","key":"k","name":"n","model":{},"queries":0,"weight":1.0,"batch_size":0,'
    b'"max_workers":0,"at_s":0}'
)


def accepted(job: str, *, reserve: int = 0, target_s: float = 0.0, serving: bool = False) -> records.Accepted:
    queries = 0 if serving else 10**6
    return records.Accepted(
        job, job, job, {"name": job}, queries, 1.0, 0, 0, 0.0, open=serving, reserve=reserve, latency_target_s=target_s
    )


def scheduler(*happened: records.Record) -> Scheduler:
    made = Scheduler(POLICIES.create("fair-share"))
    for record in happened:
        made.apply(record)
    return made


def dispatch(held: Scheduler, worker: str, now_s: float = 0.0) -> records.Dispatched | None:
    found = held.next_for(worker, {job.key for job in held.jobs.values()}, len(WORKERS), now_s)
    if found is not None:
        held.apply(found)
    return found


def timed(held: Scheduler, job: str, seconds: float) -> None:
    """Finish a batch of one query on a worker without reservation."""
    worker = next(name for name in WORKERS if not held.room.is_reserved(name))
    found = dispatch(held, worker)
    assert found is not None
    assert found.job == job
    held.apply(records.Committed(job, found.batch, worker, seconds * found.count, 0, 0.0))


def test_a_reserved_worker_waits_for_its_model_and_the_jobs_have_the_others() -> None:
    held = scheduler(accepted("served", reserve=1, serving=True), accepted("job"))
    held.room.reserve(dict.fromkeys(WORKERS, ()))
    (kept,) = [name for name in WORKERS if held.room.is_reserved(name)]
    assert dispatch(held, kept) is None
    for name in WORKERS:
        if name != kept:
            assert getattr(dispatch(held, name), "job", None) == "job"
    held.apply(records.Arrived("served", 2, 0.0))
    assert getattr(dispatch(held, kept), "job", None) == "served"
    held.apply(records.Closed("served", 1.0))
    held.room.reserve(dict.fromkeys(WORKERS, ()))
    assert getattr(dispatch(held, kept), "job", None) in ("job", "served")  # it is reserved no more


@given(
    reserves=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    there=st.lists(st.sets(st.sampled_from(WORKERS)), min_size=2, max_size=6),
)
def test_a_reservation_keeps_its_workers_and_leaves_one_to_the_jobs(reserves: list[int], there: list[set[str]]) -> None:
    jobs = [str(number) for number in range(len(reserves))]
    held = scheduler(*(accepted(job, reserve=n, serving=True) for job, n in zip(jobs, reserves, strict=True)))
    before: dict[str, str] = {}
    for names in there:
        held.room.reserve(dict.fromkeys(sorted(names), ()))
        owner = {
            name: job for name in names for job in jobs
            if held.room.is_reserved(name) and held.room.admits(name, held.job(job))
        }  # fmt: skip
        assert len(owner) == min(sum(reserves), max(len(names) - 1, 0))
        first = jobs[0]
        stayed = {name for name in names if before.get(name) == first}
        now = {name for name in names if owner.get(name) == first}
        assert len(now & stayed) == min(len(stayed), len(now))
        before = owner


def test_a_model_that_is_in_memory_decides_which_worker_is_reserved() -> None:
    held = scheduler(accepted("served", reserve=1, serving=True))
    held.room.reserve({name: {held.job("served").key} if name == "w2" else () for name in WORKERS})
    assert [name for name in WORKERS if held.room.is_reserved(name)] == ["w2"]


def test_a_latency_target_limits_the_batches_of_all_that_share_its_workers() -> None:
    held = scheduler(accepted("served", target_s=0.06, serving=True), accepted("job"))
    held.room.reserve(dict.fromkeys(WORKERS, ()))
    timed(held, "job", 0.004)
    timed(held, "job", 0.004)
    found = dispatch(held, "w0")
    assert found is not None
    assert found.count == int(0.06 / BATCHES_PER_TARGET / 0.004)
    held.apply(records.Changed("served", 0.0, reserve=1))
    held.room.reserve(dict.fromkeys(WORKERS, ()))
    assert held.room.limit_s(held.job("job")) == math.inf  # the model has a worker of its own
    assert held.room.limit_s(held.job("served")) == 0.06 / BATCHES_PER_TARGET
    held.apply(records.Changed("served", 0.0, reserve=0, latency_target_s=0.0))
    assert held.room.limit_s(held.job("served")) == math.inf


def test_a_journal_from_before_reservations_is_read() -> None:
    found = msgspec.json.decode(OLD, type=records.Record)
    assert isinstance(found, records.Accepted)
    assert (found.reserve, found.latency_target_s) == (0, 0.0)
