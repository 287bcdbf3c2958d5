"""Charts over a varied setting: time to target, and speed-up over the number of workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from chimera.report.comparison_page.charts import MAX_LINES, Chart, Series, is_wide, swatch
from chimera.report.comparison_page.names import WORKERS, cell_name, safe
from chimera.report.units import bytes_unit, clock, time_unit


def time_charts(comparison: Mapping[str, Any]) -> list[tuple[Chart, str]]:
    """Return charts of the time to target (without a target, of the run) over each numeric setting that varies; at most two."""
    rows = comparison["rows"]
    key = "seconds_to_target" if comparison.get("target") else "seconds"
    what = "to target" if comparison.get("target") else "of the run"
    charts = []
    for varied, texts in comparison["varied"].items():
        values = [_as_number(text) for text in texts]
        if varied.rpartition(".")[2] == "seed" or len(values) < 2 or not all(value > 0 for value in values):
            continue
        groups: dict[str, list[tuple[float, float]]] = {}
        missed: dict[str, None] = {}
        for row in rows:
            name = _other_settings(row, varied)
            if row.get(key):
                groups.setdefault(name, []).append((_as_number(row["settings"][varied]), row[key]))
            elif row["state"] == "finished":
                missed[name] = None
        if groups:
            charts.append(_time_chart(varied, what, groups, list(missed), clock(*(row["virtual"] for row in rows))))
    return charts[:2]


def _time_chart(
    varied: str, what: str, groups: Mapping[str, Sequence[tuple[float, float]]], missed: Sequence[str], time: str
) -> tuple[Chart, str]:
    is_bandwidth = "bandwidth" in varied
    largest = max(x for points in groups.values() for x, _ in points)
    one, unit = bytes_unit(largest) if is_bandwidth else (1.0, "")
    second, time_name = time_unit(max(y for points in groups.values() for _, y in points))
    series = []
    for place, (name, points) in enumerate(list(groups.items())[:MAX_LINES]):
        x, y = np.array(sorted(points)).T
        series.append(Series(place, _letter(place), name, x / one, y / second))
    xs, ys = [x for each in series for x in each.x], [y for each in series for y in each.y]
    label = f"Bandwidth ({unit}/s)" if is_bandwidth else varied
    log_y = is_bandwidth or is_wide(ys)
    ticks = sorted(set(xs))
    chart = Chart(
        title=f"{time} {what} ({time_name}{', log scale' if log_y else ''}), over {'bandwidth' if is_bandwidth else varied}",
        x_label=label,
        y_label=f"{time} {what} ({time_name})",
        series=series,
        log_x=max(xs) / min(xs) > 3,
        log_y=log_y,
        x_ticks=ticks if len(ticks) <= 6 else (),
    )
    return chart, f'<ul class="cells">{_legend(series)}</ul>{_missed(missed)}'


def speed_up(comparison: Mapping[str, Any]) -> list[tuple[Chart, str]]:
    """Return the chart of the speed-up in samples per worker to the target, over the number of workers.

    Lines connect medians over seeds. There is no chart if fewer than two numbers of workers reached the target.
    """
    if WORKERS not in comparison["varied"]:
        return []
    groups: dict[str, dict[float, list[float]]] = {}
    missed: dict[str, None] = {}
    for run in comparison["runs"]:
        if run.get("speed_up"):
            found = groups.setdefault(_other_settings(run, WORKERS), {})
            found.setdefault(_as_number(run["settings"][WORKERS]), []).append(run["speed_up"])
        elif run["state"] == "finished":
            missed[_other_settings(run, WORKERS)] = None
    counts = sorted({workers for found in groups.values() for workers in found})
    if len(counts) < 2:
        return []
    series = [_medians(place, name, found) for place, (name, found) in enumerate(list(groups.items())[:MAX_LINES])]
    wide = is_wide(counts)
    chart = Chart(
        title=f"Speed-up in samples per worker to target{' (log scale)' if wide else ''}, over workers",
        x_label="Workers",
        y_label="Speed-up",
        series=series,
        ideal=(np.array([counts[0], counts[-1]]), np.array([1.0, counts[-1] / counts[0]])),
        log_x=wide,
        log_y=wide,
        x_ticks=counts if len(counts) <= 8 else (),
    )
    ideal = '<svg class="swatch wide" viewBox="0 0 30 12"><path class="ideal" d="M1 6H29"/></svg>'
    items = f"{_legend(series)}<li><b></b>{ideal}<span>ideal</span></li>"
    against = "one worker" if counts[0] == 1 else f"{counts[0]:g} workers"
    note = f"Speed-up: samples per worker to the target with {against}, divided by those with more workers."
    if any(each.samples is not None for each in series):
        note += " Hollow markers are single seeds; lines connect their medians."
    return [(chart, f'<ul class="cells">{items}</ul><p class="note">{note}</p>{_missed(list(missed))}')]


def _medians(place: int, name: str, found: Mapping[float, Sequence[float]]) -> Series:
    x = np.array(sorted(found))
    y = np.array([np.median(found[workers]) for workers in x])
    single = [(workers, value) for workers in x for value in found[workers]]
    around = None if len(single) == len(x) else (np.array([at for at, _ in single]), np.array([v for _, v in single]))
    return Series(place, _letter(place), name, x, y, around)


def _other_settings(row: Mapping[str, Any], varied: str) -> str:
    """Return the name of a row without the setting ``varied``."""
    return " · ".join(text for other, text in row["settings"].items() if other != varied) or "all"


def _legend(series: Sequence[Series]) -> str:
    return "".join(
        f"<li><b>{each.name}</b>{swatch(each.place)}<span>{cell_name(each.label)}</span></li>" for each in series
    )


def _missed(names: Sequence[str]) -> str:
    return f"<p class='note'>Not every run reached the target: {safe(', '.join(names))}.</p>" if names else ""


def _as_number(text: str) -> float:
    try:
        return float(text.replace("_", ""))
    except ValueError:
        return float("nan")


def _letter(place: int) -> str:
    return chr(ord("a") + place)
