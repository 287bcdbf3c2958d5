"""The states of a job and what leads from each to which."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.core.errors import ConflictError
from chimera.jobs.store.records import MAX_BROKEN, apply_event
from chimera.jobs.store.states import ACTIVE, TERMINAL, TRANSITIONS, Event, State, next_state
from jobs.samples import job

_STEPS = st.lists(st.tuples(st.sampled_from(Event), st.floats(0, 1)), max_size=60)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_the_table_is_all_that_can_happen(state: State, event: Event) -> None:
    if (state, event) in TRANSITIONS:
        assert next_state(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(ConflictError, match=rf"a job that is {state} cannot be {event[:4]}"):
            next_state(state, event)


def test_every_state_can_be_left_for_an_end_and_an_end_only_by_a_person() -> None:
    assert frozenset(State) == ACTIVE | TERMINAL | {State.QUEUED}
    leaves = {state: {event for at, event in TRANSITIONS if at is state} for state in State}
    assert all(leaves[state] <= {Event.RETRY} for state in TERMINAL)
    assert all({Event.CANCEL, Event.FAILED} <= leaves[state] for state in set(State) - TERMINAL)
    assert not leaves[State.DONE]


@given(_STEPS)
def test_whatever_is_tried_a_job_stays_one_that_makes_sense(steps: list[tuple[Event, float]]) -> None:
    now, ends = job(), 0
    for at_s, (event, progress) in enumerate(steps):
        before = now
        try:
            now = apply_event(now, event, now_s=float(at_s), reason="why", workers=("w0",))
        except ConflictError:
            assert (before.state, event) not in TRANSITIONS
            continue
        ends += now.state in TERMINAL
        if now.state is State.RUNNING:
            now = msgspec.structs.replace(now, progress=max(now.progress, progress))
        assert now.attempt - before.attempt == (event is Event.PICKED)
        assert now.progress >= before.progress
        assert now.broken < MAX_BROKEN or now.state is State.FAILED
        assert bool(now.workers) or not now.active
        if event is Event.RETRY:
            ends -= 1
            assert now.broken == 0
        assert ends == (now.state in TERMINAL)


def test_a_job_that_comes_further_each_time_may_break_as_often_as_it_likes() -> None:
    now = job()
    for number in range(2 * MAX_BROKEN):
        now = apply_event(now, Event.PICKED, now_s=0.0, workers=("w0",))
        now = apply_event(now, Event.COMMITTED, now_s=0.0)
        now = msgspec.structs.replace(now, progress=(number + 1) / 100)
        now = apply_event(now, Event.BROKE, now_s=0.0, reason="the driver died")
        assert (now.state, now.broken) == (State.QUEUED, 1)


def test_a_job_whose_attempts_break_without_coming_further_has_failed_and_says_how_often() -> None:
    now = job()
    for number in range(MAX_BROKEN):
        assert now.state is State.QUEUED
        assert now.broken == number
        now = apply_event(now, Event.PICKED, now_s=0.0, workers=("w0",))
        now = apply_event(now, Event.COMMITTED, now_s=0.0)
        now = apply_event(now, Event.BROKE, now_s=0.0, reason="the driver died")
    assert now.state is State.FAILED
    assert now.reason == f"the driver died ({MAX_BROKEN} attempts in a row were lost without further progress)"
    assert apply_event(now, Event.RETRY, now_s=0.0).broken == 0


def test_progress_of_an_earlier_attempt_counts_once() -> None:
    now = job()
    for progress in (0.5, *[0.5] * MAX_BROKEN):  # the first attempt comes further, and the others do not
        assert now.state is State.QUEUED
        now = apply_event(now, Event.PICKED, now_s=0.0, workers=("w0",))
        now = apply_event(now, Event.COMMITTED, now_s=0.0)
        now = msgspec.structs.replace(now, progress=progress)
        now = apply_event(now, Event.BROKE, now_s=0.0, reason="the driver died")
    # The row is that of the attempts which came no further than the first one.
    assert now.state is State.FAILED
