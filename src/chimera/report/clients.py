"""Metrics on each worker's own data: mean and worst tenth over the rounds, and all workers after the last round."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np

from chimera.core.counted import counted
from chimera.report import svg
from chimera.report.curves import Curve, Floats, Panel, thinned
from chimera.report.run_files import CLIENT, RunFiles, finite
from chimera.report.units import significant

_MAX_METRICS = 3
_MAX_POINTS = 400


def clients(run: RunFiles) -> str:
    """Return a row of two charts and a note for each metric, as HTML; empty if there are none."""
    evaluations = [row for row in run.metrics if isinstance(row.get("clients"), Mapping) and row["clients"]]
    if not evaluations:
        return ""
    last = [each for each in evaluations[-1]["clients"].values() if isinstance(each, Mapping)]
    names = sorted({name for each in last for name in each}, key=lambda name: (name != "accuracy", name))
    return "".join(_row(name, evaluations, last) for name in names[:_MAX_METRICS]) + _rows_used(run)


def _rows_used(run: RunFiles) -> str:
    """Return a note on which rows the workers were evaluated."""
    train = run.experiment.get("train")
    if "nodes" in run.data:
        return "<p class='note'>Each worker was evaluated on the test rows of its node, if the node gives its figures.</p>\n"
    share = finite(train.get("test_per_client") if isinstance(train, Mapping) else None)
    if not np.isfinite(share):
        return "<p class='note'>Each worker was evaluated on the rows on which it trains.</p>\n"
    return (
        f"<p class='note'>Each worker was evaluated on {share:.0%} of its own rows, on which it does not train. A worker "
        "with a single row is left out.</p>\n"
    )


def _row(name: str, evaluations: list[dict[str, Any]], last: list[Mapping[str, Any]]) -> str:
    at = np.array([finite(row.get("round")) for row in evaluations])
    curves = []
    for place, (key, label) in enumerate((("mean", "mean"), ("worst_tenth", "mean of the worst tenth"))):
        y = np.array([finite(row.get(f"{CLIENT}{name}_{key}")) for row in evaluations])
        good = np.isfinite(at) & np.isfinite(y)
        if good.any():
            curves.append(Curve(label, "metric", *thinned(at[good], y[good], _MAX_POINTS, average=False), place=place))
    values = np.sort([value for each in last if np.isfinite(value := finite(each.get(name)))])
    if not curves or not values.size:
        return ""
    shown = escape(name.replace("_", " "))
    over = _panel(shown, "Rounds", curves)
    each_one = Curve(
        "one worker", "metric", *thinned(np.arange(1.0, values.size + 1), values, _MAX_POINTS, average=False)
    )
    ranked = _panel(shown, "Workers, sorted by this metric", [each_one])
    figures = ", ".join(
        f"{text} {significant(finite(evaluations[-1].get(f'{CLIENT}{name}_{key}')), 4)}"
        for key, text in (("mean", "mean"), ("std", "standard deviation"), ("worst_tenth", "worst tenth"))
    )
    keys = "".join(f"<span>{svg.swatch(curve)}{curve.label}</span>" for curve in over.curves)
    charts = "".join(f"<figure>{svg.chart(panel)}</figure>" for panel in (over, ranked))
    return (
        f"<h3>{shown}<span class='legend'>{keys}</span></h3><div class='row'>{charts}</div>"
        f"<p class='note'>{counted(values.size, 'worker')}: {figures}.</p>\n"
    )


def _panel(name: str, x_label: str, curves: list[Curve]) -> Panel:
    ends: list[Floats] = [curve.x for curve in curves]
    return Panel(name, x_label, tuple(curves), log=False, x_max=float(np.concatenate(ends).max()) or 1.0, x_whole=True)
