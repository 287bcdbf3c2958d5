"""Runs that wait for the administrator of a node: their decision, and a description for a data-protection officer."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from chimera.core.errors import ConfigurationError, ConflictError
from chimera.federation.policy import accounts
from chimera.federation.policy.admission import multiplier, planned_share
from chimera.federation.policy.declared import Declared
from chimera.federation.policy.ledger import FILE_NAME, Ledger
from chimera.federation.policy.policy import PrivacyBounds


@dataclass(frozen=True)
class Run:
    """A run at a node.

    Attributes
    ----------
    number : its number at this node.
    state : ``held``, ``approved`` or ``declined``.
    requester, fingerprint : name and certificate of the requester.
    asked_s : time of the first call, in seconds since 1970.
    declared : its settings.
    updates : number of updates that the node has released or reserved for it.
    spent, planned : epsilon of the requester now, and after the remaining updates of the run; infinite without noise.
    in_all, planned_in_all : the same for all requesters together.
    bounds : the budgets.
    metrics : the metrics that may leave.
    """

    number: int
    state: str
    requester: str
    fingerprint: str
    asked_s: float
    declared: Declared
    updates: int
    spent: float
    planned: float
    in_all: float
    planned_in_all: float
    bounds: PrivacyBounds
    metrics: tuple[str, ...]


def runs_of(folder: Path, *, held_only: bool = False) -> list[Run]:
    """Return the runs of the node whose ledger is in a folder, in the order of their first calls.

    Raises
    ------
    ConfigurationError : the folder has no ledger.
    """
    ledger = _opened(folder)
    try:
        return ledger.read(lambda db: list(_runs(db, held_only)))
    finally:
        ledger.close()


def decide(folder: Path, number: int, *, approve: bool, by: str) -> Run:
    """Approve or decline a run, with a line in the audit log. The node continues with the requester's next call.

    Parameters
    ----------
    by : name of the administrator, for the audit log.

    Raises
    ------
    ConfigurationError : there is no run with this number.
    ConflictError : the run was declined, or approved, before.
    """
    ledger = _opened(folder)
    state = "approved" if approve else "declined"

    def change(db: sqlite3.Connection) -> Run:
        found = [run for run in _runs(db, False) if run.number == number]
        if not found:
            raise ConfigurationError(f"there is no run {number} at this node; 'chimera node runs' lists the runs")
        (run,) = found
        if run.state == state or run.state == "declined":
            raise ConflictError(f"run {number} is {run.state} already")
        (key,) = db.execute("SELECT run FROM runs WHERE number = ?", (number,)).fetchone()
        db.execute("UPDATE runs SET state = ? WHERE number = ?", (state, number))
        about = {"requester": run.requester, "fingerprint": run.fingerprint, "run": key}
        ledger.report(db, ledger.now_s(db), decision=state, reason=f"run {number}, by {by}"[:200], **about)
        return run

    try:
        return ledger.write(change)
    finally:
        ledger.close()


def described(run: Run) -> list[str]:
    """Return the lines that describe a run to a data-protection officer."""
    declared, protection = run.declared, run.declared.protection
    asked_at = datetime.fromtimestamp(run.asked_s).astimezone().strftime("%Y-%m-%d %H:%M")
    details = {
        "who asks": f"{run.requester}, since {asked_at}; certificate {run.fingerprint[:16]}...",
        "model": _table(declared.model_name, declared.options(declared.model)),
        "strategy": _table(str(declared.strategy["name"]), declared.options(declared.strategy)),
        "rounds": f"at most {declared.rounds} updates of this node, in rounds of at most {declared.nodes} nodes; "
        f"{run.updates} until now",
        "what leaves": "; ".join(_leaves(run)),
        "what stays": "rows, single values of rows, texts of errors; updates contain what the model learned from rows",
        "protection": _protection(run),
        "epsilon": f"of {run.requester}: {_number(run.spent)} now, {_number(run.planned)} after the run, "
        f"budget {_number(run.bounds.epsilon_per_requester)}",
        "": f"in all: {_number(run.in_all)} now, {_number(run.planned_in_all)} after the run, "
        f"budget {_number(run.bounds.epsilon_in_all)}",
    }
    if protection is not None and run.planned > run.bounds.epsilon_per_requester:
        details["note"] = "the budget ends before the last round: the node then refuses further updates"
    width = max(map(len, details))
    return [f"run {run.number}: {run.state}", *(f"  {key:<{width}}  {text}" for key, text in details.items())]


def _leaves(run: Run) -> Iterator[str]:
    protection = run.declared.protection
    yield "in each round one vector of the size of the model, the change of the model by this node's rows"
    if protection is None:
        yield "losses of training, and states of the optimizer"
    else:
        yield f"that vector is cut to the length {protection.clip:g}"
    yield "the number of rows, names and types of columns, the different texts in columns of texts, names of classes"
    if run.metrics:
        yield f"metrics of this node's test rows: {', '.join(run.metrics)}"


def _protection(run: Run) -> str:
    protection = run.declared.protection
    if protection is None:
        return "NONE: rows can be reconstructed in part from updates without noise"
    noise = (
        f"noise {protection.noise:g} in a round"
        if protection.noise
        else "NO NOISE: rows can influence updates without bound"
    )
    masks = (
        "masks: the requester reads sums of several nodes only"
        if protection.secure_aggregation
        else "no masks: the requester reads each update of this node"
    )
    unit = "any row" if run.bounds.protects == "rows" else "whether this node sends updates"
    return f"{noise}; {masks}; epsilon bounds what updates reveal about {unit}, at delta {run.bounds.delta:g}"


def _table(name: str, options: dict[str, Any]) -> str:
    text = ", ".join(f"{key} = {msgspec.json.encode(value).decode()}" for key, value in options.items())
    plain = f"{name} ({text})" if text else f"{name} (defaults)"
    return "".join(c if " " <= c <= "~" else "?" for c in plain)  # a requester wrote the text, and a terminal shows it


def _number(value: float) -> str:
    return "no bound" if math.isinf(value) else f"{value:.3g}"


def _runs(db: sqlite3.Connection, held_only: bool) -> Iterator[Run]:
    bounds, metrics = _bounds(db)
    columns = "number, state, requester, fingerprint, asked_s, settings, updates"
    query = f"SELECT {columns} FROM runs WHERE state = 'held' OR ? ORDER BY 1"  # noqa: S608 - a constant
    for number, state, requester, mark, asked_s, settings, updates in db.execute(query, (not held_only,)).fetchall():
        declared = Declared.of(msgspec.json.decode(settings))
        left = max(declared.rounds - updates, 0)
        noise = multiplier(declared.protection, planned_share(declared), bounds.protects) if left else None
        spent, planned, in_all, planned_in_all = (
            accounts.epsilon(db, bounds.delta, account, further, left)
            for account in (requester, None)
            for further in (None, noise)
        )
        yield Run(
            number,
            state,
            requester,
            mark,
            asked_s,
            declared,
            updates,
            spent,
            planned,
            in_all,
            planned_in_all,
            bounds,
            metrics,
        )


def _bounds(db: sqlite3.Connection) -> tuple[PrivacyBounds, tuple[str, ...]]:
    """Return the bounds and the metrics of the policy with which the node started last."""
    row = db.execute("SELECT privacy FROM bounds").fetchone()
    settings: dict[str, Any] = msgspec.json.decode(row[0]) if row else {}
    metrics = tuple(settings.pop("metrics", ()))
    plain: dict[str, Any] = {key: math.inf if value is None else value for key, value in settings.items()}
    return PrivacyBounds(**plain), metrics


def _opened(folder: Path) -> Ledger:
    if not (folder / FILE_NAME).is_file():
        raise ConfigurationError(f"there is no ledger of a node in {str(folder)!r}; give the folder by --folder")
    return Ledger(folder)
