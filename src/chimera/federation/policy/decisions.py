"""Decisions that depend on earlier calls: the state of a run, the totals of a day, and the budget of epsilon."""

from __future__ import annotations

import math
import sqlite3
from dataclasses import dataclass

from chimera.federation.policy import accounts
from chimera.federation.policy.admission import multiplier
from chimera.federation.policy.declared import Declared
from chimera.federation.policy.ledger import count, day_of, minute_of, totals
from chimera.federation.policy.policy import Limits, Policy
from chimera.federation.policy.requests import (
    CHANGED,
    DECLINED,
    EARLIER,
    EXHAUSTED,
    LIMIT,
    LOST,
    NOT_ALLOWED,
    RUN_OVER,
    TOO_MANY_HELD_RUNS,
    Allowed,
    Call,
    Decision,
    Held,
    Later,
    Refused,
    Requester,
)
from chimera.federation.policy.rules import START, Leaves

SPENDING: tuple[Leaves, ...] = ("update", "training state")
"""The kinds of values that a call releases if it spends epsilon."""

_EXTRA_EVALUATIONS = 2  # evaluations besides those of rounds: before the first and after the last one
_MAX_HELD_RUNS = 100  # runs of a requester that wait for the administrator


@dataclass
class Request:
    """A call that policy, settings and arguments allow.

    Attributes
    ----------
    requester, call, declared, leaves : the call, the settings of its run, and the kind of value that it releases.
    epsilon : epsilon that the call adds to the requester's account; None if no noise bounds it.
    """

    requester: Requester
    call: Call
    declared: Declared
    leaves: Leaves
    epsilon: float | None = 0.0

    @property
    def spends(self) -> bool:
        """Whether the call spends epsilon."""
        return self.leaves in SPENDING


def of_time(db: sqlite3.Connection, now_s: float, clock_s: float, limits: Limits, call: Call) -> Decision | None:
    """Return the decision if the call may not run at this hour, or not today; None if it may run now.

    Parameters
    ----------
    clock_s : time of the clock, in seconds since 1970; earlier than ``now_s`` if the clock was set back. The allowed
        hours follow the clock: otherwise they would stay open, or closed, until it has reached ``now_s`` again.
    """
    if not limits.open_at(minute := minute_of(clock_s)):
        return Later("hours", limits.opens_in(minute) * 60)
    most = limits.bytes_per_day
    if most is not None and call.size > most:
        return Refused(LIMIT)  # on each day
    full = most is not None and totals(db, day_of(now_s)).size + call.size > most
    return _until_next_day(now_s) if full else None


def _until_next_day(now_s: float) -> Later:
    """Return the decision about a call that exceeds a limit of the day."""
    return Later("day", (1440 - minute_of(now_s)) * 60)


def of_run(db: sqlite3.Connection, now_s: float, request: Request, *, asks: bool) -> Decision | None:
    """Return the decision if the state of the run decides; None if the run continues. The first call begins the run.

    Parameters
    ----------
    asks : whether runs wait for the administrator.
    """
    call, requester, declared = request.call, request.requester, request.declared
    query = "SELECT number, requester, fingerprint, digest, state FROM runs WHERE run = ?"
    row = db.execute(query, (call.run,)).fetchone()
    if row is None:
        if call.method != START:
            return Refused(NOT_ALLOWED)
        query = "SELECT count(*) FROM runs WHERE requester = ? AND state = 'held'"
        if db.execute(query, (requester.name,)).fetchone()[0] >= _MAX_HELD_RUNS:
            return Refused(TOO_MANY_HELD_RUNS)
        values = (call.run, requester.name, requester.fingerprint, declared.text(), declared.digest)
        added = db.execute(
            "INSERT INTO runs (run, requester, fingerprint, settings, digest, state, asked_s, updates, evaluations) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0)",
            (*values, "held" if asks else "approved", now_s),
        )
        return Held(int(added.lastrowid or 0)) if asks else None
    number, *owner, digest, state = row
    if owner != [requester.name, requester.fingerprint]:  # another certificate may have the same name
        return Refused(NOT_ALLOWED)
    if digest != declared.digest:
        return Refused(CHANGED)
    if state == "held":
        return Held(int(number))
    return None if state == "approved" else Refused(DECLINED)


def evaluate(db: sqlite3.Connection, now_s: float, request: Request, limits: Limits) -> Decision | None:
    """Count an evaluation; return another decision if the run or the day is at its limit.

    With enough models of its own choice, a requester could read test rows from metrics.
    """
    run, day, most = request.call.run, day_of(now_s), limits.rounds_per_day
    (had,) = db.execute("SELECT evaluations FROM runs WHERE run = ?", (run,)).fetchone()
    if had >= request.declared.rounds + _EXTRA_EVALUATIONS:
        return Refused(RUN_OVER)
    if most is not None and totals(db, day).evaluations >= most + _EXTRA_EVALUATIONS:
        return _until_next_day(now_s)
    db.execute("UPDATE runs SET evaluations = evaluations + 1 WHERE run = ?", (run,))
    count(db, day, evaluations=1)
    return None


def reserve(db: sqlite3.Connection, now_s: float, request: Request, policy: Policy, share: float) -> Decision | None:
    """Reserve a call that spends epsilon; return a decision instead if it ran before, or the budget does not allow it.

    Parameters
    ----------
    share : see `multiplier`; 0 if the actor received no list of participants for its masks.
    """
    call, requester, declared, limits = request.call, request.requester, request.declared, policy.limits
    query = "SELECT requester, kind, method, state FROM calls WHERE run = ? AND number = ?"
    row = db.execute(query, (call.run, call.number)).fetchone()
    if row is not None:
        if row[:3] != (requester.name, call.kind, call.method):
            return Refused(EARLIER)
        return Allowed(again=True) if row[3] == "answered" else Refused(LOST if row[3] == "lost" else EARLIER)
    is_update = request.leaves == "update"
    (had,) = db.execute("SELECT updates FROM runs WHERE run = ?", (call.run,)).fetchone()
    if is_update and had >= declared.rounds:
        return Refused(RUN_OVER)
    if share == 0.0:
        return Refused(NOT_ALLOWED)
    noise, bounds = multiplier(declared.protection, share, policy.privacy.protects), policy.privacy
    before = accounts.epsilon(db, bounds.delta, requester.name)
    after = accounts.epsilon(db, bounds.delta, requester.name, noise)
    in_all = accounts.epsilon(db, bounds.delta, None, noise)
    if after > bounds.epsilon_per_requester or in_all > bounds.epsilon_in_all:
        return Refused(EXHAUSTED)
    most = limits.rounds_per_day
    if is_update and most is not None and totals(db, day_of(now_s)).updates >= most:
        return _until_next_day(now_s) if most else Refused(LIMIT)
    request.epsilon = after - before if math.isfinite(after) else None
    accounts.spend(db, requester.name, noise)
    values = (call.run, call.number, requester.name, requester.fingerprint, call.kind, call.method)
    db.execute("INSERT INTO calls VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'reserved', '')", (*values, noise, request.epsilon))
    if is_update:
        db.execute("UPDATE runs SET updates = updates + 1 WHERE run = ?", (call.run,))
        count(db, day_of(now_s), updates=1)
    return None
