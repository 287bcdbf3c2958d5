"""The coordinator's side of a start in three phases: all seats begin, or none. It does no I/O and keeps no clock."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any, Self

from chimera.core.errors import ConfigurationError
from chimera.jobs.scheduling.messages import (
    Act,
    Attempt,
    Began,
    Can,
    Commit,
    Decide,
    Limits,
    Needs,
    No,
    Over,
    Prepare,
    Ready,
    Release,
    Send,
    Started,
    ToCoordinator,
    ToSeat,
    Yes,
)
from chimera.jobs.store.states import Event


class Phase(Enum):
    """How far a start has come. What comes after the decision is the loss of an attempt, and no refusal."""

    CAN = "can"
    PREPARE = "prepare"
    DECIDE = "decide"
    COMMIT = "commit"
    RUNNING = "running"
    OVER = "over"


_ANSWERS: Mapping[Phase, type[ToCoordinator]] = {Phase.CAN: Yes, Phase.PREPARE: Ready, Phase.COMMIT: Started}
_DECIDED = (Phase.COMMIT, Phase.RUNNING)


class Start:
    """The start of one attempt, and who it has then.

    Every method returns what is to be done, in order; none waits. The decision is whoever runs this one's to write down: no
    seat is told to begin before `decided` is called.

    Parameters
    ----------
    attempt : which.
    orders : for each seat by name what it has to receive and verify.
    needs : what every seat must have.
    now_s : the present, by a clock that only goes forward.

    Raises
    ------
    ConfigurationError : there are no seats.

    Attributes
    ----------
    phase : how far it has come.
    """

    def __init__(
        self, attempt: Attempt, orders: Mapping[str, Mapping[str, Any]], needs: Needs, limits: Limits, now_s: float
    ) -> None:
        if not orders:
            raise ConfigurationError(f"attempt {attempt.number} of job {attempt.job} has no workers to begin on")
        self.attempt, self.phase = attempt, Phase.CAN
        self._orders, self._needs, self._limits = orders, needs, limits
        self._answered: set[str] = set()
        self._ends_s, self._again_s = now_s + limits.can_s, now_s

    @classmethod
    def adopted(cls, attempt: Attempt, seats: Collection[str], limits: Limits) -> Self:
        """Return the start of an attempt that is found running, begun by a coordinator that is no more."""
        found = cls(attempt, {seat: {} for seat in seats}, Needs(), limits, 0.0)
        found.phase = Phase.RUNNING
        return found

    @property
    def next_s(self) -> float:
        """When `tick` has to be called at the latest; infinite if nothing is waited for."""
        return min(self._ends_s, self._again_s) if self.phase in _ANSWERS else math.inf

    def tick(self, now_s: float) -> list[Act]:
        """Send what has no answer yet, and end what has taken too long."""
        if late := self._late(now_s):
            return late
        if self.phase not in _ANSWERS or now_s < self._again_s:
            return []
        self._again_s = now_s + self._limits.again_s
        return [Send(seat, self._message(seat, now_s)) for seat in self._orders if seat not in self._answered]

    def take(self, seat: str, answer: ToCoordinator, now_s: float) -> list[Act]:
        """Take an answer of a seat; one that is out of date or comes again changes nothing."""
        if answer.attempt != self.attempt or seat not in self._orders or self.phase is Phase.OVER:
            return []
        if isinstance(answer, No):
            return self._over(f"worker {seat} refused: {answer.reason}", lasting=answer.lasting)
        if late := self._late(now_s):
            return late
        if type(answer) is not _ANSWERS.get(self.phase):
            return []
        self._answered.add(seat)
        return self._further(now_s) if len(self._answered) == len(self._orders) else []

    def lost(self, seat: str, why: str) -> list[Act]:
        """Take note that a seat is no more, such as when its connection broke off."""
        if seat not in self._orders or self.phase is Phase.OVER:
            return []
        return self._over(f"worker {seat} was lost: {why}")

    def decided(self, now_s: float) -> list[Act]:
        """Go on, now that the decision is written down for good; if that took too long, the attempt is lost."""
        if self.phase is not Phase.DECIDE:
            return []
        late = now_s >= self._ends_s
        self._enter(Phase.COMMIT, now_s, self._limits.commit_s)
        return self._over("the decision to begin came too late for the workers") if late else self.tick(now_s)

    def stop(self, reason: str) -> list[Act]:
        """End it, for a reason that whoever calls this has noted: it was cancelled, say, or is done."""
        if self.phase is Phase.OVER:
            return []
        self.phase = Phase.OVER
        return [Send(seat, Release(self.attempt, reason)) for seat in self._orders]

    def _further(self, now_s: float) -> list[Act]:
        """Enter the next phase, as all seats have answered."""
        if self.phase is Phase.CAN:
            self._enter(Phase.PREPARE, now_s, self._limits.prepare_s)
            return self.tick(now_s)
        if self.phase is Phase.PREPARE:
            self.phase = Phase.DECIDE  # whose end is that of the phase before: so long the seats keep their places
            return [Decide(self.attempt)]
        self.phase = Phase.RUNNING
        return [Began(self.attempt)]

    def _enter(self, phase: Phase, now_s: float, limit_s: float) -> None:
        self.phase = phase
        self._answered.clear()
        self._ends_s, self._again_s = now_s + limit_s, now_s

    def _message(self, seat: str, now_s: float) -> ToSeat:
        """Return what a seat is asked in this phase; its promise has to last until the next message can have come."""
        hold_s = self._ends_s - now_s + self._limits.commit_s
        if self.phase is Phase.CAN:
            return Can(self.attempt, self._needs, hold_s)
        if self.phase is Phase.PREPARE:
            return Prepare(self.attempt, self._orders[seat], hold_s)
        return Commit(self.attempt, self._limits.alive_s)

    def _late(self, now_s: float) -> list[Act]:
        if self.phase not in _ANSWERS or now_s < self._ends_s:
            return []
        limits = {
            Phase.CAN: self._limits.can_s,
            Phase.PREPARE: self._limits.prepare_s,
            Phase.COMMIT: self._limits.commit_s,
        }
        silent = ", ".join(seat for seat in self._orders if seat not in self._answered)
        return self._over(f"worker {silent} did not answer {self.phase.value!r} within {limits[self.phase]:g} s")

    def _over(self, reason: str, *, lasting: bool = False) -> list[Act]:
        """Free all seats, and return the job to where it belongs."""
        event = Event.BROKE if self.phase in _DECIDED else Event.FAILED if lasting else Event.REFUSED
        return [*self.stop(reason), Over(self.attempt, event, reason)]
