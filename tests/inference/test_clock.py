"""The clock of a coordinator: a wall clock that is set back changes no rate."""

from __future__ import annotations

from chimera.inference.coordinator.clock import SteadyClock
from chimera.inference.scheduling.recent import RecentWork


def test_the_time_never_goes_back_and_follows_steps_forward() -> None:
    wall, monotonic = iter([1000.0, 1001.0, 400.0, 401.0, 2000.0]), iter([5.0, 6.0, 7.0, 8.0, 9.0])
    clock = SteadyClock(lambda: next(wall), lambda: next(monotonic))
    assert [clock() for _ in range(4)] == [1001.0, 1002.0, 1003.0, 2000.0]


def test_a_clock_that_is_set_back_changes_no_rate() -> None:
    elapsed_s, step_s = 0.0, 0.0
    clock = SteadyClock(lambda: 10_000.0 + elapsed_s + step_s, lambda: elapsed_s)
    work, first_s = RecentWork(), clock()
    for second in range(60):
        elapsed_s, step_s = float(second), -3600.0 if second >= 30 else 0.0
        work.add(clock(), 10, 10.0)
    queries, units = work.rates(clock(), first_s, None)
    assert queries == units == 10.0
