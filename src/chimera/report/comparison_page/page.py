"""The HTML page of a comparison: one file without scripts and external resources, with links to the reports of the runs."""

from __future__ import annotations

import importlib.resources
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import numpy as np

from chimera.core.counted import counted
from chimera.core.errors import ConfigurationError
from chimera.core.safe_path import MAX_DOCUMENT_BYTES, read_regular, safe_path
from chimera.core.validation_message import validation_message
from chimera.report.comparison_page.charts import MAX_LINES, Chart, Series, draw, is_wide, swatch
from chimera.report.comparison_page.curves import learning_curves
from chimera.report.comparison_page.names import cell_name, safe
from chimera.report.comparison_page.scaling import speed_up, time_charts
from chimera.report.comparison_page.table import baseline_note, columns, metric_names
from chimera.report.curves import FRACTIONS
from chimera.report.mean_curves import BAND
from chimera.report.run_files import finite, read_metrics, replace_file
from chimera.report.units import bytes_unit, clock, number, time_unit

_MORE_IS_BETTER = FRACTIONS | {"r2"}

Row = Mapping[str, Any]


class _Cell(msgspec.Struct):
    """The keys that each row has, and the figures that tables and charts read; others are ignored."""

    cell: str
    folder: str
    settings: dict[str, str]
    state: str
    virtual: bool = False
    metrics: dict[str, float | str | None] = {}  # a text is in the place of the epsilon of a run with seeded noise
    seconds: float | None = None
    rounds: float | None = None
    samples: float | None = None
    bytes_up: float | None = None
    bytes_down: float | None = None
    seconds_to_target: float | None = None
    times_sooner: float | None = None
    times_fewer_bytes: float | None = None
    speed_up: float | None = None


class _Content(msgspec.Struct):
    """The keys of ``comparison.json``; others are ignored."""

    experiment: str
    varied: dict[str, list[str]]
    target: dict[str, float] | None
    rows: list[_Cell]
    runs: list[_Cell]
    notes: list[str]


def write_comparison(folder: str | os.PathLike[str]) -> Path:
    """Write ``comparison.html`` from ``comparison.json`` and the files of the runs, and return its path.

    Raises
    ------
    ConfigurationError : ``folder`` is not the folder of a comparison, or cannot be written.
    """
    folder = Path(folder)
    path = folder / "comparison.html"
    replace_file(path, page(read_comparison(folder), folder).encode("utf-8", "replace"))
    return path


