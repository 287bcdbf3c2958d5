"""The gate of a node: decides about each call before it runs, and about each answer before it leaves."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from chimera.core.errors import ConfigurationError, PrivacyError
from chimera.core.private import make_folder
from chimera.federation.policy import accounts, decisions
from chimera.federation.policy.admission import arguments_agree, is_well_formed, run_refusal
from chimera.federation.policy.decisions import Request
from chimera.federation.policy.declared import Declared
from chimera.federation.policy.ledger import Ledger, count, day_of, totals
from chimera.federation.policy.policy import Policy
from chimera.federation.policy.requests import (
    EARLIER,
    LIMIT,
    NOT_ALLOWED,
    PARTICIPANTS,
    REVOKED,
    Allowed,
    Call,
    Decision,
    Held,
    Refused,
    Requester,
    Spending,
)
from chimera.federation.policy.rules import leaves
from chimera.federation.policy.shares import Shares
from chimera.web.folder import try_lock

Participants = Callable[[Any], int]
"""Checks the list of keys of a masked sum, see `chimera.federation.policy.participants`; returns the number of nodes."""
_MAX_OPEN = 10_000  # calls without an answer
_MAX_CACHED_SETTINGS = 256  # runs whose settings are in memory
_MAX_REFUSALS = 10_000  # lines of a day: an attacker must not fill the disk
_RELEASE = {"statistics": "statistics", "rows": "sample_rows"}  # keys of [release] that calls need


class Gate:
    """Applies the policy of a node. One process at a time uses the folder with the ledger and the audit log.

    A call that spends epsilon is reserved before it runs. A reservation always counts as spent, whether or not its
    answer left, so that no crash makes the spent budget too small.

    Parameters
    ----------
    policy : the policy.
    folder : folder of the ledger and the audit log.
    rows : returns the number of training rows of the node.
    participants : checks the lists of keys of masked sums; None: the node refuses masked sums.
    revoked : returns the fingerprints of revoked certificates, whose requesters are refused.
    clock : returns seconds since 1970.

    Raises
    ------
    ConfigurationError : another process uses the folder, or its files are not Chimera's.
    AuditError : the audit log was changed.
    """

    def __init__(
        self,
        policy: Policy,
        folder: Path,
        *,
        rows: Callable[[], int],
        participants: Participants | None = None,
        revoked: Callable[[], Collection[str]] = tuple,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._policy, self._rows, self._participants, self._revoked = policy, rows, participants, revoked
        self._turn = threading.RLock()
        self._open: dict[tuple[str, int], Request] = {}  # allowed calls without an answer
        self._shares = Shares()
        self._fewest: dict[tuple[str, str], int] = {}  # by run and actor: fewest rows of an update
        self._declared: dict[str, tuple[Any, Declared]] = {}  # by run: the settings that were read last
        make_folder(folder)
        lock = try_lock(folder / "ledger.lock")
        if lock is None:
            raise ConfigurationError(f"another process uses the ledger in {str(folder)!r}")
        self._lock = lock
        try:
            self._ledger = Ledger(folder, clock)
            self._ledger.write(self._begin)
        except BaseException:
            os.close(lock)
            raise

    def _begin(self, db: sqlite3.Connection) -> None:
        """Record the calls that a former process left without an answer, and the bounds for `chimera node runs`."""
        now_s = self._ledger.now_s(db)
        keys = ("run", "number", "requester", "fingerprint", "kind", "method", "epsilon")
        query = "SELECT run, number, requester, fingerprint, kind, method, epsilon FROM calls WHERE state = 'reserved'"
        for row in db.execute(query).fetchall():
            result = "the node ended before the answer left; the call counts as spent"
            self._ledger.report(db, now_s, decision="lost", reason=result, **dict(zip(keys, row, strict=True)))
        db.execute("UPDATE calls SET state = 'lost' WHERE state = 'reserved'")
        text = msgspec.json.encode({**asdict(self._policy.privacy), "metrics": self._policy.release.metrics}).decode()
        if db.execute("SELECT privacy FROM bounds").fetchone() != (text,):
            db.execute("INSERT OR REPLACE INTO bounds VALUES (1, ?)", (text,))

    def spent(self) -> float:
        """Return the epsilon of the updates of all requesters; infinite if no noise bounds it."""
        return self._ledger.read(lambda db: accounts.epsilon(db, self._policy.privacy.delta))

    def request(self, requester: Requester, call: Call) -> Decision:
        """Decide whether a call may run. A call that spends epsilon is reserved before, on the disk before an answer leaves.

        Raises
        ------
        RunError : the ledger or the audit log cannot be written; the call must not run.
        """
        with self._turn:
            request = self._admissible(requester, call)
            if isinstance(request, Refused):
                decision: Decision = request
            else:
                decision = self._ledger.write(partial(self._admit, request=request), durable=False)
                if decision == Allowed():  # keep the call without its arguments, which can be as large as the model
                    self._open[call.run, call.number] = replace(request, call=replace(call, given=(), named={}))
            if isinstance(decision, Refused):
                self._ledger.write(partial(self._refuse, requester=requester, call=call, reason=decision.reason))
            elif isinstance(decision, Held):
                self._ledger.settle()
            return decision

    def _admissible(self, requester: Requester, call: Call) -> Request | Refused:
        """Return the call if policy, settings and arguments allow it, regardless of earlier calls."""
        kind = leaves(call.kind, call.method) if is_well_formed(requester, call) else None
        if kind is None or not self._policy.requesters.include(requester):
            return Refused(NOT_ALLOWED)
        if requester.fingerprint in self._revoked():
            return Refused(REVOKED)
        try:
            declared = self._settings(call)
            if declared is None:
                return Refused(NOT_ALLOWED)
            if reason := run_refusal(self._policy, declared):
                return Refused(reason)
        except ConfigurationError as error:
            return Refused(_printable(error))
        except RecursionError:
            return Refused(NOT_ALLOWED)
        if (call.run, call.number) in self._open:
            return Refused(EARLIER)
        rows = self._rows()
        permitted = kind not in _RELEASE or bool(getattr(self._policy.release, _RELEASE[kind]))
        agree = (
            permitted and rows >= self._policy.limits.min_rows and arguments_agree(call, declared, self._policy, rows)
        )
        if not agree or len(self._open) >= _MAX_OPEN:
            return Refused(NOT_ALLOWED)
        return Request(requester, call, declared, kind)

    def _settings(self, call: Call) -> Declared | None:
        """Return the settings of a call's run; None if the call has none and the run has not begun."""
        known = self._declared.get(call.run)
        if known is not None and (call.settings is None or known[0] == call.settings):
            return known[1]
        settings = call.settings
        if settings is None:
            query = "SELECT settings FROM runs WHERE run = ?"
            row = self._ledger.read(lambda db: db.execute(query, (call.run,)).fetchone())
            if row is None:
                return None
            settings = msgspec.json.decode(row[0])
        declared = Declared.of(settings)
        if len(self._declared) >= _MAX_CACHED_SETTINGS:
            self._declared.clear()
        self._declared[call.run] = settings, declared
        return declared

    def _admit(self, db: sqlite3.Connection, request: Request) -> Decision:
        """Decide by earlier calls; reserve the call if it spends epsilon."""
        now_s, call, policy = self._ledger.now_s(db), request.call, self._policy
        begun = db.total_changes
        # The run first: its administrator can decide about it at any hour.
        decision = decisions.of_run(db, now_s, request, asks=policy.approval == "ask") or decisions.of_time(
            db, now_s, self._ledger.clock(), policy.limits, call
        )
        if isinstance(decision, Held) and db.total_changes != begun:
            self._report(db, now_s, request.requester, call, "held", bytes_in=call.size)
        if decision is not None:
            return decision
        if request.spends:
            share = self._shares.of(call, request.declared)
            return decisions.reserve(db, now_s, request, policy, share) or Allowed()
        if request.leaves == "metrics":
            return decisions.evaluate(db, now_s, request, policy.limits) or Allowed()
        return self._take_part(request) or Allowed()

    def _take_part(self, request: Request) -> Decision | None:
        """Note the share of the noise that is in the next updates of an actor; return a refusal if the sum is too small."""
        call, protection = request.call, request.declared.protection
        if call.method == "take_part":
            share = 1.0 / call.given[0]
        elif call.method == "share_secrets":
            try:
                nodes = self._participants(call.given[0]) if self._participants is not None and call.given else 0
            except PrivacyError:
                nodes = 0
            enough = protection is not None and 2 <= nodes <= request.declared.nodes
            if not enough or protection is None or protection.needed(nodes) < (self._policy.min_nodes_in_sum or 1):
                return Refused(PARTICIPANTS)
            share = protection.needed(nodes) / nodes
        else:
            return None
        self._shares.note(call, request.declared, share)
        return None

    def answer(self, requester: Requester, call: Call, answer_bytes: int, spent: Spending) -> Decision:
        """Decide whether an answer may leave. Ledger and audit lines are then on the disk, unless it releases nothing.

        Parameters
        ----------
        answer_bytes : size of the answer, in bytes.
        spent : cost of the call.

        Raises
        ------
        RunError : the ledger or the audit log cannot be written; the answer must not leave.
        """
        with self._turn:
            request = self._open.get((call.run, call.number))
            if request is None or (request.requester, request.call.method) != (requester, call.method):
                return Refused(NOT_ALLOWED)
            del self._open[call.run, call.number]
            work = partial(self._release, request=request, size=answer_bytes, spent=spent)
            return self._ledger.write(work, durable=request.leaves != "nothing")

    def _release(self, db: sqlite3.Connection, request: Request, size: int, spent: Spending) -> Decision:
        now_s, call, limits = self._ledger.now_s(db), request.call, self._policy.limits
        day, most, total = day_of(now_s), limits.bytes_per_day, request.call.size + size
        figures = not spent.failed and (request.leaves == "update" or bool(spent.metrics) or spent.statistics)
        too_few = figures and self._rows_behind(request, spent) < limits.min_rows
        release = self._policy.release
        foreign = not set(spent.metrics) <= set(release.metrics) or (spent.statistics and not release.statistics)
        reason = NOT_ALLOWED if too_few or foreign else ""
        if most is not None and totals(db, day).size + total > most:
            reason = LIMIT
        if request.requester.fingerprint in self._revoked():
            reason = REVOKED
        count(db, day, size=call.size if reason else total)
        if request.spends:
            values = ("withheld" if reason else "answered", spent.stored, call.run, call.number)
            db.execute("UPDATE calls SET state = ?, stored = ? WHERE run = ? AND number = ?", values)
        sizes = {"bytes_in": call.size, "bytes_out": 0 if reason else size}
        fields = {**sizes, "rows": spent.rows, "epsilon": request.epsilon}
        self._report(db, now_s, request.requester, call, "withheld" if reason else "released", reason=reason, **fields)
        return Refused(reason) if reason else Allowed()

    def _rows_behind(self, request: Request, spent: Spending) -> int:
        """Return the rows that an answer follows from. In a repeated round a worker reads no row and repeats its update."""
        if request.leaves != "update":
            return spent.rows
        key = request.call.run, request.call.actor
        if not spent.rows:
            return self._fewest.get(key, 0)
        if len(self._fewest) >= _MAX_OPEN:
            self._fewest.clear()
        self._fewest[key] = min(spent.rows, self._fewest.get(key, spent.rows))
        return spent.rows

    def _refuse(self, db: sqlite3.Connection, requester: Requester, call: Call, reason: str) -> None:
        """Record a refusal."""
        now_s = self._ledger.now_s(db)
        day = day_of(now_s)
        refusals = totals(db, day).refusals
        if refusals > _MAX_REFUSALS:
            return
        if refusals == _MAX_REFUSALS:
            reason = "further refusals of this day are not recorded"
        count(db, day, refusals=1)
        size = call.size if type(call.size) is int and 0 <= call.size < 1 << 63 else 0
        self._report(db, now_s, requester, call, "refused", bytes_in=size, reason=reason)

    def _report(
        self, db: sqlite3.Connection, now_s: float, requester: Requester, call: Call, decision: str, **fields: Any
    ) -> None:
        number = call.number if type(call.number) is int and 0 <= call.number < 1 << 63 else -1
        names = {"requester": requester.name, "fingerprint": requester.fingerprint}
        about = {**names, "run": call.run, "kind": call.kind, "method": call.method}
        texts = {key: _printable(value) for key, value in about.items()}
        self._ledger.report(db, now_s, decision=decision, number=number, **texts, **fields)

    def close(self) -> None:
        """Close the ledger; another process may then use the folder."""
        with self._turn:
            self._ledger.close()
            os.close(self._lock)


def _printable(value: object) -> str:
    """Return a text of a requester for the audit log."""
    return str(value)[:200].encode("ascii", "backslashreplace").decode()
