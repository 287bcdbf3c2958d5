"""Tests of rounds in flight: none is lost, and the driver wakes when the strategy requests it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import chimera
from chimera.core import call
from chimera.strategies.strategy import Round
from chimera.training.cluster.heartbeat import HeartbeatMonitor
from chimera.training.run.in_flight import AHEAD, InFlight, Pace

STEP_S = 1.0  # of virtual time, of a worker as of a server


class Party:
    def compute(self, number: int, _: Any = None) -> int:
        call.work(samples=1)
        return number


@pytest.fixture
def engine() -> Iterator[Any]:
    network = {"latency_s": 0.0, "bandwidth_bytes_s": float("inf")}
    with chimera.engine(
        "simulated", network=network, compute={"seconds_per_sample": STEP_S, "seconds_per_call": 0.0}
    ) as engine:
        yield engine


def rounds_of(engine: Any, *, tells: bool) -> Iterator[Round]:
    """Yield rounds of a worker that computes and a server that steps, one after the other."""
    worker, server = engine.spawn(Party), engine.spawn(Party)
    number, over = 0, None
    while True:
        computed = worker.compute(number, over)
        over = server.compute(number, computed)
        yield Round([over], computed=[computed] if tells else ())
        number += 1


def test_the_driver_wakes_at_hand_over_if_the_strategy_reports_it(engine: Any) -> None:
    window = InFlight(SimpleNamespace(), HeartbeatMonitor(engine), Pace(engine))
    window.fill(rounds_of(engine, tells=True), 100)
    assert len(window) == AHEAD
    for over in range(2, AHEAD - 1, 2):
        assert window.await_some() == 2
        assert engine.now() == pytest.approx((2 * over + 1) * STEP_S)  # that many rounds, and half of the next
        assert [values for _, values in window.over(2)] == [[over - 2], [over - 1]]
    assert window.await_some() == len(window) == 2


def test_the_driver_seldom_wakes_without_reported_hand_over(engine: Any) -> None:
    window = InFlight(SimpleNamespace(), HeartbeatMonitor(engine), Pace(engine))
    window.fill(rounds_of(engine, tells=False), 100)
    assert window.await_some() == AHEAD // 2
    assert engine.now() == pytest.approx(AHEAD * STEP_S)


def test_rounds_that_are_issued_ahead_take_half_a_second_of_real_time() -> None:
    clock = SimpleNamespace(now_s=0.0)
    pace = Pace(SimpleNamespace(virtual_time=False, servers_in_groups=False, now=lambda: clock.now_s))  # type: ignore[arg-type]
    limits = [pace.limit(AHEAD)]
    for seconds_per_round in (1e-3, 1e-3, 1e-3, 0.1, 1.0, 100.0):
        clock.now_s += limits[-1] * seconds_per_round
        pace.ended(limits[-1])
        limits.append(pace.limit(AHEAD))
    assert limits == [2, 4, 8, AHEAD, 5, 1, 1]


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("horizon", [1, 2, 3, AHEAD - 1, AHEAD, 5 * AHEAD + 3])
def test_rounds_up_to_the_horizon_end_once_and_in_order(engine: Any, horizon: int, tells: bool) -> None:
    window, rounds, seen = (
        InFlight(SimpleNamespace(), HeartbeatMonitor(engine), Pace(engine)),
        rounds_of(engine, tells=tells),
        [],
    )
    while True:
        window.fill(rounds, horizon)
        if not window:
            break
        seen += [value for _, values in window.over(window.await_some()) for value in values]
    assert seen == list(range(horizon))
