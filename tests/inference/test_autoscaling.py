"""The number of workers follows the waiting queries."""

from __future__ import annotations

import math

from chimera.inference.journal import records
from chimera.inference.policies.policy import POLICIES
from chimera.inference.scheduling.autoscaling import QUEUE_S, SCALE_DOWN_WINDOW_S, Autoscaler, needed, queue_s
from chimera.inference.scheduling.scheduler import Scheduler


def scheduled(*jobs: tuple[int, float, int]) -> Scheduler:
    """Return a scheduler with jobs of so many waiting queries, seconds per query and workers at most."""
    scheduler = Scheduler(POLICIES.create("fair-share"))
    for number, (waiting, seconds, most) in enumerate(jobs):
        name = str(number)
        model = {"kind": "simulated", "name": name}
        scheduler.apply(records.Accepted(name, name, name, model, waiting + 1, 1.0, 1, most, 0.0))
        scheduler.apply(records.Dispatched(name, 0, 0, 1, f"w{number}", 0.0))
        if seconds:
            scheduler.apply(records.Committed(name, 0, f"w{number}", seconds, 0, 0.0))
    return scheduler


def test_the_queue_time_is_that_of_the_waiting_queries_on_the_available_workers() -> None:
    jobs = scheduled((100, 0.5, 0), (100, 0.1, 0), (100, 0.0, 0)).jobs.values()
    assert math.isclose(queue_s(jobs, 6), 10.0)
    assert queue_s(jobs, 0) == math.inf
    assert queue_s((), 0) == 0.0


def test_the_number_needed_brings_the_queue_time_to_its_target_within_the_limits_of_the_jobs() -> None:
    assert needed(scheduled((100, 0.5, 0)).jobs.values()) == 50 / QUEUE_S
    assert needed(scheduled((100, 0.5, 3)).jobs.values()) == 3
    assert needed(scheduled((100, 0.0, 0)).jobs.values()) == 1  # its speed is unknown
    assert needed(scheduled((0, 0.0, 0)).jobs.values()) == 1  # its last batch is computed
    assert needed(scheduled((0, 0.5, 0)).jobs.values()) == 0


def test_it_grows_at_once_and_shrinks_to_what_the_last_minute_needed() -> None:
    scaler = Autoscaler(2, 0.0)

    def at(now_s: float, needed: int) -> int:
        return scaler.wanted(needed, least=2, most=8, now_s=now_s)

    assert [at(0, 0), at(1, 5), at(2, 50), at(3, 7), at(4, 0)] == [2, 5, 8, 8, 8]
    assert at(2 + SCALE_DOWN_WINDOW_S, 0) == 8
    assert at(2.5 + SCALE_DOWN_WINDOW_S, 0) == 7
    assert at(3.5 + SCALE_DOWN_WINDOW_S, 3) == 3
    assert at(4 + 2 * SCALE_DOWN_WINDOW_S, 0) == 2
