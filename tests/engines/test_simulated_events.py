"""Times and order of calls between actors in virtual time."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chimera.core import call
from chimera.core.engine import Disturbance
from chimera.core.errors import ActorLost, ConfigurationError, RunError, TimeLimitError
from chimera.core.trace import TraceRow
from chimera.engines.simulated import Availability, Compute, Network, Simulated

WHOLE = {
    "network": Network(latency_s=1.0, bandwidth_bytes_s=math.inf),
    "compute": Compute(seconds_per_call=1.0, seconds_per_sample=1.0, seconds_per_element=0.0),
}
"""Every cost is a whole second."""


class Log:
    """An actor that records its arguments, in the order of its calls."""

    def __init__(self) -> None:
        self.entries: list[Any] = []

    def note(self, entry: Any, samples: int = 0) -> Any:
        call.work(samples=samples)
        self.entries.append(entry)
        return entry

    def all(self) -> list[Any]:
        return self.entries


class Writer:
    """Notes things in logs."""

    def __init__(self, log: Any = None) -> None:
        self.log = log

    def work_and_note(self, samples: int, entry: Any) -> None:
        call.work(samples=samples)
        self.log.note(entry)

    def note(self, entry: Any, samples: int = 0, timeout_s: float | None = None) -> Any:
        return call.get(self.log.note(entry, samples), timeout_s)

    def note_all(self, pauses: list[int]) -> None:
        for i, pause in enumerate(pauses):
            call.work(samples=pause)
            self.log.note((i, pause))

    def meet(self, other: Any) -> None:
        self.log = other

    def give_up(self, seconds: float) -> str:
        try:
            call.get(self.log.note("late"), seconds)
        except TimeLimitError:
            return "gave up"
        return "came"


def rows(engine: Simulated, name: str) -> list[TraceRow]:
    return [row for row in engine.trace() if row.actor == name]


def test_a_nested_call_costs_two_crossings_and_the_caller_waits_meanwhile() -> None:
    with Simulated(**WHOLE) as engine:
        log = engine.spawn(Log, name="log")
        writer = engine.spawn(Writer, log, name="writer")
        assert engine.get(writer.note("a", 3)) == "a"
        assert engine.now() == 9.0  # there at 1, begins and asks at 2, there at 3, done at 7, back at 8, known at 9
        by_actor = {row.actor: row for row in engine.trace()}
        outer, inner = by_actor["writer"], by_actor["log"]
        assert (outer.start_s, outer.end_s, outer.wait_s) == (1.0, 8.0, 6.0)
        assert (inner.start_s, inner.end_s, inner.transfer_s) == (3.0, 7.0, 1.0)


def test_a_call_that_nobody_waits_for_costs_its_caller_nothing() -> None:
    with Simulated(**WHOLE) as engine:
        log = engine.spawn(Log, name="log")
        writer = engine.spawn(Writer, log)
        engine.get(writer.work_and_note(0, "a"))
        assert engine.now() == 3.0
        assert rows(engine, "log") == []  # it began just now
        assert engine.get(log.all()) == ["a"]
        assert [row.start_s for row in rows(engine, "log")] == [3.0, 4.0]


def test_calls_come_in_the_order_of_virtual_time_and_not_of_computation() -> None:
    with Simulated(**WHOLE) as engine:
        log = engine.spawn(Log)
        slow, fast = engine.spawn(Writer, log), engine.spawn(Writer, log)
        engine.get([slow.work_and_note(100, "slow"), fast.work_and_note(10, "fast")])
        assert engine.get(log.all()) == ["fast", "slow"]


def test_the_driver_comes_in_its_turn_too() -> None:
    with Simulated(**WHOLE) as engine:
        log = engine.spawn(Log)
        writer = engine.spawn(Writer, log)
        late = writer.work_and_note(100, "writer")
        engine.get(log.note("driver"))
        assert engine.now() < 10
        engine.get(late)
        assert engine.get(log.all()) == ["driver", "writer"]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, 20), max_size=6), min_size=1, max_size=5))
def test_any_writers_are_merged_by_time_and_twice_alike(plans: list[list[int]]) -> None:
    def run() -> tuple[list[Any], list[TraceRow]]:
        with Simulated(**WHOLE) as engine:  # type: ignore[arg-type]
            log = engine.spawn(Log)
            writers = [engine.spawn(Writer, log) for _ in plans]
            engine.get([writer.note_all(plan) for writer, plan in zip(writers, plans, strict=True)])
            return engine.get(log.all()), engine.trace()

    entries, trace = run()
    sent = [(sum(plan[: i + 1]), i, plan[i]) for plan in plans for i in range(len(plan))]
    assert sorted(entries) == sorted((i, pause) for _, i, pause in sent)
    times = {(i, pause): sorted(time for time, j, other in sent if (i, pause) == (j, other)) for _, i, pause in sent}
    order = [times[entry].pop(0) for entry in entries]
    assert order == sorted(order)
    assert run() == (entries, trace)


def test_a_time_limit_ends_the_wait_on_the_dot() -> None:
    with Simulated(**WHOLE) as engine:
        log = engine.spawn(Log)
        writer = engine.spawn(Writer, log)
        long = log.note("first", 50)
        assert engine.get(writer.give_up(5.0)) == "gave up"
        assert engine.now() == 2.0 + 5.0 + 1.0
        engine.get(long)
        assert engine.get(writer.give_up(5.0)) == "came"
        assert engine.get(log.all()) == ["first", "late", "late"]


def test_a_crash_of_the_callee_is_known_one_latency_later() -> None:
    with Simulated(**WHOLE, availability=Availability(crash={"log": 10.0})) as engine:
        writer = engine.spawn(Writer, engine.spawn(Log, name="log"))
        with pytest.raises(ActorLost, match="log crashed at 10 s"):
            engine.get(writer.note("a", 100))
        assert engine.now() == 12.0
        with pytest.raises(ActorLost):
            engine.get(writer.note("b"))


def test_what_a_caller_would_have_called_after_its_crash_is_not_called() -> None:
    with Simulated(**WHOLE, availability=Availability(crash={"writer": 10.0})) as engine:
        log = engine.spawn(Log)
        writer = engine.spawn(Writer, log, name="writer")
        with pytest.raises(ActorLost):
            engine.get(writer.note_all([3, 3, 3, 3, 3]))
        assert engine.get(log.all()) == [(0, 3), (1, 3)]  # at 5 and 8


@pytest.mark.parametrize(("at_s", "noted"), [(1.5, 0), (5.5, 1), (9.0, 2), (30.0, 5)])
def test_what_a_caller_would_have_called_after_it_was_killed_is_not_called(at_s: float, noted: int) -> None:
    with Simulated(**WHOLE) as engine:
        log = engine.spawn(Log)
        writer = engine.spawn(Writer, log)
        ref = writer.note_all([3, 3, 3, 3, 3])
        engine.wait([ref, log.note("hung", 10**6)], count=2, timeout_s=at_s)
        engine.kill(writer)
        counted = engine.spawn(Log)
        engine.get(counted.all())
        assert len(log._node.queue) + sum(entry != "hung" for entry in log._node.target.entries) == noted


def test_two_actors_that_wait_for_each_other_are_named() -> None:
    with Simulated() as engine:
        one, other = engine.spawn(Writer, name="one"), engine.spawn(Writer, name="other")
        engine.get([one.meet(other), other.meet(one)])
        with pytest.raises(RunError, match=r"forever.*of one waits for 'note' of other"):
            engine.get([one.note(1), other.note(2)])


def test_a_callee_killed_while_others_wait_for_it_is_known_one_latency_later() -> None:
    with Simulated(**WHOLE) as engine:
        log = engine.spawn(Log)
        writers = [engine.spawn(Writer, log) for _ in range(2)]
        refs = [writer.note(n, 20) for n, writer in enumerate(writers)]
        assert engine.wait(refs, count=2, timeout_s=10.0)[0] == []
        engine.kill(log)
        for ref in refs:  # one call runs, the other waits behind it
            with pytest.raises(ActorLost):
                engine.get(ref)
            assert engine.now() == 12.0


def test_a_handle_that_was_never_given_is_an_error() -> None:
    with Simulated() as engine:
        log = engine.spawn(Log)

        class Thief:
            def take(self) -> Any:
                return call.get(log.all())

        with pytest.raises(ConfigurationError, match="as arguments"):
            engine.get(engine.spawn(Thief).take())


def test_a_pause_of_the_caller_delays_what_it_would_have_called() -> None:
    with Simulated(**WHOLE) as engine:
        log = engine.spawn(Log, name="log")
        writer = engine.spawn(Writer, log)
        ref = writer.note_all([3, 3, 3])  # at 5, 8 and 11
        assert engine.wait([ref], timeout_s=7.0)[0] == []
        engine.disturb(writer, Disturbance("hang", for_s=10.0))
        engine.get(ref)
        assert engine.now() == 22.0
        engine.get(log.all())
        assert [row.start_s for row in rows(engine, "log")] == [6.0, 19.0, 22.0, 23.0]


def test_a_caller_that_hangs_calls_nobody_until_it_goes_on() -> None:
    with Simulated(**WHOLE) as engine:
        log = engine.spawn(Log, name="log")
        writer = engine.spawn(Writer, log)
        ref = writer.note_all([3, 3, 3])
        engine.wait([ref], timeout_s=7.0)
        engine.disturb(writer, Disturbance("hang"))
        assert engine.wait([ref], timeout_s=100.0) == ([], [ref])
        assert engine.get(log.all()) == [(0, 3)]
        assert engine.now() == 110.0
        engine.disturb(writer, Disturbance("slow", factor=1.0))
        engine.get(ref)
        assert engine.now() == 12.0 + 103.0
        assert engine.get(log.all()) == [(0, 3), (1, 3), (2, 3)]


def test_who_waits_for_one_that_hangs_waits_until_that_goes_on() -> None:
    with Simulated(**WHOLE) as engine:
        log = engine.spawn(Log, name="log")
        writer = engine.spawn(Writer, log)
        ref = writer.note("a", 20)
        engine.wait([ref], timeout_s=10.0)
        engine.disturb(log, Disturbance("hang"))
        assert engine.wait([ref], timeout_s=100.0) == ([], [ref])
        assert engine.silent(50.0) == [log]
        with pytest.raises(RunError, match=r"forever.*log hangs"):
            engine.get(ref)
        engine.disturb(log, Disturbance("slow", factor=1.0))
        assert engine.get(ref) == "a"
        assert engine.now() == 26.0 + 100.0
