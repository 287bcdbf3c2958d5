"""Figures and tables of a comparison for a paper: mean curves with bands, LaTeX and Markdown."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chimera.core.errors import ConfigurationError, did_you_mean
from chimera.core.safe_path import safe_path
from chimera.report.comparison_page.charts import is_wide
from chimera.report.comparison_page.table import Column, columns, metric_names
from chimera.report.curves import FRACTIONS
from chimera.report.mean_curves import BAND, MeanCurve, mean_curve, points
from chimera.report.plots import drawable, styled, write_figure
from chimera.report.run_files import read_metrics
from chimera.report.units import bytes_unit, clock, counts_unit, time_unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AXES = {
    "bytes": ("data moved", ("bytes_up", "bytes_down"), bytes_unit),
    "seconds": ("time", ("seconds",), time_unit),
    "rounds": ("rounds", ("round",), counts_unit),
    "samples": ("samples", ("samples",), counts_unit),
}
SIZES = {"column": (3.35, 2.4), "page": (6.9, 3.2)}
"""Width and height in inches of a figure over one column or the whole width of a page of two columns."""
# Okabe and Ito's palette without yellow, which is too light for lines on white.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("-", "--", "-.", ":")
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "×": r"$\times$", "·": r"$\cdot$", "µ": r"$\mu$",
}  # fmt: skip

Comparison = Mapping[str, Any]


def save_curves(
    comparison: Comparison,
    path: str | os.PathLike[str],
    *,
    x: str = "bytes",
    y: str | None = None,
    labels: Mapping[str, str] | None = None,
    size: str | tuple[float, float] = "column",
) -> str:
    """Write the curves of all cells as a figure, see `chimera.Comparison.plot`; return a caption."""
    known = metric_names(comparison)
    metric = y or (known[0] if known else "loss")
    if metric not in known:
        raise ConfigurationError(
            f"there is no metric {metric!r}{did_you_mean(metric, known)} metrics: {', '.join(known) or 'none'}"
        )
    if x not in AXES:
        raise ConfigurationError(f"x is one of {', '.join(AXES)}, not {x!r}")
    if isinstance(size, str) and size not in SIZES:
        raise ConfigurationError(
            f"size is {' or '.join(map(repr, SIZES))}, or a width and a height in inches, not {size!r}"
        )
    inches = SIZES[size] if isinstance(size, str) else size
    names = _labels(comparison, labels)
    found = _curves(comparison, x, metric)
    if not found:
        raise ConfigurationError(f"no run of {comparison['folder']} has recorded {metric!r}")
    write_figure(lambda: _draw(comparison, found, names, x, metric, inches), path)
    return _caption(comparison, found, x, metric)


def table_of(
    comparison: Comparison, form: str, *, headings: Sequence[str] | None = None, labels: Mapping[str, str] | None = None
) -> str:
    """Return the results as a table in ``latex`` or ``markdown``, see `chimera.Comparison.latex`."""
    known = {column.heading: column for column in columns(comparison) if column.heading != "#"}
    for heading in headings or ():
        if heading not in known:
            raise ConfigurationError(
                f"there is no column {heading!r}{did_you_mean(heading, known)} columns: {', '.join(known)}"
            )
    names = _labels(comparison, labels)
    chosen = [known[heading] for heading in headings] if headings else list(known.values())
    texts = [names if column.heading == "cell" else column.texts for column in chosen]
    return (_latex if form == "latex" else _markdown)(chosen, list(zip(*texts, strict=True)))


def _labels(comparison: Comparison, labels: Mapping[str, str] | None) -> list[str]:
    cells = [str(row["cell"]) for row in comparison["rows"]]
    for cell in labels or {}:
        if cell not in cells:
            raise ConfigurationError(f"there is no cell {cell!r}{did_you_mean(cell, cells)} cells: {', '.join(cells)}")
    return [(labels or {}).get(cell, cell) for cell in cells]


def _curves(comparison: Comparison, x: str, metric: str) -> dict[int, MeanCurve]:
    """Return the mean curve of each cell that has one, by its index."""
    folder, (_, keys, _) = Path(comparison["folder"]), AXES[x]
    found = {}
    for i, row in enumerate(comparison["rows"]):
        own = [run["folder"] for run in comparison["runs"] if run["settings"] == row["settings"]]
        curve = mean_curve([points(read_metrics(safe_path(folder, name)), keys, metric) for name in own])
        if curve is not None:
            found[i] = curve
    return found


def _draw(
    comparison: Comparison,
    found: Mapping[int, MeanCurve],
    names: Sequence[str],
    x: str,
    metric: str,
    inches: tuple[float, float],
) -> Figure:
    from matplotlib.figure import Figure

    one, unit = AXES[x][2](max(float(curve.x[-1]) for curve in found.values()))
    with styled():
        figure = Figure(figsize=inches, layout="constrained")
        axes = figure.subplots()
        for place, (i, curve) in enumerate(found.items()):
            colour, dashes = _COLOURS[place % len(_COLOURS)], _DASHES[place // len(_COLOURS) % len(_DASHES)]
            axes.plot(curve.x / one, curve.mean, dashes, color=colour, linewidth=1.2, label=drawable(names[i], 60))
            if curve.seeds > 1:
                low, high = curve.mean - curve.deviation, curve.mean + curve.deviation
                axes.fill_between(curve.x / one, low, high, color=colour, alpha=0.18, linewidth=0)
        if is_wide(float(curve.x[-1]) for curve in found.values()):
            axes.set_xscale("log")
        if metric == "loss" and is_wide(value for curve in found.values() for value in curve.mean.tolist()):
            axes.set_yscale("log")
        axes.set_xlabel(_x_label(comparison, x, unit))
        axes.set_ylabel(metric.replace("_", " ").capitalize())
        axes.legend(fontsize=7.5, loc="best")
    return figure


def _x_label(comparison: Comparison, x: str, unit: str) -> str:
    name = clock(*(bool(row["virtual"]) for row in comparison["rows"])) if x == "seconds" else AXES[x][0].capitalize()
    return f"{name}{unit}" if x in ("rounds", "samples") else f"{name} ({unit})"


def _caption(comparison: Comparison, found: Mapping[int, MeanCurve], x: str, metric: str) -> str:
    seeds = {curve.seeds for curve in found.values()}
    name = metric.replace("_", " ")
    where = f"{name.capitalize()} on the test set{' (a share of 1)' if metric in FRACTIONS else ''}"
    over = _x_label(comparison, x, "").removesuffix(" ()").lower()
    if seeds == {1}:
        return f"{where} over {over}; one run each."
    counts = str(max(seeds)) if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)}"
    return f"{where} over {over}: mean over {counts} seeds; bands show {BAND}."


def _latex(chosen: Sequence[Column], rows: Sequence[Sequence[str]]) -> str:
    def cell(text: str) -> str:
        return "".join(_LATEX.get(letter, letter) for letter in text)

    lines = [" & ".join(map(cell, row)) + r" \\" for row in rows]
    head = " & ".join(cell(column.heading) for column in chosen) + r" \\"
    align = "".join("r" if column.is_number else "l" for column in chosen)
    return "\n".join(
        [rf"\begin{{tabular}}{{{align}}}", r"\toprule", head, r"\midrule", *lines, r"\bottomrule", r"\end{tabular}"]
    )


def _markdown(chosen: Sequence[Column], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(text.replace("|", r"\|") for text in cells) + " |"

    ends = line(["---:" if column.is_number else "---" for column in chosen])
    return "\n".join([line([column.heading for column in chosen]), ends, *map(line, rows)])
