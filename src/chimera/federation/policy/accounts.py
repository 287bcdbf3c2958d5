"""Epsilon of the updates that a node has released or reserved."""

from __future__ import annotations

import math
import sqlite3
from functools import lru_cache

from chimera.privacy.accountant import Accountant

TABLES = """
CREATE TABLE spent (
    requester TEXT NOT NULL, noise REAL NOT NULL, updates INTEGER NOT NULL, PRIMARY KEY (requester, noise)
) WITHOUT ROWID
"""
"""Updates by requester and noise multiplier. Rows are never deleted, and numbers never decrease."""


def spend(db: sqlite3.Connection, requester: str, noise: float) -> None:
    """Count an update, before it is computed."""
    db.execute(
        "INSERT INTO spent VALUES (?, ?, 1) ON CONFLICT (requester, noise) DO UPDATE SET updates = updates + 1",
        (requester, noise),
    )


def epsilon(
    db: sqlite3.Connection, delta: float, requester: str | None = None, noise: float | None = None, updates: int = 1
) -> float:
    """Return epsilon of a requester, or of all requesters together, at this delta; infinite if an update had no noise.

    Participants of a round are not secret from the requester, so all updates count with a sampling rate of 1.

    Parameters
    ----------
    noise, updates : noise multiplier and number of further updates, which are added.
    """
    query = "SELECT noise, sum(updates) FROM spent WHERE ?1 IS NULL OR requester = ?1 GROUP BY noise ORDER BY noise"
    history = dict(db.execute(query, (requester,)).fetchall())
    if noise is not None:
        history[noise] = history.get(noise, 0) + updates
    return _of(tuple(sorted(history.items())), delta)


@lru_cache(maxsize=64)
def _of(history: tuple[tuple[float, int], ...], delta: float) -> float:
    if any(noise == 0 for noise, _ in history):
        return math.inf
    found = Accountant([noise, 1.0, updates] for noise, updates in history).epsilon(delta, sampled=False)
    return found if found >= 0 else math.inf  # an overflow in the accountant is no guarantee
