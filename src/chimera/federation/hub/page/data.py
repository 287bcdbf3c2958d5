"""The data of the page: nodes with their presence in the last 24 hours, and the last runs."""

from __future__ import annotations

import time
from typing import Any

from chimera.engines.federation.wire.frames import Budget
from chimera.federation.hub.sightings import DAY_S, KnownRun
from chimera.federation.hub.state import HERE_S, Member, State

_MAX_NODES, _MAX_RUNS = 1000, 100
_LEFT_S = 600.0  # a driver that was away for longer has left


def page(state: State, now_s: float | None = None) -> dict[str, Any]:
    """Return the data that the page shows. Times are seconds since 1970.

    Parameters
    ----------
    now_s : the time; default: that of the clock.
    """
    now_s = time.time() if now_s is None else now_s
    stays, budgets = state.stays(), state.budgets()
    members = [member for member in state.members() if member.role == "node"]
    return {
        "now_s": now_s,
        "nodes": [
            _node(each, stays.get(each.name, []), budgets.get(each.name), now_s) for each in members[:_MAX_NODES]
        ],
        "more_nodes": max(len(members) - _MAX_NODES, 0),
        "runs": [_run(run, now_s) for run in state.runs(_MAX_RUNS)],
    }


def _node(member: Member, stays: list[tuple[float, float]], budget: Budget | None, now_s: float) -> dict[str, Any]:
    begin_s = now_s - DAY_S
    state = member.state(now_s)
    parts = [(max(since_s, begin_s), until_s) for since_s, until_s in stays]
    if state == "connected" and parts and now_s - parts[-1][1] < HERE_S:  # the last report is some seconds old
        parts[-1] = parts[-1][0], now_s
    return {
        "name": member.name,
        "state": state,
        "member_s": member.since_s,
        "here_s": member.here_s if state == "connected" else None,
        "seen_s": member.seen_s,
        "version": member.version,
        "epsilon": None if budget is None or state == "revoked" else _epsilon(budget),
        "presence": [] if state == "revoked" else [[(a - begin_s) / DAY_S, (b - begin_s) / DAY_S] for a, b in parts],
    }


def _epsilon(budget: Budget) -> dict[str, Any]:
    """Return a budget for the page: ``left`` is None if there is no limit."""
    left = None if budget.limit is None else 0.0 if budget.spent is None else max(budget.limit - budget.spent, 0.0)
    return {"left": left, "limit": budget.limit, "delta": budget.delta, "protects": budget.protects}


def _run(run: KnownRun, now_s: float) -> dict[str, Any]:
    away_s = now_s - run.seen_s
    return {
        **run._asdict(),
        "state": "ended" if run.ended else "running" if away_s < HERE_S else "away" if away_s < _LEFT_S else "left",
    }
