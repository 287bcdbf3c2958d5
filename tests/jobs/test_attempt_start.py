"""The start of jobs: on all workers or none, whichever process fails."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest

from chimera.core.errors import ConfigurationError
from chimera.jobs.scheduling.attempt_start import AttemptStart, Phase
from chimera.jobs.scheduling.messages import (
    AllStarted,
    Attempt,
    AttemptEnded,
    BeginAttempt,
    CheckRequirements,
    Commit,
    EndAttempt,
    Limits,
    Prepare,
    Prepared,
    ReceiveFiles,
    RecordCommit,
    Refused,
    Release,
    Requirements,
    Reserve,
    Reserved,
    Send,
    Started,
)
from chimera.jobs.store.states import Event
from chimera.jobs.worker.lease import LeaseState, WorkerAction, WorkerLease
from jobs.start_simulation import SimulatedCluster, check_end

LIMITS = Limits()
A = Attempt("1", 1)
REQUIREMENTS = Requirements({"chimera": "0.1.0"}, ("numpy",))
ASSIGNMENTS = {"w0": {"rank": 0}, "w1": {"rank": 1}}


def _simulate(seeds: range) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        cluster = SimulatedCluster(seed)
        try:
            cluster.run()
            check_end(cluster)
        except AssertionError as error:
            raise AssertionError(f"seed {seed} at {cluster.now_s:.3f} s: {error}") from error
        seen += cluster.seen
    return seen


def _check_seen(seen: Counter[str]) -> None:
    """Check that each process failed in each phase, and that each event occurred."""
    assert {f"worker died {state.value}" for state in LeaseState} <= set(seen)
    assert {f"daemon died {phase.value}" for phase in Phase} <= set(seen)
    events = set(Event) - {Event.CANCEL, Event.RETRY}
    assert {*events, "adopted", "driver died", "lost message", "two jobs hold a part"} <= set(seen)


@pytest.mark.long
def test_after_any_failure_all_workers_start_or_none_and_every_job_ends_once() -> None:
    _check_seen(_simulate(range(2000)))


@pytest.mark.slow
def test_the_same_in_many_more_simulations() -> None:
    _check_seen(_simulate(range(2000, 12_000)))


def _start(until: Phase = Phase.RESERVE) -> AttemptStart:
    """Return a start at time 0 that has reached a phase, with answers of all workers."""
    start = AttemptStart(A, ASSIGNMENTS, REQUIREMENTS, LIMITS, 0.0)
    start.tick(0.0)
    for phase, answer in (
        (Phase.RESERVE, Reserved),
        (Phase.PREPARE, Prepared),
        (Phase.DECIDE, None),
        (Phase.COMMIT, Started),
    ):
        if start.phase is until or start.phase is not phase:
            break
        if answer is None:
            start.commit_recorded(0.0)
            continue
        for worker in ASSIGNMENTS:
            start.receive(worker, answer(A), 0.0)
    assert start.phase is until
    return start


def _lease(until: LeaseState) -> WorkerLease:
    """Return a lease at time 0 that has reached a state."""
    lease = WorkerLease(LIMITS)
    for state, step in (
        (LeaseState.CHECKING, lambda: lease.receive(Reserve(A, REQUIREMENTS, 7.0), 0.0)),
        (LeaseState.RESERVED, lambda: lease.completed(A, 0.0)),
        (LeaseState.VERIFYING, lambda: lease.receive(Prepare(A, {}, 65.0), 0.0)),
        (LeaseState.PREPARED, lambda: lease.completed(A, 0.0)),
        (LeaseState.STARTED, lambda: lease.receive(Commit(A, 10.0), 0.0)),
    ):
        if lease.state is until:
            break
        step()
        assert lease.state is state
    return lease


def _released(reason: str) -> list[Any]:
    return [Send(worker, Release(A, reason)) for worker in ASSIGNMENTS]


def test_all_three_phases_without_faults() -> None:
    start, leases = (
        AttemptStart(A, ASSIGNMENTS, REQUIREMENTS, LIMITS, 0.0),
        {name: WorkerLease(LIMITS) for name in ASSIGNMENTS},
    )
    acts, happened = start.tick(0.0), []
    while acts:
        act, *acts = acts
        happened.append(act)
        if isinstance(act, RecordCommit):
            assert all(lease.state is LeaseState.PREPARED for lease in leases.values())
            acts += start.commit_recorded(0.0)
        elif isinstance(act, Send):
            for done in _answers(leases[act.worker], act.message):
                acts += start.receive(act.worker, done, 0.0)
    assert [type(act.message) if isinstance(act, Send) else type(act) for act in happened] == [
        Reserve, Reserve, Prepare, Prepare, RecordCommit, Commit, Commit, AllStarted,
    ]  # fmt: skip
    assert [
        act.message.assignment for act in happened if isinstance(act, Send) and isinstance(act.message, Prepare)
    ] == list(ASSIGNMENTS.values())
    assert all(lease.state is LeaseState.STARTED for lease in leases.values())
    assert (start.phase, start.next_tick_s) == (Phase.RUNNING, math.inf)


def _answers(lease: WorkerLease, message: Any) -> list[Any]:
    """Return the answers of a worker that completes its actions at once."""
    answers, actions = [], list(lease.receive(message, 0.0))
    while actions:
        one = actions.pop(0)
        if isinstance(one, CheckRequirements | ReceiveFiles):
            actions += lease.completed(one.attempt, 0.0)
        elif not isinstance(one, BeginAttempt | EndAttempt):
            answers.append(one)
    return answers


@pytest.mark.parametrize("phase", [Phase.RESERVE, Phase.PREPARE, Phase.DECIDE, Phase.COMMIT, Phase.RUNNING])
def test_a_refusal_or_a_loss_releases_all_workers_with_a_reason(phase: Phase) -> None:
    event = Event.BROKE if phase in (Phase.COMMIT, Phase.RUNNING) else Event.REFUSED
    why = "worker w1 refused: its disk is full"
    assert _start(phase).receive("w1", Refused(A, "its disk is full"), 0.0) == [
        *_released(why),
        AttemptEnded(A, event, why),
    ]
    why = "worker w0 was lost: it died"
    start = _start(phase)
    assert start.worker_lost("w0", "it died") == [*_released(why), AttemptEnded(A, event, why)]
    assert start.worker_lost("w0", "it died") == start.tick(1e9) == start.stop("") == start.commit_recorded(0.0) == []


def test_a_permanent_refusal_is_a_failure() -> None:
    why = "worker w0 refused: it has no module 'snafu'"
    acts = _start().receive("w0", Refused(A, "it has no module 'snafu'", permanent=True), 0.0)
    assert acts == [*_released(why), AttemptEnded(A, Event.FAILED, why)]


@pytest.mark.parametrize(
    ("phase", "limit_s", "event"),
    [
        (Phase.RESERVE, LIMITS.reserve_s, Event.REFUSED),
        (Phase.PREPARE, LIMITS.prepare_s, Event.REFUSED),
        (Phase.COMMIT, LIMITS.commit_s, Event.BROKE),
    ],
)
def test_unanswered_messages_are_resent_until_a_timeout_releases_all(
    phase: Phase, limit_s: float, event: Event
) -> None:
    start = _start(phase)
    answer = {Phase.RESERVE: Reserved, Phase.PREPARE: Prepared, Phase.COMMIT: Started}[phase]
    start.receive("w0", answer(A), 0.0)
    assert start.tick(LIMITS.resend_s - 1e-9) == []
    assert [act.worker for act in start.tick(LIMITS.resend_s) if isinstance(act, Send)] == ["w1"]
    assert start.next_tick_s <= limit_s
    why = f"worker w1 did not answer {phase.value!r} within {limit_s:g} s"
    assert start.receive("w1", answer(A), limit_s) == [*_released(why), AttemptEnded(A, event, why, ("w1",))]


def test_a_lease_lasts_until_the_next_message_can_have_arrived() -> None:
    """Each phase ends just in time, and the next message has the longest delay."""
    start, lease = AttemptStart(A, {"w0": {}}, REQUIREMENTS, LIMITS, 0.0), WorkerLease(LIMITS)
    (action,) = start.tick(0.0)
    just_s = 1e-6
    phase_ends_s = LIMITS.reserve_s - just_s
    for answer, state, limit_s in (
        (Reserved, LeaseState.VERIFYING, LIMITS.prepare_s),
        (Prepared, LeaseState.STARTED, LIMITS.commit_s),
    ):
        assert isinstance(action, Send)
        lease.receive(action.message, phase_ends_s - just_s)
        lease.completed(A, phase_ends_s - just_s)
        acts = start.receive("w0", answer(A), phase_ends_s)
        (action,) = start.commit_recorded(phase_ends_s) if acts == [RecordCommit(A)] else acts
        assert isinstance(action, Send)
        lease.receive(action.message, phase_ends_s + LIMITS.commit_s - just_s)
        assert lease.state is state
        phase_ends_s += limit_s - just_s


def test_a_commit_recorded_too_late_is_a_lost_attempt_that_no_worker_starts() -> None:
    start = _start(Phase.DECIDE)
    acts = start.commit_recorded(LIMITS.prepare_s)
    assert acts[:2] == _released("the commit was recorded too late for the workers")
    assert isinstance(acts[2], AttemptEnded)
    assert acts[2].event is Event.BROKE


def test_no_worker_receives_commit_before_it_is_recorded() -> None:
    start = _start(Phase.DECIDE)
    assert start.receive("w0", Prepared(A), 0.0) == start.tick(1e9) == []
    assert start.stop("it was cancelled") == _released("it was cancelled")


@pytest.mark.parametrize("answer", [Reserved, Prepared, Started])
def test_an_outdated_answer_or_one_of_another_worker_changes_nothing(answer: Any) -> None:
    for phase in (Phase.RESERVE, Phase.PREPARE, Phase.COMMIT):
        start = _start(phase)
        for worker, attempt in (("w0", Attempt("1", 2)), ("w1", Attempt("2", 1)), ("w7", A)):
            assert start.receive(worker, answer(attempt), 0.0) == []
            assert start.receive(worker, Refused(attempt, "no"), 0.0) == []
        assert start.receive("w0", answer(A), 0.0) == start.receive("w0", answer(A), 0.0) == []


def test_an_adopted_start_releases_its_workers_like_any_other() -> None:
    start = AttemptStart.adopted(A, ASSIGNMENTS, LIMITS)
    assert start.tick(1e9) == []
    assert start.worker_lost("w1", "it died")[-1] == AttemptEnded(A, Event.BROKE, "worker w1 was lost: it died")


@pytest.mark.parametrize("state", [state for state in LeaseState if state is not LeaseState.FREE])
def test_a_lease_expires_and_never_exceeds_its_limit(state: LeaseState) -> None:
    lease = _lease(state)
    assert lease.expires_s <= LIMITS.max_lease_s
    assert lease.tick(lease.expires_s - 1e-6) == []
    end, refused = lease.tick(lease.expires_s)
    assert isinstance(end, EndAttempt)
    assert isinstance(refused, Refused)
    assert (lease.state, lease.attempt, lease.expires_s) == (LeaseState.FREE, None, math.inf)


@pytest.mark.parametrize("state", list(LeaseState))
def test_a_released_worker_ignores_all_later_messages_of_the_attempt(state: LeaseState) -> None:
    lease = _lease(state)
    assert lease.receive(Release(A, "why"), 0.0) == ([] if state is LeaseState.FREE else [EndAttempt(A, "why")])
    late = (
        Release(Attempt("1", 0), "why"),
        Reserve(A, REQUIREMENTS, 7.0),
        Prepare(A, {}, 7.0),
        Commit(A, 7.0),
        Reserve(Attempt("1", 0), REQUIREMENTS, 7.0),
        Release(A, "why"),
    )
    for message in late:
        assert lease.receive(message, 0.0) == lease.completed(A, 0.0) == lease.heartbeat(A, 0.0) == []
    assert lease.state is LeaseState.FREE
    assert lease.receive(Reserve(Attempt("1", 2), REQUIREMENTS, 7.0), 0.0) == [
        CheckRequirements(Attempt("1", 2), REQUIREMENTS)
    ]


@pytest.mark.parametrize("state", [state for state in LeaseState if state is not LeaseState.FREE])
def test_a_reserved_worker_refuses_another_job_and_accepts_a_later_attempt_of_its_own(state: LeaseState) -> None:
    lease, later = _lease(state), Attempt("1", 2)
    other = Attempt("2", 9)
    assert lease.receive(Reserve(other, REQUIREMENTS, 7.0), 0.0) == [Refused(other, "it is reserved for job 1")]
    for message in (Prepare(other, {}, 7.0), Commit(other, 7.0)):
        (no,) = lease.receive(message, 0.0)
        assert isinstance(no, Refused)
    assert (lease.attempt, lease.state) == (A, state)
    assert lease.receive(Reserve(later, REQUIREMENTS, 7.0), 0.0) == [
        EndAttempt(A, "attempt 2 has started"),
        CheckRequirements(later, REQUIREMENTS),
    ]
    assert lease.receive(Reserve(A, REQUIREMENTS, 7.0), 0.0) == []


def test_a_repeated_request_is_answered_again_and_does_not_renew_the_lease() -> None:
    again: dict[LeaseState, tuple[Any, list[WorkerAction]]] = {
        LeaseState.CHECKING: (Reserve(A, REQUIREMENTS, 70.0), []),
        LeaseState.RESERVED: (Reserve(A, REQUIREMENTS, 70.0), [Reserved(A)]),
        LeaseState.VERIFYING: (Prepare(A, {}, 70.0), []),
        LeaseState.PREPARED: (Prepare(A, {}, 70.0), [Prepared(A)]),
        LeaseState.STARTED: (Commit(A, 70.0), [Started(A)]),
    }
    for state, (message, answers) in again.items():
        lease = _lease(state)
        before_s = lease.expires_s
        assert lease.receive(message, 0.0) == answers
        assert (lease.state, lease.expires_s) == (state, before_s)


@pytest.mark.parametrize("state", [LeaseState.CHECKING, LeaseState.VERIFYING])
def test_a_worker_that_fails_to_prepare_refuses_with_a_reason_and_is_free(state: LeaseState) -> None:
    lease = _lease(state)
    answers = lease.completed(A, 0.0, reason="it has no module 'snafu'", permanent=True)
    assert answers == [EndAttempt(A, "it has no module 'snafu'"), Refused(A, "it has no module 'snafu'", True)]
    assert lease.state is LeaseState.FREE


def test_heartbeats_renew_the_lease_of_a_started_attempt_only() -> None:
    lease = _lease(LeaseState.STARTED)
    for now_s in range(0, 100, 9):
        assert lease.heartbeat(A, float(now_s)) == []
    assert lease.state is LeaseState.STARTED
    assert lease.heartbeat(Attempt("2", 1), 108.0) == []
    assert lease.expires_s == 99.0 + LIMITS.heartbeat_timeout_s
    held = _lease(LeaseState.RESERVED)
    assert held.heartbeat(A, 6.0) == []
    assert held.expires_s == 7.0


def test_invalid_limits_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="above 0"):
        Limits(reserve_s=0.0)
    with pytest.raises(ConfigurationError, match="commit_s"):
        Limits(commit_s=10.0)
    with pytest.raises(ConfigurationError, match="no workers"):
        AttemptStart(A, {}, REQUIREMENTS, LIMITS, 0.0)
