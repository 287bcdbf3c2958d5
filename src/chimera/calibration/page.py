"""The HTML page of a calibration: fitted against measured times, residuals, stragglers and parameters."""

from __future__ import annotations

import importlib.resources
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from scipy import stats

from chimera.calibration.calibration import Calibration
from chimera.calibration.estimates import PARAMETERS, Point
from chimera.calibration.stragglers import BINS
from chimera.report.comparison_page.charts import COLOURS, Chart, Series, draw, is_wide, swatch
from chimera.report.run_files import replace_file
from chimera.report.safe_text import safe_text
from chimera.report.units import in_seconds, number, significant

_MAX_POINTS = 60


def write_page(calibration: Calibration, path: str | os.PathLike[str]) -> Path:
    """Write the page atomically, and return its path.

    Raises
    ------
    ConfigurationError : the file cannot be written.
    """
    path = Path(path)
    replace_file(path, page(calibration).encode())
    return path


def page(calibration: Calibration) -> str:
    """Return the whole page as HTML text."""
    files = importlib.resources.files("chimera.report")
    style = "".join(
        files.joinpath(name).read_text(encoding="utf-8") for name in ("style.css", "comparison_page/comparison.css")
    )
    warnings = "".join(f"<p class='note'>Warning: {safe_text(warning)}.</p>" for warning in calibration.warnings)
    sections = [
        f"<header><h1>Calibration of the simulated engine</h1>\n<p>{safe_text(calibration.date)}</p>{warnings}</header>\n",
        _section("Fitted and measured times", _fitted(calibration.points)),
        _section("Stragglers", _stragglers(calibration)),
        _section("Parameters", parameters_table(calibration)),
        _section("Runs", _sources(calibration)),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Calibration · Chimera</title>\n<style>\n{style}</style></head>\n"
        f"<body><main>\n{''.join(sections)}</main></body></html>\n"
    )


def shown_parameters(calibration: Calibration) -> list[tuple[str, str, str]]:
    """Return name, estimate and standard error of each parameter as texts."""
    rows = [
        (name, significant(calibration.values[name], 4), significant(calibration.errors[name], 2))
        for name in PARAMETERS
    ]
    byte_s = calibration.values["seconds_per_byte"]
    rows.append(("bandwidth_bytes_s", significant(1 / byte_s, 4) if byte_s else "inf", ""))
    kind = "measured factors" if calibration.stragglers.factors else "log-normal"
    rows.append((f"straggler_spread ({kind})", significant(calibration.stragglers.spread, 3), ""))
    rows.append(("spread", significant(calibration.spread, 3), ""))
    return rows + [(f"slow, {worker}", significant(factor, 3), "") for worker, factor in calibration.slow.items()]


def parameters_table(calibration: Calibration) -> str:
    """Return the parameters as a table of HTML."""
    return _table(("parameter", "estimate", "standard error"), shown_parameters(calibration), numbers=2)


def _fitted(points: Sequence[Point]) -> str:
    usable = [point for point in points if point.measured_s > 0 and point.fitted_s > 0][:_MAX_POINTS]
    if not usable:
        return ""
    kinds = sorted({point.what for point in usable})
    scale = 1e3
    times = [seconds for point in usable for seconds in (point.measured_s, point.fitted_s)]
    ends = np.array([min(times), max(times)]) * scale
    series = [
        Series(
            kinds.index(point.what) % COLOURS,
            str(i + 1),
            f"{point.what}, {point.run}, {point.actor}",
            np.array([point.measured_s * scale]),
            np.array([point.fitted_s * scale]),
        )
        for i, point in enumerate(usable)
    ]
    wide = is_wide(ends)
    chart = Chart(
        "Fitted", "measured median, ms", "fitted, ms", series, points=True, ideal=(ends, ends), log_x=wide, log_y=wide
    )
    rows = [
        (
            str(i + 1),
            point.what,
            point.run,
            point.actor,
            in_seconds(point.measured_s),
            in_seconds(point.fitted_s),
            f"{100 * (point.fitted_s / point.measured_s - 1):+.1f} %",
        )
        for i, point in enumerate(usable)
    ]
    head = "", "what", "run", "actor", "measured median", "fitted", "residual"
    return _figure("Fitted over measured median, ms", chart) + _table(head, rows, numbers=3)


def _stragglers(calibration: Calibration) -> str:
    stragglers = calibration.stragglers
    shares = (np.arange(BINS) + 0.5) / BINS
    series = [Series(0, "", "log-normal", 100 * shares, np.exp(stats.norm.ppf(shares) * stragglers.spread))]
    if stragglers.factors:
        series.append(Series(1, "", "measured", 100 * shares, np.array(stragglers.factors)))
    every = [float(value) for each in series for value in each.y]
    chart = Chart("Stragglers", "percentile of calls", "factor", series, log_y=is_wide(every))
    used = "measured factors are" if stragglers.factors else "log-normal distribution is"
    fits = ", ".join(significant(distance, 3) for distance in stragglers.distances)
    note = f"The {used} used. Distances of the log-normal and of the measured distribution to unseen calls: {fits}."
    legend = "".join(f"<li>{swatch(each.place)}<span>{each.label}</span></li>" for each in series)
    figure = _figure("Seconds of a call relative to the median", chart, f'<ul class="cells">{legend}</ul>')
    return figure + f'<p class="note">{safe_text(note)}</p>'


def _sources(calibration: Calibration) -> str:
    rows = [
        (
            source.name,
            source.engine,
            source.strategy,
            number(source.workers),
            number(source.batch_size),
            number(source.processors),
            in_seconds(source.round_s),
            in_seconds(source.round_p95_s),
        )
        for source in calibration.sources
    ]
    head = "run", "engine", "strategy", "workers", "batch size", "processors", "round, median", "round, 95th percentile"
    return _table(head, rows, numbers=5)


def _figure(title: str, chart: Chart, legend: str = "") -> str:
    return f'<div class="row wide"><figure><h3>{title}</h3>{draw(chart)}{legend}</figure></div>'


def _section(title: str, body: str) -> str:
    return f"<section><h2>{title}</h2>\n{body}</section>\n" if body else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: int) -> str:
    """Return a table whose last ``numbers`` columns are numbers."""
    first = len(head) - numbers
    kinds = ["<{0}>{1}</{0}>" if i < first else '<{0} class="n">{1}</{0}>' for i in range(len(head))]

    def row(cells: Sequence[str], tag: str) -> str:
        return (
            "<tr>"
            + "".join(kind.format(tag, safe_text(cell)) for kind, cell in zip(kinds, cells, strict=True))
            + "</tr>"
        )

    body = "".join(row(cells, "td") for cells in rows)
    return f"<div class='figures'><table><thead>{row(head, 'th')}</thead><tbody>{body}</tbody></table></div>"
