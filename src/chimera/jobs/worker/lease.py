"""State machine of a worker for the start of an attempt: its lease. It has no I/O and no clock."""

from __future__ import annotations

import math
from collections import OrderedDict
from enum import Enum
from typing import TypeAlias

from chimera.jobs.scheduling.messages import (
    Attempt,
    BeginAttempt,
    CheckRequirements,
    Commit,
    Effect,
    EndAttempt,
    Limits,
    Prepare,
    Prepared,
    ReceiveFiles,
    Refused,
    Release,
    Reserve,
    Reserved,
    Started,
    ToCoordinator,
    ToWorker,
)

_MAX_REMEMBERED = 1000  # number of jobs whose last ended attempt is stored

WorkerAction: TypeAlias = ToCoordinator | Effect


class LeaseState(Enum):
    """State of the lease of a worker."""

    FREE = "free"
    CHECKING = "checking"
    RESERVED = "reserved"
    VERIFYING = "verifying"
    PREPARED = "prepared"
    STARTED = "started"


_ON_COMPLETED: dict[LeaseState, tuple[LeaseState, type[Reserved | Prepared]]] = {
    LeaseState.CHECKING: (LeaseState.RESERVED, Reserved),
    LeaseState.VERIFYING: (LeaseState.PREPARED, Prepared),
}
_ANSWERS: dict[LeaseState, type[Reserved | Prepared | Started]] = {
    LeaseState.RESERVED: Reserved,
    LeaseState.PREPARED: Prepared,
    LeaseState.STARTED: Started,
}


class WorkerLease:
    """Lease of a worker for at most one attempt at a time. It expires without a message.

    Every method returns, in order, the answers to send to the coordinator and the actions to execute. Messages may be lost,
    repeated, delayed or reordered. A restarted worker has a new lease, and must not receive messages that were sent to the old
    process.

    Parameters
    ----------
    limits : time limits of a start.

    Attributes
    ----------
    state : state of the lease.
    attempt : attempt that has the lease; None if the worker is free.
    expires_s : time at which the lease expires if it is not renewed; infinite if the worker is free.
    """

    def __init__(self, limits: Limits) -> None:
        self.state, self.expires_s = LeaseState.FREE, math.inf
        self.attempt: Attempt | None = None
        self._limits = limits
        self._ended_attempts: OrderedDict[str, int] = OrderedDict()

    def receive(self, message: ToWorker, now_s: float) -> list[WorkerAction]:
        """Handle a message of a coordinator."""
        done = self.tick(now_s)
        attempt = message.attempt
        if isinstance(message, Release):
            own = self._end(message.reason) if attempt == self.attempt else []
            self._mark_ended(attempt)
            return done + own
        if attempt.number <= self._ended_attempts.get(attempt.job, 0):
            return done  # the coordinator knows that this attempt is over
        if isinstance(message, Reserve):
            return done + self._reserve(message, now_s)
        if attempt != self.attempt:
            return [*done, Refused(attempt, f"it is not reserved for attempt {attempt.number} of job {attempt.job}")]
        return done + self._prepare_or_start(message, now_s)

    def completed(
        self, attempt: Attempt, now_s: float, *, reason: str = "", permanent: bool = False
    ) -> list[WorkerAction]:
        """Handle the completion of `CheckRequirements` or `ReceiveFiles`; ``reason`` is the error if it failed."""
        done = self.tick(now_s)
        if attempt != self.attempt or self.state not in _ON_COMPLETED:
            return done
        if reason:
            return [*done, *self._end(reason), Refused(attempt, reason, permanent)]
        self.state, answer = _ON_COMPLETED[self.state]
        return [*done, answer(attempt)]

    def heartbeat(self, attempt: Attempt, now_s: float) -> list[WorkerAction]:
        """Renew the lease of a started attempt."""
        done = self.tick(now_s)
        if attempt == self.attempt and self.state is LeaseState.STARTED:
            self.expires_s = now_s + self._limits.heartbeat_timeout_s
        return done

    def tick(self, now_s: float) -> list[WorkerAction]:
        """End an expired lease; call this at `expires_s` at the latest, earlier calls do nothing."""
        attempt = self.attempt
        if attempt is None or now_s < self.expires_s:
            return []
        begun = self.state is LeaseState.STARTED
        reason = "the attempt sent no heartbeat in time" if begun else "its coordinator sent no further message in time"
        return [*self._end(reason), Refused(attempt, reason)]

    def _reserve(self, message: Reserve, now_s: float) -> list[WorkerAction]:
        attempt = message.attempt
        ended: list[WorkerAction] = []
        if attempt == self.attempt:
            return self._repeat_answer(Reserved)
        if self.attempt is not None:
            if attempt.job != self.attempt.job:
                return [Refused(attempt, f"it is reserved for job {self.attempt.job}")]
            if attempt.number < self.attempt.number:
                return []
            ended = self._end(f"attempt {attempt.number} has started")
        self.attempt, self.state, self.expires_s = attempt, LeaseState.CHECKING, now_s + message.lease_s
        return [*ended, CheckRequirements(attempt, message.requirements)]

    def _prepare_or_start(self, message: Prepare | Commit, now_s: float) -> list[WorkerAction]:
        prepares = isinstance(message, Prepare)
        if self.state is not (LeaseState.RESERVED if prepares else LeaseState.PREPARED):
            return self._repeat_answer(Prepared if prepares else Started)
        self.expires_s = now_s + message.lease_s
        if isinstance(message, Prepare):
            self.state = LeaseState.VERIFYING
            return [ReceiveFiles(message.attempt, message.assignment)]
        self.state = LeaseState.STARTED
        return [BeginAttempt(message.attempt), Started(message.attempt)]

    def _repeat_answer(self, answer: type[Reserved | Prepared | Started]) -> list[WorkerAction]:
        """Repeat the last answer if it is the answer to a repeated request."""
        return [answer(self.attempt)] if self.attempt is not None and _ANSWERS.get(self.state) is answer else []

    def _end(self, reason: str) -> list[WorkerAction]:
        """End the lease."""
        attempt = self.attempt
        if attempt is None:
            return []
        self.attempt, self.state, self.expires_s = None, LeaseState.FREE, math.inf
        self._mark_ended(attempt)
        return [EndAttempt(attempt, reason)]

    def _mark_ended(self, attempt: Attempt) -> None:
        """Ignore later messages about this attempt and earlier attempts of its job."""
        self._ended_attempts[attempt.job] = max(attempt.number, self._ended_attempts.pop(attempt.job, 0))
        if len(self._ended_attempts) > _MAX_REMEMBERED:
            self._ended_attempts.popitem(last=False)