def read_comparison(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the content of ``comparison.json``.

    Raises
    ------
    ConfigurationError : ``folder`` is not the folder of a comparison.
    """
    try:
        content = read_regular(safe_path(Path(folder), "comparison.json"), MAX_DOCUMENT_BYTES)
        found: dict[str, Any] = json.loads(content)
        msgspec.convert(found, _Content)
    except msgspec.ValidationError as error:
        message = validation_message(error, _Content)
        raise ConfigurationError(
            f"{str(folder)!r} is not the folder of a comparison: comparison.json: {message}"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{str(folder)!r} is not the folder of a comparison: {error}") from error
    return found


def page(comparison: Mapping[str, Any], folder: Path) -> str:
    """Return the whole page as HTML text."""
    files = importlib.resources.files("chimera.report")
    style = "".join(
        files.joinpath(name).read_text(encoding="utf-8") for name in ("style.css", "comparison_page/comparison.css")
    )
    rows = comparison["rows"]
    drawn = _drawn(rows, metric_names(comparison))
    name = Path(comparison["experiment"]).name
    sections = [
        _header(comparison, name),
        _section("Cost and quality", _legend(rows, drawn) + _cost(comparison, drawn) if drawn else ""),
        _section("Results", _figures(comparison, folder)),
        _section("Learning", _learning(comparison, folder, drawn)),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{safe(name)}: comparison · Chimera</title>\n<style>\n{style}</style></head>\n"
        f"<body><main>\n{''.join(sections)}</main></body></html>\n"
    )


def pareto_front(x: Sequence[float], y: Sequence[float], *, more_is_better: bool) -> list[int]:
    """Return the indices of the Pareto-optimal points, by ascending x; equal points are all kept.

    A point is dominated if another one has an x that is not larger and a y that is not worse, and is better in one of them.
    """
    sign = -1.0 if more_is_better else 1.0
    kept: list[int] = []
    for i in sorted(range(len(x)), key=lambda i: (x[i], sign * y[i])):
        if not kept or sign * y[i] < sign * y[kept[-1]] or (x[i], y[i]) == (x[kept[-1]], y[kept[-1]]):
            kept.append(i)
    return kept


def _section(title: str, body: str) -> str:
    return f"<section><h2>{title}</h2>\n{body}</section>\n" if body else ""


def _header(comparison: Mapping[str, Any], name: str) -> str:
    runs = comparison["runs"]
    states = [run["state"] for run in runs]
    done = states.count("finished")
    kind = "finished" if done == len(runs) else "unfinished"
    state = "finished" if done == len(runs) else f"{done} of {len(runs)} finished"
    varied = [f"{key} = {', '.join(values)}" for key, values in comparison["varied"].items()]
    target = comparison.get("target") or {}
    wanted = "Target: " + ", ".join(f"{key} {number(value)}" for key, value in target.items()) if target else ""
    lines = "".join(f"<p>{safe(line)}</p>" for line in (*varied, wanted) if line)
    notes = "".join(f"<p class='note'>{safe(note)}</p>" for note in comparison["notes"])
    pill = f'<span class="state {kind}">{state}</span>'
    return f"<header><h1>{safe(name)}: comparison {pill}</h1>\n{lines}{notes}</header>\n"


def _drawn(rows: Sequence[Row], metrics: Sequence[str]) -> list[int]:
    """Return the rows to draw, at most `MAX_LINES`: always the first, then Pareto-optimal ones, then others."""
    if not metrics:
        return []
    able = [i for i, row in enumerate(rows) if _cost_of(row, metrics[0]) is not None]
    if len(able) <= MAX_LINES:
        return able
    costs = [_cost_of(rows[i], metrics[0]) or (0.0, 0.0) for i in able]
    x, y = zip(*costs, strict=True)
    best = [able[i] for i in pareto_front(x, y, more_is_better=metrics[0] in _MORE_IS_BETTER)]
    order = list(dict.fromkeys([able[0], *best, *able]))
    return sorted(order[:MAX_LINES])


def _cost_of(row: Row, metric: str) -> tuple[float, float] | None:
    """Return bytes and the metric if both are known and finite."""
    value = finite(row["metrics"].get(metric))
    moved = finite(row.get("bytes_up")) + finite(row.get("bytes_down"))
    return (moved, value) if np.isfinite(value) and np.isfinite(moved) else None


def _legend(rows: Sequence[Row], drawn: Sequence[int]) -> str:
    items = "".join(
        f"<li><b>{i + 1}</b>{swatch(place)}<span>{cell_name(rows[i]['cell'])}</span></li>"
        for place, i in enumerate(drawn)
    )
    left = sum(bool(row["metrics"]) for row in rows) - len(drawn)
    more = f"<p class='note'>{counted(left, 'more cell')} in the table only.</p>" if left > 0 else ""
    return f'<ul class="cells">{items}</ul>{more}'


def _cost(comparison: Mapping[str, Any], drawn: Sequence[int]) -> str:
    rows, metric = comparison["rows"], metric_names(comparison)[0]
    charts = [_pareto(rows, drawn, metric, "bytes")]
    charts += time_charts(comparison) or (
        [_pareto(rows, drawn, metric, "seconds")] if len({rows[i]["virtual"] for i in drawn}) == 1 else []
    )
    charts += speed_up(comparison)
    figures = "".join(
        f"<figure><figcaption>{safe(chart.title)}</figcaption>{draw(chart)}{note}</figure>" for chart, note in charts
    )
    return f'<div class="row wide">{figures}</div>\n'


def _pareto(rows: Sequence[Row], drawn: Sequence[int], metric: str, over: str) -> tuple[Chart, str]:
    """Return the chart of a metric over bytes or seconds with its Pareto front, and a note on how to read it."""
    costs = [_cost_of(rows[i], metric) or (0.0, 0.0) for i in drawn]
    paid = [moved for moved, _ in costs] if over == "bytes" else [float(rows[i]["seconds"]) for i in drawn]
    one, unit = (bytes_unit if over == "bytes" else time_unit)(max(paid))
    x, y = np.array(paid) / one, np.array([value for _, value in costs])
    kept = pareto_front(x.tolist(), y.tolist(), more_is_better=metric in _MORE_IS_BETTER)
    time = clock(*(rows[i]["virtual"] for i in drawn))
    series = [
        Series(place, str(i + 1), str(rows[i]["cell"]), x[place : place + 1], y[place : place + 1])
        for place, i in enumerate(drawn)
    ]
    name = metric.replace("_", " ")
    chart = Chart(
        title=f"{name.capitalize()} on the test set, over {'data moved' if over == 'bytes' else time.lower()}",
        x_label=f"{'Data moved, up and down' if over == 'bytes' else time} ({unit})",
        y_label=name,
        series=series,
        points=True,
        front=(x[kept], y[kept]) if len(drawn) > 1 else None,
        log_x=is_wide(x),
        y_most=1.0 if metric in FRACTIONS else np.inf,
    )
    hollow = "; hollow ones are dominated" if len(kept) < len(drawn) else ""
    note = f"<p class='note'>Filled markers are Pareto-optimal{hollow}. The line is the Pareto front.</p>"
    return chart, note if len(drawn) > 1 else ""


def _figures(comparison: Mapping[str, Any], folder: Path) -> str:
    found = columns(comparison)
    kinds = [" ".join(["n"] * column.is_number + ["long"] * (len(column.heading) > 16)) for column in found]
    head = "".join(
        f'<th class="{kind}" title="{escape(column.meaning)}">{safe(column.heading)}</th>'
        for kind, column in zip(kinds, found, strict=True)
    )
    lines = []
    for i, row in enumerate(comparison["rows"]):
        cells = []
        for column in found:
            text = safe(column.texts[i])
            if column.heading == "cell":
                cells.append(f'<td class="name">{_links(row, comparison["runs"], folder)}</td>')
            elif column.heading in ("state", "error"):
                cells.append(f"<td{' class=failed' if row['state'] == 'failed' else ''}>{text}</td>")
            else:
                cells.append(f"<td{' class=n' if column.is_number else ''}>{text}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    note = baseline_note(comparison)
    note = f"<p class='note'>{safe(note)} The name of a cell links to the report of its run.</p>"
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    return f'<div class="figures">{table}</div>{note}'


def runs_of(row: Row, runs: Iterable[Row]) -> list[Row]:
    """Return the runs of a cell, one for each seed."""
    return [run for run in runs if run["settings"] == row["settings"]]


def _links(row: Row, runs: Iterable[Row], folder: Path) -> str:
    """Return the cell's name as a link to its report; with several seeds, one link for each seed after the name."""
    own = runs_of(row, runs)
    if len(own) == 1:
        return _link(own[0], str(row["cell"]), folder)
    return f"{cell_name(row['cell'])} (seeds {', '.join(_link(run, str(run['seed']), folder) for run in own)})"


def _link(run: Row, name: str, folder: Path) -> str:
    if not safe_path(folder, f"{run['folder']}/report.html").is_file():
        return cell_name(name)
    return f'<a href="{escape(quote(run["folder"]))}/report.html">{cell_name(name)}</a>'


def _learning(comparison: Mapping[str, Any], folder: Path, drawn: Sequence[int]) -> str:
    rows, names = comparison["rows"], metric_names(comparison)
    if not drawn:
        return ""
    found = {
        i: [read_metrics(safe_path(folder, run["folder"])) for run in runs_of(rows[i], comparison["runs"])]
        for i in drawn
    }
    wanted = list(dict.fromkeys([names[0], *(["loss"] if "loss" in names else [])]))
    charts = [chart for metric in wanted for chart in learning_curves(rows, found, drawn, metric)]
    figures = "".join(f"<figure><figcaption>{safe(c.title)}</figcaption>{draw(c)}</figure>" for c in charts)
    several = any(len(row.get("seeds", ())) > 1 for row in rows)
    means = "Curves are means over the seeds in their common range, or one seed if there is none"
    seeds = f"<p class='note'>{means}; bands show {BAND}.</p>" if several else ""
    return f'{_legend(rows, drawn)}<div class="row wide">{figures}</div>{seeds}'
