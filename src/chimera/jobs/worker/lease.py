"""A worker's side of a start in three phases: the one place that it has to give. It does no I/O and keeps no clock."""

from __future__ import annotations

import math
from collections import OrderedDict
from enum import Enum
from typing import TypeAlias

from chimera.jobs.scheduling.messages import (
    Attempt,
    Begin,
    Can,
    Check,
    Commit,
    Effect,
    End,
    Limits,
    No,
    Prepare,
    Ready,
    Release,
    Started,
    ToCoordinator,
    ToSeat,
    Verify,
    Yes,
)

_REMEMBERED = 1000  # jobs of which it knows the last attempt that is over

Does: TypeAlias = ToCoordinator | Effect


class Place(Enum):
    """What a seat has promised."""

    FREE = "free"
    CHECKING = "checking"
    HELD = "held"
    VERIFYING = "verifying"
    READY = "ready"
    BEGUN = "begun"


_DID: dict[Place, tuple[Place, type[Yes | Ready]]] = {
    Place.CHECKING: (Place.HELD, Yes),
    Place.VERIFYING: (Place.READY, Ready),
}
_SAYS: dict[Place, type[Yes | Ready | Started]] = {Place.HELD: Yes, Place.READY: Ready, Place.BEGUN: Started}


class Seat:
    """A place for one attempt at a time; what it has promised ends by itself.

    Every method returns, in order, what is to be said to the coordinator and to be done here. Messages may be lost, come twice,
    late or in another order. A worker that was started again is another seat: what was sent to the former must not reach it.

    Attributes
    ----------
    place, attempt : what it has promised, and to which attempt; None while it is free.
    until_s : when that ends unless more is heard; infinite while it is free.
    """

    def __init__(self, limits: Limits) -> None:
        self.place, self.until_s = Place.FREE, math.inf
        self.attempt: Attempt | None = None
        self._limits = limits
        self._over: OrderedDict[str, int] = OrderedDict()

    def take(self, message: ToSeat, now_s: float) -> list[Does]:
        """Take a message of a coordinator."""
        done = self.tick(now_s)
        attempt = message.attempt
        if isinstance(message, Release):
            own = self._end(message.reason) if attempt == self.attempt else []
            self._forbid(attempt)
            return done + own
        if attempt.number <= self._over.get(attempt.job, 0):
            return done  # that attempt is over, and its coordinator knows
        if isinstance(message, Can):
            return done + self._asked(message, now_s)
        if attempt != self.attempt:
            return [*done, No(attempt, f"it keeps no place for attempt {attempt.number} of job {attempt.job}")]
        return done + self._further(message, now_s)

    def did(self, attempt: Attempt, now_s: float, *, why: str = "", lasting: bool = False) -> list[Does]:
        """Take note that what `Check` or `Verify` asked for is done, or why it cannot be."""
        done = self.tick(now_s)
        if attempt != self.attempt or self.place not in _DID:
            return done
        if why:
            return [*done, *self._end(why), No(attempt, why, lasting)]
        self.place, answer = _DID[self.place]
        return [*done, answer(attempt)]

    def alive(self, attempt: Attempt, now_s: float) -> list[Does]:
        """Take a sign of life of an attempt that has begun."""
        done = self.tick(now_s)
        if attempt == self.attempt and self.place is Place.BEGUN:
            self.until_s = now_s + self._limits.alive_s
        return done

    def tick(self, now_s: float) -> list[Does]:
        """End what was promised until now; it is to be called at `until_s` at the latest, and does no harm before."""
        attempt = self.attempt
        if attempt is None or now_s < self.until_s:
            return []
        begun = self.place is Place.BEGUN
        why = "the attempt gave no sign of life in time" if begun else "its coordinator said nothing more in time"
        return [*self._end(why), No(attempt, why)]

    def _asked(self, message: Can, now_s: float) -> list[Does]:
        attempt = message.attempt
        ended: list[Does] = []
        if attempt == self.attempt:
            return self._said(Yes)
        if self.attempt is not None:
            if attempt.job != self.attempt.job:
                return [No(attempt, f"it is taken by job {self.attempt.job}")]
            if attempt.number < self.attempt.number:
                return []
            ended = self._end(f"attempt {attempt.number} has begun")
        self.attempt, self.place, self.until_s = attempt, Place.CHECKING, now_s + message.hold_s
        return [*ended, Check(attempt, message.needs)]

    def _further(self, message: Prepare | Commit, now_s: float) -> list[Does]:
        prepares = isinstance(message, Prepare)
        if self.place is not (Place.HELD if prepares else Place.READY):
            return self._said(Ready if prepares else Started)
        self.until_s = now_s + message.hold_s
        if isinstance(message, Prepare):
            self.place = Place.VERIFYING
            return [Verify(message.attempt, message.order)]
        self.place = Place.BEGUN
        return [Begin(message.attempt), Started(message.attempt)]

    def _said(self, answer: type[Yes | Ready | Started]) -> list[Does]:
        """Say again what was said before, where that answers the question which came again."""
        return [answer(self.attempt)] if self.attempt is not None and _SAYS.get(self.place) is answer else []

    def _end(self, reason: str) -> list[Does]:
        """Be free."""
        attempt = self.attempt
        if attempt is None:
            return []
        self.attempt, self.place, self.until_s = None, Place.FREE, math.inf
        self._forbid(attempt)
        return [End(attempt, reason)]

    def _forbid(self, attempt: Attempt) -> None:
        """Take no part any more in this attempt, or an earlier one of its job."""
        self._over[attempt.job] = max(attempt.number, self._over.pop(attempt.job, 0))
        if len(self._over) > _REMEMBERED:
            self._over.popitem(last=False)
