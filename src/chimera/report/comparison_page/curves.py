"""Learning curves of a comparison's cells: metrics over bytes, time and samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from chimera.report.comparison_page.charts import Chart, Series, is_wide
from chimera.report.comparison_page.names import WORKERS
from chimera.report.curves import FRACTIONS
from chimera.report.mean_curves import MeanCurve, mean_curve, points
from chimera.report.units import bytes_unit, clock, counts_unit, time_unit

Unit: TypeAlias = Callable[[float], tuple[float, str]]


def learning_curves(
    rows: Sequence[Mapping[str, Any]],
    found: Mapping[int, Sequence[list[dict[str, Any]]]],
    drawn: Sequence[int],
    metric: str,
) -> list[Chart]:
    """Return charts of a metric, with a line per cell: over bytes and time, and over samples per worker if workers vary.

    Parameters
    ----------
    rows : the cells of the comparison.
    found : the rows of ``metrics.jsonl`` of each seed of each drawn cell, by its index in ``rows``.
    drawn : indices of the drawn cells, in order.
    metric : name of the metric.
    """
    name = metric.replace("_", " ")
    time = clock(*(rows[i]["virtual"] for i in drawn))
    workers = [int(row["settings"].get(WORKERS, 0)) for row in rows]
    axes: list[tuple[str, str, Unit, tuple[str, ...], Sequence[int]]] = [
        ("data moved", "Data moved, up and down ({})", bytes_unit, ("bytes_up", "bytes_down"), [1] * len(rows)),
        (time.lower(), time + " ({})", time_unit, ("seconds",), [1] * len(rows)),
    ]
    if all(workers):
        axes.append(("samples per worker", "Samples per worker{}", counts_unit, ("samples",), workers))
    charts = []
    for over, label, unit_of, keys, shares in axes:
        lines: list[tuple[int, int, MeanCurve]] = []
        for place, i in enumerate(drawn):
            curve = mean_curve([points(own, keys, metric, shares[i]) for own in found[i]])
            if curve is not None:
                lines.append((place, i, curve))
        if lines:
            one, unit = unit_of(max(float(curve.x[-1]) for *_, curve in lines))
            log_y = metric == "loss" and is_wide(value for *_, curve in lines for value in curve.mean.tolist())
            charts.append(
                Chart(
                    title=f"{name.capitalize()} on the test set{' (log scale)' if log_y else ''}, over {over}",
                    x_label=label.format(unit),
                    y_label=name,
                    series=[_series(p, i, str(rows[i]["cell"]), curve, one) for p, i, curve in lines],
                    log_x=is_wide(float(curve.x[-1]) for *_, curve in lines),
                    log_y=log_y,
                    y_most=1.0 if metric in FRACTIONS else np.inf,
                )
            )
    return charts


def _series(place: int, number: int, cell: str, curve: MeanCurve, one: float) -> Series:
    band = (curve.mean - curve.deviation, curve.mean + curve.deviation) if curve.seeds > 1 else None
    return Series(place, str(number + 1), cell, curve.x / one, curve.mean, band=band)
