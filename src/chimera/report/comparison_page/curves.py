"""Learning curves of a comparison's cells: metrics over bytes, time and samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from chimera.report.comparison_page.charts import Chart, Series, is_wide
from chimera.report.comparison_page.names import WORKERS
from chimera.report.curves import FRACTIONS, Floats, thinned
from chimera.report.run_files import finite
from chimera.report.units import bytes_unit, clock, counts_unit, time_unit

Unit: TypeAlias = Callable[[float], tuple[float, str]]

_MOST_POINTS = 300


def learning_curves(
    rows: Sequence[Mapping[str, Any]], found: Mapping[int, list[dict[str, Any]]], drawn: Sequence[int], metric: str
) -> list[Chart]:
    """Return charts of a metric, with a line per cell: over bytes and time, and over samples per worker if workers vary.

    Parameters
    ----------
    rows : the cells of the comparison.
    found : the rows of ``metrics.jsonl`` of each drawn cell, by its index in ``rows``.
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
        lines: list[tuple[int, int, Floats, Floats]] = []
        for place, i in enumerate(drawn):
            paid = [sum(finite(row.get(key)) for key in keys) / shares[i] for row in found[i]]
            points = [(at, finite(row.get(metric))) for at, row in zip(paid, found[i], strict=True)]
            good = np.array([point for point in points if np.isfinite(point).all() and point[0] > 0]).reshape(-1, 2)
            if len(good):
                x, y = thinned(good[:, 0], good[:, 1], _MOST_POINTS, average=False)
                lines.append((place, i, x, y))
        if lines:
            one, unit = unit_of(max(float(x[-1]) for _, _, x, _ in lines))
            log_y = metric == "loss" and is_wide(value for *_, y in lines for value in y.tolist())
            charts.append(
                Chart(
                    title=f"{name.capitalize()} on the test set{' (log scale)' if log_y else ''}, over {over}",
                    x_label=label.format(unit),
                    y_label=name,
                    series=[Series(p, str(i + 1), str(rows[i]["cell"]), x / one, y) for p, i, x, y in lines],
                    log_x=is_wide(float(x[-1]) for _, _, x, _ in lines),
                    log_y=log_y,
                    y_most=1.0 if metric in FRACTIONS else np.inf,
                )
            )
    return charts
