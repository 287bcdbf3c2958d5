"""State machine of the coordinator for the start of an attempt: all workers start, or none. It has no I/O and no clock."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any, Self

from chimera.core.errors import ConfigurationError
from chimera.jobs.scheduling.messages import (
    AllStarted,
    Attempt,
    AttemptEnded,
    Commit,
    CoordinatorAction,
    Limits,
    Prepare,
    Prepared,
    RecordCommit,
    Refused,
    Release,
    Requirements,
    Reserve,
    Reserved,
    Send,
    Started,
    ToCoordinator,
    ToWorker,
)
from chimera.jobs.store.states import Event


class Phase(Enum):
    """Phase of a start. A failure before the commit is a refusal; after it the attempt is lost."""

    RESERVE = "reserve"
    PREPARE = "prepare"
    DECIDE = "decide"
    COMMIT = "commit"
    RUNNING = "running"
    ENDED = "ended"


_ANSWERS: Mapping[Phase, type[ToCoordinator]] = {
    Phase.RESERVE: Reserved,
    Phase.PREPARE: Prepared,
    Phase.COMMIT: Started,
}
_COMMITTED = (Phase.COMMIT, Phase.RUNNING)


class AttemptStart:
    """The start of one attempt, and its workers until it ends.

    Every method returns the actions to execute, in order; none blocks. The caller records the commit (`RecordCommit`). No
    worker receives `Commit` before the caller has called `commit_recorded`.

    Parameters
    ----------
    attempt : the attempt.
    assignments : files and role of each worker, by its name.
    requirements : requirements on every worker.
    limits : time limits of the phases.
    now_s : current time of a monotonic clock, in seconds.

    Raises
    ------
    ConfigurationError : there are no workers.

    Attributes
    ----------
    phase : current phase.
    """

    def __init__(
        self,
        attempt: Attempt,
        assignments: Mapping[str, Mapping[str, Any]],
        requirements: Requirements,
        limits: Limits,
        now_s: float,
    ) -> None:
        if not assignments:
            raise ConfigurationError(f"attempt {attempt.number} of job {attempt.job} has no workers to start on")
        self.attempt, self.phase = attempt, Phase.RESERVE
        self._assignments, self._requirements, self._limits = assignments, requirements, limits
        self._answered: set[str] = set()
        self._phase_ends_s, self._resend_s = now_s + limits.reserve_s, now_s

    @classmethod
    def adopted(cls, attempt: Attempt, workers: Collection[str], limits: Limits) -> Self:
        """Return the start of a running attempt that an earlier coordinator started."""
        start = cls(attempt, {worker: {} for worker in workers}, Requirements(), limits, 0.0)
        start.phase = Phase.RUNNING
        return start

    @property
    def next_tick_s(self) -> float:
        """Time by which `tick` must be called; infinite if no answer is expected."""
        return min(self._phase_ends_s, self._resend_s) if self.phase in _ANSWERS else math.inf

    def tick(self, now_s: float) -> list[CoordinatorAction]:
        """Send unanswered messages again, and end the attempt if a phase has exceeded its limit."""
        if ended := self._timeout(now_s):
            return ended
        if self.phase not in _ANSWERS or now_s < self._resend_s:
            return []
        self._resend_s = now_s + self._limits.resend_s
        return [
            Send(worker, self._message(worker, now_s)) for worker in self._assignments if worker not in self._answered
        ]

    def receive(self, worker: str, answer: ToCoordinator, now_s: float) -> list[CoordinatorAction]:
        """Handle an answer of a worker; outdated and repeated answers change nothing."""
        if answer.attempt != self.attempt or worker not in self._assignments or self.phase is Phase.ENDED:
            return []
        if isinstance(answer, Refused):
            return self._end(f"worker {worker} refused: {answer.reason}", permanent=answer.permanent)
        if ended := self._timeout(now_s):
            return ended
        if type(answer) is not _ANSWERS.get(self.phase):
            return []
        self._answered.add(worker)
        return self._advance(now_s) if len(self._answered) == len(self._assignments) else []

    def worker_lost(self, worker: str, reason: str) -> list[CoordinatorAction]:
        """Handle the loss of a worker, for example when its connection is closed."""
        if worker not in self._assignments or self.phase is Phase.ENDED:
            return []
        return self._end(f"worker {worker} was lost: {reason}")

    def commit_recorded(self, now_s: float) -> list[CoordinatorAction]:
        """Continue after the commit was recorded; if that took too long, the attempt is lost."""
        if self.phase is not Phase.DECIDE:
            return []
        timed_out = now_s >= self._phase_ends_s
        self._enter(Phase.COMMIT, now_s, self._limits.commit_s)
        return self._end("the commit was recorded too late for the workers") if timed_out else self.tick(now_s)

    def stop(self, reason: str) -> list[CoordinatorAction]:
        """End the attempt for a reason that the caller has recorded, for example a cancellation."""
        if self.phase is Phase.ENDED:
            return []
        self.phase = Phase.ENDED
        return [Send(worker, Release(self.attempt, reason)) for worker in self._assignments]

    def _advance(self, now_s: float) -> list[CoordinatorAction]:
        """Enter the next phase, after the answers of all workers."""
        if self.phase is Phase.RESERVE:
            self._enter(Phase.PREPARE, now_s, self._limits.prepare_s)
            return self.tick(now_s)
        if self.phase is Phase.PREPARE:
            self.phase = Phase.DECIDE  # keeps the deadline of the phase before, since the leases last until then
            return [RecordCommit(self.attempt)]
        self.phase = Phase.RUNNING
        return [AllStarted(self.attempt)]

    def _enter(self, phase: Phase, now_s: float, limit_s: float) -> None:
        self.phase = phase
        self._answered.clear()
        self._phase_ends_s, self._resend_s = now_s + limit_s, now_s

    def _message(self, worker: str, now_s: float) -> ToWorker:
        """Return the message of this phase to a worker; its lease lasts until the next message can have arrived."""
        lease_s = self._phase_ends_s - now_s + self._limits.commit_s
        if self.phase is Phase.RESERVE:
            return Reserve(self.attempt, self._requirements, lease_s)
        if self.phase is Phase.PREPARE:
            return Prepare(self.attempt, self._assignments[worker], lease_s)
        return Commit(self.attempt, self._limits.heartbeat_timeout_s)

    def _timeout(self, now_s: float) -> list[CoordinatorAction]:
        if self.phase not in _ANSWERS or now_s < self._phase_ends_s:
            return []
        limits = {
            Phase.RESERVE: self._limits.reserve_s,
            Phase.PREPARE: self._limits.prepare_s,
            Phase.COMMIT: self._limits.commit_s,
        }
        unanswered = tuple(worker for worker in self._assignments if worker not in self._answered)
        reason = f"worker {', '.join(unanswered)} did not answer {self.phase.value!r} within {limits[self.phase]:g} s"
        return self._end(reason, unanswered=unanswered)

    def _end(
        self, reason: str, *, permanent: bool = False, unanswered: tuple[str, ...] = ()
    ) -> list[CoordinatorAction]:
        """Release all workers, and report the event for the job."""
        event = Event.BROKE if self.phase in _COMMITTED else Event.FAILED if permanent else Event.REFUSED
        return [*self.stop(reason), AttemptEnded(self.attempt, event, reason, unanswered)]
