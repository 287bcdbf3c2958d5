"""The start of jobs: all seats or none, whatever dies."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest

from chimera.core.errors import ConfigurationError
from chimera.jobs.scheduling.attempt_start import Phase, Start
from chimera.jobs.scheduling.messages import (
    Attempt,
    Began,
    Begin,
    Can,
    Check,
    Commit,
    Decide,
    End,
    Limits,
    Needs,
    No,
    Over,
    Prepare,
    Ready,
    Release,
    Send,
    Started,
    Verify,
    Yes,
)
from chimera.jobs.store.states import Event
from chimera.jobs.worker.lease import Does, Place, Seat
from jobs.starting_world import World, check_end

LIMITS = Limits()
A = Attempt("1", 1)
NEEDS = Needs({"chimera": "0.1.0"}, ("numpy",))
ORDERS = {"w0": {"rank": 0}, "w1": {"rank": 1}}


def _in_worlds(seeds: range) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        world = World(seed)
        try:
            world.run()
            check_end(world)
        except AssertionError as error:
            raise AssertionError(f"world {seed} at {world.now_s:.3f} s: {error}") from error
        seen += world.seen
    return seen


def _check_seen(seen: Counter[str]) -> None:
    """Everybody died in every phase, and everything happened that can."""
    assert {f"seat died {place.value}" for place in Place} <= set(seen)
    assert {f"daemon died {phase.value}" for phase in Phase} <= set(seen)
    events = set(Event) - {Event.CANCEL, Event.RETRY}
    assert {*events, "adopted", "driver died", "lost message", "two jobs hold a part"} <= set(seen)


@pytest.mark.long
def test_whoever_dies_whenever_all_seats_begin_or_none_and_every_job_ends_once() -> None:
    _check_seen(_in_worlds(range(2000)))


@pytest.mark.slow
def test_the_same_in_many_more_worlds() -> None:
    _check_seen(_in_worlds(range(2000, 12_000)))


def _start(until: Phase = Phase.CAN) -> Start:
    """Return a start at time 0 in which all seats have answered at once, until a phase."""
    start = Start(A, ORDERS, NEEDS, LIMITS, 0.0)
    start.tick(0.0)
    for phase, answer in ((Phase.CAN, Yes), (Phase.PREPARE, Ready), (Phase.DECIDE, None), (Phase.COMMIT, Started)):
        if start.phase is until or start.phase is not phase:
            break
        if answer is None:
            start.decided(0.0)
            continue
        for seat in ORDERS:
            start.take(seat, answer(A), 0.0)
    assert start.phase is until
    return start


def _seat(until: Place) -> Seat:
    """Return a seat at time 0 that has been asked and has done all until it has this place."""
    seat = Seat(LIMITS)
    for place, step in (
        (Place.CHECKING, lambda: seat.take(Can(A, NEEDS, 7.0), 0.0)),
        (Place.HELD, lambda: seat.did(A, 0.0)),
        (Place.VERIFYING, lambda: seat.take(Prepare(A, {}, 65.0), 0.0)),
        (Place.READY, lambda: seat.did(A, 0.0)),
        (Place.BEGUN, lambda: seat.take(Commit(A, 10.0), 0.0)),
    ):
        if seat.place is until:
            break
        step()
        assert seat.place is place
    return seat


def _released(reason: str) -> list[Any]:
    return [Send(seat, Release(A, reason)) for seat in ORDERS]


def test_all_three_phases_where_nothing_goes_wrong() -> None:
    start, seats = Start(A, ORDERS, NEEDS, LIMITS, 0.0), {name: Seat(LIMITS) for name in ORDERS}
    acts, happened = start.tick(0.0), []
    while acts:
        act, *acts = acts
        happened.append(act)
        if isinstance(act, Decide):
            assert all(seat.place is Place.READY for seat in seats.values())
            acts += start.decided(0.0)
        elif isinstance(act, Send):
            for done in _and_does(seats[act.seat], act.message):
                acts += start.take(act.seat, done, 0.0)
    assert [type(act.message) if isinstance(act, Send) else type(act) for act in happened] == [
        Can, Can, Prepare, Prepare, Decide, Commit, Commit, Began,
    ]  # fmt: skip
    assert [
        act.message.order for act in happened if isinstance(act, Send) and isinstance(act.message, Prepare)
    ] == list(ORDERS.values())
    assert all(seat.place is Place.BEGUN for seat in seats.values())
    assert (start.phase, start.next_s) == (Phase.RUNNING, math.inf)


def _and_does(seat: Seat, message: Any) -> list[Any]:
    """Return the answers of a seat whose machine does at once what it has to."""
    said, does = [], list(seat.take(message, 0.0))
    while does:
        one = does.pop(0)
        if isinstance(one, Check | Verify):
            does += seat.did(one.attempt, 0.0)
        elif not isinstance(one, Begin | End):
            said.append(one)
    return said


@pytest.mark.parametrize("phase", [Phase.CAN, Phase.PREPARE, Phase.DECIDE, Phase.COMMIT, Phase.RUNNING])
def test_a_worker_that_refuses_or_is_lost_frees_all_at_once_and_it_is_told_why(phase: Phase) -> None:
    event = Event.BROKE if phase in (Phase.COMMIT, Phase.RUNNING) else Event.REFUSED
    why = "worker w1 refused: its disk is full"
    assert _start(phase).take("w1", No(A, "its disk is full"), 0.0) == [*_released(why), Over(A, event, why)]
    why = "worker w0 was lost: it died"
    start = _start(phase)
    assert start.lost("w0", "it died") == [*_released(why), Over(A, event, why)]
    assert start.lost("w0", "it died") == start.tick(1e9) == start.stop("") == start.decided(0.0) == []


def test_what_asking_again_would_not_change_is_a_failure() -> None:
    why = "worker w0 refused: it has no module 'snafu'"
    acts = _start().take("w0", No(A, "it has no module 'snafu'", lasting=True), 0.0)
    assert acts == [*_released(why), Over(A, Event.FAILED, why)]


@pytest.mark.parametrize(
    ("phase", "limit_s", "event"),
    [
        (Phase.CAN, LIMITS.can_s, Event.REFUSED),
        (Phase.PREPARE, LIMITS.prepare_s, Event.REFUSED),
        (Phase.COMMIT, LIMITS.commit_s, Event.BROKE),
    ],
)
def test_a_worker_that_is_late_is_asked_again_and_then_frees_all(phase: Phase, limit_s: float, event: Event) -> None:
    start = _start(phase)
    answer = {Phase.CAN: Yes, Phase.PREPARE: Ready, Phase.COMMIT: Started}[phase]
    start.take("w0", answer(A), 0.0)
    assert start.tick(LIMITS.again_s - 1e-9) == []
    assert [act.seat for act in start.tick(LIMITS.again_s) if isinstance(act, Send)] == ["w1"]
    assert start.next_s <= limit_s
    why = f"worker w1 did not answer {phase.value!r} within {limit_s:g} s"
    assert start.take("w1", answer(A), limit_s) == [*_released(why), Over(A, event, why)]


def test_a_seat_keeps_its_place_until_the_next_message_can_have_come() -> None:
    """Each phase ends just in time, and the message that begins the next one is on its way for as long as it may be."""
    start, seat = Start(A, {"w0": {}}, NEEDS, LIMITS, 0.0), Seat(LIMITS)
    (asked,) = start.tick(0.0)
    just_s = 1e-6
    phase_ends_s = LIMITS.can_s - just_s
    for answer, place, limit_s in ((Yes, Place.VERIFYING, LIMITS.prepare_s), (Ready, Place.BEGUN, LIMITS.commit_s)):
        assert isinstance(asked, Send)
        seat.take(asked.message, phase_ends_s - just_s)
        seat.did(A, phase_ends_s - just_s)
        acts = start.take("w0", answer(A), phase_ends_s)
        (asked,) = start.decided(phase_ends_s) if acts == [Decide(A)] else acts
        assert isinstance(asked, Send)
        seat.take(asked.message, phase_ends_s + LIMITS.commit_s - just_s)
        assert seat.place is place
        phase_ends_s += limit_s - just_s


def test_a_decision_that_took_too_long_is_a_lost_attempt_that_nobody_begins() -> None:
    start = _start(Phase.DECIDE)
    acts = start.decided(LIMITS.prepare_s)
    assert acts[:2] == _released("the decision to begin came too late for the workers")
    assert isinstance(acts[2], Over)
    assert acts[2].event is Event.BROKE


def test_nobody_is_told_to_begin_before_the_decision_is_written_down() -> None:
    start = _start(Phase.DECIDE)
    assert start.take("w0", Ready(A), 0.0) == start.tick(1e9) == []
    assert start.stop("it was cancelled") == _released("it was cancelled")


@pytest.mark.parametrize("answer", [Yes, Ready, Started])
def test_an_answer_that_is_out_of_date_or_of_a_stranger_changes_nothing(answer: Any) -> None:
    for phase in (Phase.CAN, Phase.PREPARE, Phase.COMMIT):
        start = _start(phase)
        for seat, attempt in (("w0", Attempt("1", 2)), ("w1", Attempt("2", 1)), ("w7", A)):
            assert start.take(seat, answer(attempt), 0.0) == []
            assert start.take(seat, No(attempt, "no"), 0.0) == []
        assert start.take("w0", answer(A), 0.0) == start.take("w0", answer(A), 0.0) == []


def test_a_start_that_was_found_running_frees_its_seats_like_any_other() -> None:
    start = Start.adopted(A, ORDERS, LIMITS)
    assert start.tick(1e9) == []
    assert start.lost("w1", "it died")[-1] == Over(A, Event.BROKE, "worker w1 was lost: it died")


@pytest.mark.parametrize("place", [place for place in Place if place is not Place.FREE])
def test_a_promise_ends_by_itself_and_is_never_longer_than_agreed(place: Place) -> None:
    seat = _seat(place)
    assert seat.until_s <= LIMITS.longest_s
    assert seat.tick(seat.until_s - 1e-6) == []
    end, said = seat.tick(seat.until_s)
    assert isinstance(end, End)
    assert isinstance(said, No)
    assert (seat.place, seat.attempt, seat.until_s) == (Place.FREE, None, math.inf)


@pytest.mark.parametrize("place", list(Place))
def test_a_seat_that_was_released_takes_no_part_any_more_whatever_arrives(place: Place) -> None:
    seat = _seat(place)
    assert seat.take(Release(A, "why"), 0.0) == ([] if place is Place.FREE else [End(A, "why")])
    late = (
        Can(A, NEEDS, 7.0),
        Prepare(A, {}, 7.0),
        Commit(A, 7.0),
        Can(Attempt("1", 0), NEEDS, 7.0),
        Release(A, "why"),
    )
    for message in late:
        assert seat.take(message, 0.0) == seat.did(A, 0.0) == seat.alive(A, 0.0) == []
    assert seat.place is Place.FREE
    assert seat.take(Can(Attempt("1", 2), NEEDS, 7.0), 0.0) == [Check(Attempt("1", 2), NEEDS)]


@pytest.mark.parametrize("place", [place for place in Place if place is not Place.FREE])
def test_a_taken_seat_refuses_another_job_and_lets_its_own_begin_anew(place: Place) -> None:
    seat, later = _seat(place), Attempt("1", 2)
    other = Attempt("2", 9)
    assert seat.take(Can(other, NEEDS, 7.0), 0.0) == [No(other, "it is taken by job 1")]
    for message in (Prepare(other, {}, 7.0), Commit(other, 7.0)):
        (no,) = seat.take(message, 0.0)
        assert isinstance(no, No)
    assert (seat.attempt, seat.place) == (A, place)
    assert seat.take(Can(later, NEEDS, 7.0), 0.0) == [End(A, "attempt 2 has begun"), Check(later, NEEDS)]
    assert seat.take(Can(A, NEEDS, 7.0), 0.0) == []


def test_a_question_that_comes_again_is_answered_again_and_prolongs_nothing() -> None:
    again: dict[Place, tuple[Any, list[Does]]] = {
        Place.CHECKING: (Can(A, NEEDS, 70.0), []),
        Place.HELD: (Can(A, NEEDS, 70.0), [Yes(A)]),
        Place.VERIFYING: (Prepare(A, {}, 70.0), []),
        Place.READY: (Prepare(A, {}, 70.0), [Ready(A)]),
        Place.BEGUN: (Commit(A, 70.0), [Started(A)]),
    }
    for place, (message, answers) in again.items():
        seat = _seat(place)
        before_s = seat.until_s
        assert seat.take(message, 0.0) == answers
        assert (seat.place, seat.until_s) == (place, before_s)


@pytest.mark.parametrize("place", [Place.CHECKING, Place.VERIFYING])
def test_a_worker_that_cannot_says_why_and_is_free(place: Place) -> None:
    seat = _seat(place)
    said = seat.did(A, 0.0, why="it has no module 'snafu'", lasting=True)
    assert said == [End(A, "it has no module 'snafu'"), No(A, "it has no module 'snafu'", True)]
    assert seat.place is Place.FREE


def test_signs_of_life_keep_what_has_begun_and_nothing_else() -> None:
    seat = _seat(Place.BEGUN)
    for now_s in range(0, 100, 9):
        assert seat.alive(A, float(now_s)) == []
    assert seat.place is Place.BEGUN
    assert seat.alive(Attempt("2", 1), 108.0) == []
    assert seat.until_s == 99.0 + LIMITS.alive_s
    held = _seat(Place.HELD)
    assert held.alive(A, 6.0) == []
    assert held.until_s == 7.0


def test_limits_that_cannot_hold_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="above 0"):
        Limits(can_s=0.0)
    with pytest.raises(ConfigurationError, match="commit_s"):
        Limits(commit_s=10.0)
    with pytest.raises(ConfigurationError, match="no workers"):
        Start(A, {}, NEEDS, LIMITS, 0.0)
