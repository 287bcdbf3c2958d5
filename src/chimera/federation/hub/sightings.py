"""The nodes and runs that a hub has seen: tables of its file, for display only. No decision depends on them."""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from chimera.engines.federation.wire.frames import Budget

TABLES = """
    CREATE TABLE IF NOT EXISTS stays (
        name TEXT NOT NULL, since_s REAL NOT NULL, until_s REAL NOT NULL, PRIMARY KEY (name, since_s)
    ) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS progress (
        run TEXT PRIMARY KEY, strategy TEXT NOT NULL, model TEXT NOT NULL, rounds INTEGER NOT NULL, fraction REAL,
        ended INTEGER NOT NULL, calls INTEGER NOT NULL, bytes_in INTEGER NOT NULL, bytes_out INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS budgets (
        name TEXT PRIMARY KEY, spent REAL, most REAL, delta REAL NOT NULL, protects TEXT NOT NULL
    ) WITHOUT ROWID
"""
"""Tables that files of former versions lack, and that former versions ignore."""
DAY_S = 86_400.0
_SAME_STAY_S = 60.0  # a shorter absence is not kept, so that a node that often reconnects does not fill the file
_MAX_RUNS = 10_000


class Seen(NamedTuple):
    """A node as the hub sees it.

    Attributes
    ----------
    since_s, seen_s : start of its last connection, and time at which it was seen last, in seconds since 1970.
    here : whether it is connected.
    budget : its last report about epsilon; None: its policy does not release it, or it has not reported yet.
    """

    name: str
    since_s: float
    seen_s: float
    version: str
    here: bool = True
    budget: Budget | None = None


class SeenRun(NamedTuple):
    """A run as the hub sees it.

    Attributes
    ----------
    strategy, model, rounds, fraction, ended : the last report of its driver, see `Progress`.
    calls, bytes_in, bytes_out : numbers of calls and bytes since the last report.
    """

    run: str
    requester: str
    strategy: str
    model: str
    rounds: int
    fraction: float | None
    ended: bool
    calls: int
    bytes_in: int
    bytes_out: int


class KnownRun(NamedTuple):
    """A run in the file of a hub; the fields are those of `SeenRun`, with totals of calls and bytes.

    Attributes
    ----------
    since_s, seen_s : first and last time at which its driver was connected, in seconds since 1970.
    """

    run: str
    requester: str
    since_s: float
    seen_s: float
    strategy: str
    model: str
    rounds: int
    fraction: float | None
    ended: bool
    calls: int
    bytes_in: int
    bytes_out: int


def note(db: sqlite3.Connection, now_s: float, nodes: list[Seen], runs: list[SeenRun]) -> None:
    """Record which nodes and runs were seen, in the caller's transaction."""
    rows = [(node.name, node.since_s if node.here else None, node.seen_s, node.version) for node in nodes]
    db.executemany("INSERT OR REPLACE INTO presence VALUES (?, ?, ?, ?)", rows)
    for node in nodes:
        _stay(db, node)
    _note_budgets(db, nodes)
    db.execute("DELETE FROM stays WHERE until_s < ?", (now_s - DAY_S,))
    if runs:
        _note_runs(db, runs, now_s)


def budgets(db: sqlite3.Connection) -> dict[str, Budget]:
    """Return the last report of each node that reports its budget of epsilon."""
    rows = db.execute("SELECT name, spent, most, delta, protects FROM budgets")
    return {name: Budget(*rest) for name, *rest in rows}


def stays_since(db: sqlite3.Connection, since_s: float) -> dict[str, list[tuple[float, float]]]:
    """Return the times in which each node was connected since a given time."""
    found: dict[str, list[tuple[float, float]]] = {}
    query = "SELECT name, since_s, until_s FROM stays WHERE until_s >= ? ORDER BY since_s"
    for name, begin_s, end_s in db.execute(query, (since_s,)):
        found.setdefault(name, []).append((begin_s, end_s))
    return found


def last_runs(db: sqlite3.Connection, most: int) -> list[KnownRun]:
    """Return the runs that were seen last, the last one first."""
    query = (
        "SELECT r.run, r.requester, r.since_s, r.seen_s, coalesce(p.strategy, ''), coalesce(p.model, ''), "
        "coalesce(p.rounds, 0), p.fraction, coalesce(p.ended, 0), coalesce(p.calls, 0), coalesce(p.bytes_in, 0), "
        "coalesce(p.bytes_out, 0) FROM runs r LEFT JOIN progress p ON p.run = r.run "
        "ORDER BY r.seen_s DESC, r.since_s DESC LIMIT ?"
    )
    return [KnownRun(*row)._replace(ended=bool(row[8])) for row in db.execute(query, (most,))]


def _note_budgets(db: sqlite3.Connection, nodes: list[Seen]) -> None:
    """Replace the reports of the nodes. Drop the budgets of nodes whose policies no longer release epsilon."""
    db.executemany("DELETE FROM budgets WHERE name = ?", [(node.name,) for node in nodes if node.budget is None])
    told = [(each.name, each.budget) for each in nodes if each.budget is not None]
    rows = [(name, each.spent, each.limit, each.delta, each.protects) for name, each in told]
    db.executemany("INSERT OR REPLACE INTO budgets VALUES (?, ?, ?, ?, ?)", rows)


def _stay(db: sqlite3.Connection, node: Seen) -> None:
    """Continue the last stay of a node, or begin one."""
    began_s, ended_s = db.execute("SELECT max(since_s), until_s FROM stays WHERE name = ?", (node.name,)).fetchone()
    if began_s is not None and node.since_s - ended_s < _SAME_STAY_S:
        db.execute("UPDATE stays SET until_s = ? WHERE name = ? AND since_s = ?", (node.seen_s, node.name, began_s))
    else:
        db.execute("INSERT INTO stays VALUES (?, ?, ?)", (node.name, node.since_s, node.seen_s))


def _note_runs(db: sqlite3.Connection, runs: list[SeenRun], now_s: float) -> None:
    again = "ON CONFLICT (run) DO UPDATE SET seen_s = excluded.seen_s"
    rows = [(run.run, run.requester, now_s, now_s) for run in runs]
    db.executemany(f"INSERT INTO runs VALUES (?, ?, ?, ?) {again}", rows)  # noqa: S608 - constants
    db.executemany(
        "INSERT INTO progress VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (run) DO UPDATE SET "
        "strategy = coalesce(nullif(excluded.strategy, ''), strategy), model = coalesce(nullif(excluded.model, ''), model), "
        "rounds = max(rounds, excluded.rounds), "
        "fraction = coalesce(excluded.fraction, fraction), ended = max(ended, excluded.ended), "
        "calls = calls + excluded.calls, bytes_in = bytes_in + excluded.bytes_in, bytes_out = bytes_out + excluded.bytes_out",
        [(run.run, *run[2:]) for run in runs],
    )
    old = "SELECT run FROM runs ORDER BY seen_s DESC LIMIT -1 OFFSET ?"
    for table in ("progress", "runs"):
        db.execute(f"DELETE FROM {table} WHERE run IN ({old})", (_MAX_RUNS,))  # noqa: S608 - constants
