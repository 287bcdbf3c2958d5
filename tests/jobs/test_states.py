"""States of a job and their transitions."""

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
def test_only_transitions_of_the_table_are_possible(state: State, event: Event) -> None:
    if (state, event) in TRANSITIONS:
        assert next_state(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(ConflictError, match=rf"a job that is {state} cannot be {event[:4]}"):
            next_state(state, event)


def test_every_state_leads_to_a_final_one_which_only_a_user_can_leave() -> None:
    assert frozenset(State) == ACTIVE | TERMINAL | {State.QUEUED}
    leaves = {state: {event for at, event in TRANSITIONS if at is state} for state in State}
    assert all(leaves[state] <= {Event.RETRY} for state in TERMINAL)
    assert all({Event.CANCEL, Event.FAILED} <= leaves[state] for state in set(State) - TERMINAL)
    assert not leaves[State.DONE]


@given(_STEPS)
def test_after_any_events_a_job_is_consistent(steps: list[tuple[Event, float]]) -> None:
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


def test_a_job_that_progresses_each_time_may_lose_any_number_of_attempts() -> None:
    now = job()
    for number in range(2 * MAX_BROKEN):
        now = apply_event(now, Event.PICKED, now_s=0.0, workers=("w0",))
        now = apply_event(now, Event.COMMITTED, now_s=0.0)
        now = msgspec.structs.replace(now, progress=(number + 1) / 100)
        now = apply_event(now, Event.BROKE, now_s=0.0, reason="the driver died")
        assert (now.state, now.broken) == (State.QUEUED, 1)


def test_a_job_whose_attempts_are_lost_without_progress_fails_with_their_number() -> None:
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
    for progress in (0.5, *[0.5] * MAX_BROKEN):  # only the first attempt makes progress
        assert now.state is State.QUEUED
        now = apply_event(now, Event.PICKED, now_s=0.0, workers=("w0",))
        now = apply_event(now, Event.COMMITTED, now_s=0.0)
        now = msgspec.structs.replace(now, progress=progress)
        now = apply_event(now, Event.BROKE, now_s=0.0, reason="the driver died")
    # The attempts after the first one, without further progress, count as a row.
    assert now.state is State.FAILED
